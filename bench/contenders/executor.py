"""concurrent.futures.ProcessPoolExecutor, a future per task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, ClassVar

import workload
from contenders import base


class Contender(base.Contender):
    sizes: ClassVar = {"noop": 10_000, "grade": 10_000}

    def open(self) -> None:
        self._pool = ProcessPoolExecutor(base.WORKERS)
        self.run("noop", [b""] * 100)

    def run(self, fn: str, tasks: Sequence[Any]) -> list[Any]:
        call = workload.FUNCTIONS[fn]
        return [f.result() for f in [self._pool.submit(call, task) for task in tasks]]

    def stream(self, fn: str, tasks: Sequence[Any]) -> Iterator[Any]:
        call = workload.FUNCTIONS[fn]
        for future in as_completed([self._pool.submit(call, task) for task in tasks]):
            yield future.result()

    def victim(self) -> int:
        return next(iter(self._pool._processes))

    def close(self) -> None:
        for process in (self._pool._processes or {}).values():
            process.kill()
        self._pool.shutdown(wait=False, cancel_futures=True)
