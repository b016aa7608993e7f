"""What a worker needs from whatever executes its work: the seam between tokens and processes.

The worker claims, commits and beats; it knows no kind of work. A kind of work is one executor: it
takes whole batches (`Work`), and gives them back when every task has a result. To add one, write
its class and its line in `EXECUTORS`; a batch names its kind in its meta, and is a batch of tasks
when it names none.
"""

from __future__ import annotations

import importlib
import selectors
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from fsworker.protocol.records.slots import SlotTerms
from fsworker.slots.backlog import Work

TASKS, JOBS = "tasks", "job"

EXECUTORS = {
    TASKS: "fsworker.slots.tasks:TaskExecutor",
    JOBS: "fsworker.jobs.executor:JobExecutor",
}


@dataclass(frozen=True)
class Setting:
    """What every executor is told about its worker."""

    concurrency: int
    functions: tuple[str, ...]
    timeout: float | None = None
    slot_start: str = "fork"
    env: Mapping[str, str] = field(default_factory=dict)
    inherits: bool = False
    allow: tuple[str, ...] = ()
    """Patterns of functions that tasks may call besides."""
    terms: SlotTerms = field(default_factory=SlotTerms)
    """What each slot gets."""
    slot_env: Sequence[Mapping[str, str]] = ()
    """The environment of each slot, beside `env`, which is that of all."""
    job_slots: int = 0
    max_deaths: int = 3
    heard: Callable[[Mapping[str, str | None]], None] = lambda _: None
    """Is told the digests of the functions' sources by whoever has imported them."""
    spared: Callable[[], set[int]] = set
    """The children of the worker that are not of this kind of work."""

    def sparing(self, pids: Callable[[], set[int]]) -> Setting:
        """The same, for a kind of work that is not alone on its worker."""
        return replace(self, spared=pids)


class Executor(Protocol):
    """A kind of work. Nothing here waits; `step` is called whenever the selector woke up."""

    @property
    def ready(self) -> bool:
        """Whether it can take work."""

    @property
    def refused(self) -> str | None:
        """The sentence with which it declines to ever take any."""

    @property
    def held_up(self) -> bool:
        """Whether nothing that has not begun will begin soon: others should have it."""

    def room(self) -> int:
        """How many more tasks it wants now."""

    def add(self, work: Work) -> None:
        """Take a batch."""

    def release(self, work: Work, index: int) -> None:
        """Let one task of a batch run that was added with nothing to hand out."""

    def drop(self, key: str) -> None:
        """Forget a batch and end what runs of it."""

    def cancel(self, work: Work, indexes: Iterable[int]) -> None:
        """Answer these tasks of a batch as cancelled and end what runs of them."""

    def step(self, now: float) -> list[Work]:
        """Do what is due; the batches in which something has finished since the last call."""

    def busy(self) -> int:
        """How many places are executing."""

    def total(self) -> int:
        """How many places there are that can be used; with none left the work is given back."""

    def close(self) -> None:
        """End every process."""


class Jobs(Executor, Protocol):
    """The kind of work that takes hours: besides, it can be asked to come to an end."""

    def wind_down(self) -> float:
        """Let each job save what it can and go back; the seconds that they may take for it."""

    def pids(self) -> set[int]:
        """The processes that are its own children of the worker."""


def kind_of(meta: Mapping[str, Any]) -> str:
    """The kind of work that a batch's meta names."""
    return str(meta.get("kind") or TASKS)


def open_jobs(setting: Setting, selector: selectors.BaseSelector) -> Jobs:
    """The executor of jobs."""
    executor: Any = open_executor(JOBS, setting, selector)
    jobs: Jobs = executor
    return jobs


def open_executor(kind: str, setting: Setting, selector: selectors.BaseSelector) -> Executor:
    """The executor of a kind of work. KeyError for a kind that this release does not know."""
    module, _, name = EXECUTORS[kind].partition(":")
    executor: Executor = getattr(importlib.import_module(module), name)(setting, selector)
    return executor
