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
