"""jug: a jugfile, and two `jug execute` on it, as its users start them for every run."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from contenders import base

JUGFILE = """
import pickle
from jug import Task
import workload
fn, tasks = pickle.load(open("tasks.pickle", "rb"))
results = [Task(workload.FUNCTIONS[fn], task) for task in tasks]
"""


class Contender(base.Contender):
    sizes: ClassVar = {"noop": 2_000, "grade": 2_000}

    def run(self, fn: str, tasks: Sequence[Any]) -> list[Any]:
        self._execute(fn, tasks)
        for child in self._children[-base.WORKERS :]:
            child.wait()
        return list(self._load())

    def one(self, fn: str, task: Any) -> Any:
        self._execute(fn, [task])
        child = self._children[-1]
        child.wait()
        return next(self._load())

    def stream(self, fn: str, tasks: Sequence[Any]) -> Iterator[Any]:
        self._execute(fn, tasks)
        children = self._children[-base.WORKERS :]
        while any(child.poll() is None for child in children):
            time.sleep(0.05)
        yield from self._load()

    def victim(self) -> int:
        return self._children[-1].pid

    def close(self) -> None:
        self._children = [c for c in self._children if c.poll() is None]
        super().close()

    def _execute(self, fn: str, tasks: Sequence[Any]) -> None:
        shutil.rmtree(f"{self.folder}/jugdata", ignore_errors=True)
        with open(f"{self.folder}/jugfile.py", "w") as file:
            file.write(JUGFILE)
        with open(f"{self.folder}/tasks.pickle", "wb") as file:
            pickle.dump((fn, list(tasks)), file)
        for _ in range(base.WORKERS if len(tasks) > 1 else 1):
            argv = [base.script("jug"), "execute", "jugfile.py", "--jugdir", "jugdata"]
            self.spawn([*argv, "--nr-wait-cycles", "2", "--wait-cycle-time", "1"])

    def _load(self) -> Iterator[Any]:
        """The results there are, read by another process as `jug` itself would."""
        code = (
            "import jug, pickle, sys\n"
            "_, space = jug.jug.init('jugfile.py', 'jugdata')\n"
            "done = [t.value() for t in space['results'] if t.can_load()]\n"
            "sys.stdout.buffer.write(pickle.dumps(done))\n"
        )
        env = {**os.environ, "PYTHONPATH": base.BENCH}
        found = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.folder,
            env=env,
            stdout=subprocess.PIPE,
            check=True,
        )
        yield from pickle.loads(found.stdout)
