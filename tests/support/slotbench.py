"""An executor of tasks with real slots, driven by hand: no root, no worker."""

from __future__ import annotations

import selectors
import time
from collections.abc import Sequence
from typing import Any

from fsworker.executors import TASKS, Setting, open_executor
from fsworker.protocol import packing
from fsworker.protocol.segment import Records
from fsworker.slots.backlog import Work
from fsworker.slots.tasks import TaskExecutor
from tests.support.workers import MODULE, REPO

FUNCTIONS = (
    *("echo", "noop", "double", "double_async", "raise_async", "pid", "sleep"),
    *("environment", "misbehave", "append"),
)


class Bench:
    """An executor of tasks with its loop, as a worker has it.

    `named`: tasks have ids. Those go one by one, the others in a row at full speed.
    """

    def __init__(
        self,
        slots: int,
        start: str = "fork",
        mark: str = "",
        *,
        module: str = MODULE,
        functions: Sequence[str] = FUNCTIONS,
        named: bool = False,
        **more: Any,
    ) -> None:
        self.named = named
        self.selector = selectors.DefaultSelector()
        self._module = module
        names = tuple(f"{module}.{name}" for name in functions)
        env = {"PYTHONPATH": REPO, "SLOT_TEST": mark}
        setting = Setting(slots, names, slot_start=start, env=env, **more)
        found = open_executor(TASKS, setting, self.selector)
        assert isinstance(found, TaskExecutor)
        self.executor = found
        self._number = 0

    def turn(self) -> list[Work]:
        for key, mask in self.selector.select(0.02):
            key.data(mask)
        assert self.executor.refused is None, self.executor.refused
        return self.executor.step(time.monotonic())

    def until(self, predicate: Any, deadline: float = 120.0, what: str = "it") -> None:
        end = time.monotonic() + deadline
        while not predicate():
            assert time.monotonic() < end, f"{what} did not happen within {deadline} s"
            self.turn()

    def all_idle(self) -> bool:
        return self.executor.pool.count("idle") == len(self.executor.pool.slots)

    def id_of(self, index: int) -> str | None:
        return f"t{index}" if self.named else None

    def add(
        self, fn: str, calls: list[list[Any]], timeout: float | None = None, **meta: Any
    ) -> Work:
        """A batch of calls; `meta` is what its sender asks for besides."""
        self._number += 1
        meta |= {"fn": f"{self._module}.{fn}", "batch": "b", "attempt": 1, "timeout": timeout}
        records = [packing.pack([self.id_of(i), call]) for i, call in enumerate(calls)]
        work = Work(f"w{self._number}", meta, Records.of(records))
        work.open_all()
        self.executor.add(work)
        return work

    def run(
        self, fn: str, calls: list[list[Any]], timeout: float | None = None, **meta: Any
    ) -> list[Any]:
        """(status, value) of each call, in order."""
        work = self.add(fn, calls, timeout, **meta)
        self.until(lambda: work.finished, what="the last result")
        found = [packing.unpack(work.results[i]) for i in range(len(calls))]
        assert [f[:2] for f in found] == [[i, self.id_of(i)] for i in range(len(calls))]
        return [(f[2], f[3]) for f in found]


def refusal(setting: Setting, seconds: float = 30.0) -> str | None:
    """The sentence with which an executor declines to ever take work; None: it has not within."""
    selector = selectors.DefaultSelector()
    executor = open_executor(TASKS, setting, selector)
    end = time.monotonic() + seconds
    while executor.refused is None and time.monotonic() < end:
        for key, mask in selector.select(0.05):
            key.data(mask)
        executor.step(time.monotonic())
    executor.close()
    return executor.refused
