"""The executors of one worker as one: tasks on slots, jobs on job slots, either of them or both.

Custody and the worker's loop speak to one executor; which kind of work a batch is decides here who
gets it. What is counted as the worker's slots are those for tasks, where there are any.
"""

from __future__ import annotations

import selectors
from collections.abc import Iterable

from fsworker import executors
from fsworker.executors import Executor, Setting
from fsworker.slots.backlog import Work


class Crew:
    """The kinds of work that this worker executes."""

    def __init__(self, setting: Setting, selector: selectors.BaseSelector) -> None:
        self._jobs = executors.open_jobs(setting, selector) if setting.job_slots else None
        self._tasks: Executor | None = None
        if setting.concurrency:
            if self._jobs is not None:
                setting = setting.sparing(self._jobs.pids)
            self._tasks = executors.open_executor(executors.TASKS, setting, selector)

    @property
    def kinds(self) -> list[Executor]:
        """The executors that there are."""
        return [one for one in (self._tasks, self._jobs) if one is not None]

    @property
    def ready(self) -> bool:
        """Whether work can be taken."""
        return all(one.ready for one in self.kinds)

    @property
    def refused(self) -> str | None:
        """The sentence with which one declines to ever take any."""
        return next((one.refused for one in self.kinds if one.refused), None)

    @property
    def held_up(self) -> bool:
        """Whether tasks would wait here behind others that take long."""
        return self._tasks is not None and self._tasks.held_up

    def room(self) -> int:
        """How many more tasks are wanted now."""
        return self._tasks.room() if self._tasks else 0

    def job_room(self) -> int:
        """How many more jobs are wanted now."""
        return self._jobs.room() if self._jobs else 0

    def add(self, work: Work) -> None:
        """Take a batch."""
        self._of(work).add(work)

    def release(self, work: Work, index: int) -> None:
        """Let one task of a batch run."""
        self._of(work).release(work, index)

    def drop(self, key: str) -> None:
        """Forget a batch, whatever it was."""
        for one in self.kinds:
            one.drop(key)

    def cancel(self, work: Work, indexes: Iterable[int]) -> None:
        """Answer tasks of a batch as cancelled."""
        self._of(work).cancel(work, indexes)

    def wind_down(self) -> float:
        """Let jobs save what they can, and go back; the seconds that they may take for it."""
        return self._jobs.wind_down() if self._jobs else 0.0

    def step(self, now: float) -> list[Work]:
        """Do what is due; the batches in which something has finished."""
        return [work for one in self.kinds for work in one.step(now)]

    def busy(self) -> int:
        """How many places for tasks are executing."""
        return self._tasks.busy() if self._tasks else 0

    def slots(self) -> int:
        """How many places for tasks there are."""
        return self._tasks.total() if self._tasks else 0

    def jobs(self) -> tuple[int, int]:
        """(job slots that are busy, all of them)."""
        return (self._jobs.busy(), self._jobs.total()) if self._jobs else (0, 0)

    def total(self) -> int:
        """How many places can be used: those for tasks, or for jobs where there are no others."""
        first = self._tasks or self._jobs
        return first.total() if first else 0

    def close(self) -> None:
        """End every process."""
        for one in reversed(self.kinds):
            one.close()

    def _of(self, work: Work) -> Executor:
        jobs = executors.kind_of(work.meta) == executors.JOBS
        chosen = self._jobs if jobs else self._tasks
        # A batch of another kind than its name says is answered by whoever is there.
        return chosen or self.kinds[0]
