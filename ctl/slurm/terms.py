"""What is asked of Slurm for each worker, and which jobs there are of it."""

from __future__ import annotations

from dataclasses import dataclass

from fsworker.protocol import layout
from fsworker.protocol.records.run import _Record

BOOK = layout.CTL + "/slurm.json"
PREFIX = "slurm-"


@dataclass(frozen=True, slots=True)
class Terms:
    """What every job asks for, as sbatch spells it; None: the site's default.

    `grace`: seconds before the time limit, or after a preemption, in which a worker drains.
    `max_idle`: seconds without work after which one ends; 0: never. `extra` goes to sbatch as is.
    """

    partition: str | None = None
    account: str | None = None
    time: str | None = None
    gres: str | None = None
    cpus: int | None = None
    memory: str | None = None
    extra: tuple[str, ...] = ()
    grace: int = 60
    max_idle: float = 0.0


@dataclass(frozen=True, slots=True)
class Job:
    """One submission. `token`: the public half of what lets its worker in."""

    id: str
    token: str

    @property
    def member(self) -> str:
        """The name under which its worker attaches."""
        return PREFIX + self.id


@dataclass(frozen=True)
class Book(_Record):
    """The jobs of a run; `ctl/slurm.json`, written under the verb lock.

    `nodes` is how many workers are wanted, `resubmit` how many of those that died may be replaced
    in all, and `replaced` how many were.
    """

    nodes: int
    terms: Terms
    jobs: tuple[Job, ...] = ()
    parallel: int = 1
    job_slots: int = 1
    least: int = 0
    most: int = 0
    resubmit: int = 0
    replaced: int = 0
