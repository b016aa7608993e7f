"""Celery on folders: filesystem transport, results in files, a pool of two processes.

It polls every 10 ms here; with its own default of a second it is five times slower.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from celery import Celery

import workload
from contenders import base

POLL = 0.01
PATIENCE = 20.0
"""Seconds for all results. The transport writes messages in place, and a worker that reads half of
one ends: `tasks.py` tries again."""
FOLDER = os.environ.get("BENCH_CELERY", "/nonexistent/bench")


def configured(folder: str) -> Celery:
    """The application, with its queues and results below a folder."""
    made = Celery("bench", broker="filesystem://", backend=f"file://{folder}/results")
    made.conf.update(
        broker_transport_options={
            "data_folder_in": f"{folder}/queue",
            "data_folder_out": f"{folder}/queue",
            "control_folder": f"{folder}/control",
            "polling_interval": POLL,
        },
        task_serializer="pickle",
        result_serializer="pickle",
        accept_content=["pickle", "json"],
        worker_prefetch_multiplier=64,
    )
    return made


app = configured(FOLDER)


@app.task(name="call")
def call(fn: str, task: Any) -> Any:
    """A task."""
    return workload.FUNCTIONS[fn](task)


class Contender(base.Contender):
    sizes: ClassVar = {"noop": 600, "grade": 600}

    def open(self) -> None:
        for name in ("queue", "control", "results"):
            os.makedirs(f"{self.folder}/{name}")
        self._app = configured(self.folder)
        self._worker = self.spawn(
            base.python(
                *("-m", "celery", "-A", "contenders.celery_files", "worker"),
                *("-c", str(base.WORKERS), "--without-gossip", "--without-mingle"),
                *("--without-heartbeat", "-l", "ERROR"),
            ),
            env={"BENCH_CELERY": self.folder, "C_FORCE_ROOT": "1"},
        )
        self.run("noop", [b""] * 4)

    def run(self, fn: str, tasks: Sequence[Any]) -> list[Any]:
        sent = [self._send(fn, task) for task in tasks]
        return [self._wait(one).get() for one in sent]

    def stream(self, fn: str, tasks: Sequence[Any]) -> Iterator[Any]:
        left = [self._send(fn, task) for task in tasks]
        while left:
            done = {r.id for r in left if r.ready()}
            yield from (r.get() for r in left if r.id in done)
            left = [r for r in left if r.id not in done]
            time.sleep(POLL)

    def _wait(self, sent: Any) -> Any:
        deadline = time.monotonic() + PATIENCE
        while not sent.ready():
            if self._worker.poll() is not None:
                raise RuntimeError("its worker ended, as it does when it reads half a message")
            if time.monotonic() > deadline:
                raise TimeoutError(f"no result for {PATIENCE:.0f} s")
            time.sleep(POLL)
        return sent

    def _send(self, fn: str, task: Any) -> Any:
        return self._app.send_task("call", (fn, task))

    def victim(self) -> int:
        return base.children_of(self._worker.pid)[-1]
