"""What a worker is started with: the command line of one life, checked by its reader."""

from __future__ import annotations

from dataclasses import dataclass, field

from fsworker.protocol.records.slots import SlotTerms


@dataclass(frozen=True)
class Options:
    """What a worker is started with."""

    root: str
    shard: int
    host: str
    concurrency: int
    launch: int = 0
    grace: float = 10.0
    slots: SlotTerms = field(default_factory=SlotTerms)
    job_slots: int = 0
    labels: tuple[str, ...] = ()
    cpus: int = 0
    memory_mb: int = 0
    """What the heartbeat says there is; 0: what is found."""
    max_idle: float = 0.0
    """Seconds without work after which the worker ends; 0: never."""
    term_grace: float = 0.0
    """Seconds after a TERM until everything is given back, jobs too; 0: as after any other word."""
    once: bool = False
    """End after the first work that was finished."""
    poll_interval: float = 0.5
    """Seconds between two looks for a job."""

    def offered(self) -> dict[str, int]:
        """What the heartbeat's inventory says of slots: by it others know what may be sent here."""
        told = {"slots": self.concurrency, "job_slots": self.job_slots}
        memory = self.slots.memory
        return told if memory is None else {**told, "slot_memory": memory}
