"""Dask distributed: a local cluster of two worker processes of one thread each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from distributed import Client, LocalCluster, as_completed

import workload
from contenders import base


class Contender(base.Contender):
    sizes: ClassVar = {"noop": 1_500, "grade": 1_500}

    def open(self) -> None:
        self._cluster = LocalCluster(
            n_workers=base.WORKERS,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            local_directory=self.folder,
        )
        self._client = Client(self._cluster)
        self.run("noop", [b""] * 10)

    def run(self, fn: str, tasks: Sequence[Any]) -> list[Any]:
        call = workload.FUNCTIONS[fn]
        return self._client.gather(self._client.map(call, list(tasks), pure=False))

    def stream(self, fn: str, tasks: Sequence[Any]) -> Iterator[Any]:
        futures = self._client.map(workload.FUNCTIONS[fn], list(tasks), pure=False)
        for future in as_completed(futures):
            yield future.result()

    def victim(self) -> int:
        return self._client.submit(os.getpid, priority=100, pure=False).result()

    def close(self) -> None:
        self._client.close(timeout=5)
        self._cluster.close(timeout=5)
