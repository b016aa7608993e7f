"""Ours through `Client.map`: no future per task. Every batch and result is fsynced."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from typing import Any, ClassVar

import fsworker
from contenders import base
from fleet import Fleet


class Contender(base.Contender):
    sizes: ClassVar = {"noop": 400_000, "grade": 200_000}

    def open(self) -> None:
        os.makedirs(f"{self.folder}/fleet")
        self._fleet = Fleet(f"{self.folder}/fleet")
        self._fleet.__enter__()
        self._client = fsworker.Client(self._fleet.root)
        list(self._client.map("workload:noop", [b""] * 100))

    def run(self, fn: str, tasks: Sequence[Any]) -> list[Any]:
        return list(self._client.map(f"workload:{fn}", tasks))

    def one(self, fn: str, task: Any) -> Any:
        return self._client.submit(f"workload:{fn}", task).result()

    def stream(self, fn: str, tasks: Sequence[Any]) -> Iterator[Any]:
        futures = [self._client.submit(f"workload:{fn}", task) for task in tasks]
        for future in as_completed(futures):
            yield future.result()

    def victim(self) -> int:
        return self._fleet.worker(self._fleet.hosts()[0])

    def close(self) -> None:
        self._client.shutdown(wait=False, cancel_futures=True)
        self._fleet.__exit__()
