"""HyperQueue: a server and one worker with two CPUs; tasks are its Python functions.

It is made for programs that run for seconds; each of these tasks starts a Python of its own.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig

from contenders import base


class Contender(base.Contender):
    sizes: ClassVar = {"noop": 100, "grade": 100}

    def open(self) -> None:
        self._cluster = LocalCluster()
        self._cluster.start_worker(WorkerConfig(cores=base.WORKERS))
        self._client = self._cluster.client()

    def run(self, fn: str, tasks: Sequence[Any]) -> list[Any]:
        job = Job()
        for i, task in enumerate(tasks):
            with open(f"{self.folder}/{i}.in", "wb") as file:
                pickle.dump((fn, task), file)
            job.program(base.python("-c", _PROGRAM, str(i)), cwd=self.folder)
        self._client.wait_for_jobs([self._client.submit(job)])
        return [self._result(i) for i in range(len(tasks))]

    def stream(self, fn: str, tasks: Sequence[Any]) -> Iterator[Any]:
        yield from self.run(fn, tasks)

    def victim(self) -> int:
        raise RuntimeError("its tasks are programs: there is no worker of ours to kill")

    def close(self) -> None:
        self._cluster.stop()

    def _result(self, i: int) -> Any:
        with open(f"{self.folder}/{i}.out", "rb") as file:
            return pickle.load(file)


_PROGRAM = f"""
import pickle, sys
sys.path.insert(0, {base.BENCH!r})
import workload
fn, task = pickle.load(open(sys.argv[1] + ".in", "rb"))
pickle.dump(workload.FUNCTIONS[fn](task), open(sys.argv[1] + ".out", "wb"))
"""
