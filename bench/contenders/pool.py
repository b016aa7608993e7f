"""multiprocessing.Pool: what everything is compared with. In memory, on one machine."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import workload
from contenders import base

CHUNK = 64


class Contender(base.Contender):
    sizes: ClassVar = {"noop": 400_000, "grade": 200_000}

    def open(self) -> None:
        self._pool = multiprocessing.Pool(base.WORKERS)
        self._pool.map(workload.noop, [b""] * 100)

    def run(self, fn: str, tasks: Sequence[Any]) -> list[Any]:
        return self._pool.map(workload.FUNCTIONS[fn], tasks, chunksize=CHUNK)

    def one(self, fn: str, task: Any) -> Any:
        return self._pool.apply(workload.FUNCTIONS[fn], (task,))

    def stream(self, fn: str, tasks: Sequence[Any]) -> Iterator[Any]:
        return self._pool.imap_unordered(workload.FUNCTIONS[fn], tasks)

    def victim(self) -> int:
        return multiprocessing.active_children()[0].pid or 0

    def close(self) -> None:
        for child in multiprocessing.active_children():
            child.kill()
