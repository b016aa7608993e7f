"""Ray on this machine with two CPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import ray

import workload
from contenders import base


def _pid() -> int:
    return os.getpid()  # a builtin is no remote function


class Contender(base.Contender):
    sizes: ClassVar = {"noop": 3_000, "grade": 3_000}

    def open(self) -> None:
        path = {"env_vars": {"PYTHONPATH": base.BENCH}}
        ray.init(
            num_cpus=base.WORKERS, include_dashboard=False, runtime_env=path, log_to_driver=False
        )
        self._call = {name: ray.remote(fn) for name, fn in workload.FUNCTIONS.items()}
        self._worker = ray.get(ray.remote(_pid).remote())
        self.run("noop", [b""] * 10)

    def run(self, fn: str, tasks: Sequence[Any]) -> list[Any]:
        call = self._call[fn]
        return ray.get([call.remote(task) for task in tasks])

    def stream(self, fn: str, tasks: Sequence[Any]) -> Iterator[Any]:
        left = [self._call[fn].remote(task) for task in tasks]
        while left:
            done, left = ray.wait(left)
            yield from ray.get(done)

    def victim(self) -> int:
        return self._worker

    def close(self) -> None:
        ray.shutdown()
