"""dirq, one queue for tasks and one for results, two consumers that poll every millisecond.

dirq is a queue, not an executor: the consumer below is the least that one has to write. Its files
are not fsynced, which ours are.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from dirq.QueueSimple import QueueSimple

import workload
from contenders import base

POLL = 0.001


class Contender(base.Contender):
    sizes: ClassVar = {"noop": 10_000, "grade": 8_000}

    def open(self) -> None:
        self._tasks = QueueSimple(f"{self.folder}/tasks")
        self._results = QueueSimple(f"{self.folder}/results")
        for _ in range(base.WORKERS):
            self.spawn(base.python("-m", "contenders.dirq_queues", self.folder))
        self.run("noop", [b""] * 100)

    def run(self, fn: str, tasks: Sequence[Any]) -> list[Any]:
        found: dict[int, Any] = dict(self._pairs(fn, tasks))
        return [found[i] for i in range(len(tasks))]

    def stream(self, fn: str, tasks: Sequence[Any]) -> Iterator[Any]:
        return (value for _, value in self._pairs(fn, tasks))

    def victim(self) -> int:
        return self._children[0].pid

    def _pairs(self, fn: str, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        for i, task in enumerate(tasks):
            self._tasks.add(pickle.dumps((i, fn, task)))
        left = len(tasks)
        while left:
            for pair in drain(self._results):
                left -= 1
                yield pair
            time.sleep(POLL if left else 0)


def drain(queue: QueueSimple) -> Iterator[Any]:
    """Everything that one pass over a queue yields."""
    for name in queue:
        if queue.lock(name):
            value = pickle.loads(queue.get(name))
            yield value
            queue.remove(name)


def serve(folder: str) -> None:
    """A consumer."""
    tasks, results = QueueSimple(f"{folder}/tasks"), QueueSimple(f"{folder}/results")
    parent = os.getppid()
    while os.getppid() == parent:
        for i, fn, task in drain(tasks):
            results.add(pickle.dumps((i, workload.FUNCTIONS[fn](task))))
        time.sleep(POLL)


if __name__ == "__main__":
    serve(sys.argv[1])
