"""huey on files: its consumer with two worker processes that poll every 10 ms."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from huey import FileHuey

import workload
from contenders import base

POLL = 0.01
huey = FileHuey("bench", path=os.environ.get("BENCH_HUEY", "/nonexistent/bench"), results=True)


@huey.task(name="call")
def call(fn: str, task: Any) -> Any:
    """A task; None is no result to huey."""
    return [workload.FUNCTIONS[fn](task)]


class Contender(base.Contender):
    sizes: ClassVar = {"noop": 1_500, "grade": 1_500}

    def open(self) -> None:
        path = f"{self.folder}/huey"
        os.environ["BENCH_HUEY"] = path
        huey.storage.__init__("bench", path)
        self._consumer = self.spawn(
            base.python(
                *("-m", "huey.bin.huey_consumer", "contenders.huey_files.huey"),
                *("-k", "process", "-w", str(base.WORKERS), "-d", str(POLL), "-m", str(POLL)),
                *("-n", "-q"),
            )
        )
        self.run("noop", [b""] * 10)

    def run(self, fn: str, tasks: Sequence[Any]) -> list[Any]:
        handles = [call(fn, task) for task in tasks]
        return [h.get(blocking=True, max_delay=POLL)[0] for h in handles]

    def stream(self, fn: str, tasks: Sequence[Any]) -> Iterator[Any]:
        left = [call(fn, task) for task in tasks]
        while left:
            found = [(h, h.get()) for h in left]
            left = [h for h, value in found if value is None]
            yield from (value[0] for _, value in found if value is not None)
            time.sleep(POLL)

    def victim(self) -> int:
        return base.children_of(self._consumer.pid)[-1]  # the scheduler is the first
