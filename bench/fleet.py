"""Runs of the product for measurements: started by `ctl`, stopped by `ctl`, removed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from guard import Guard

HERE = os.path.dirname(os.path.abspath(__file__))
REPO = os.path.dirname(HERE)
CTL = (sys.executable, "-m", "ctl")
FUNCTIONS = ("workload:noop", "workload:grade", "workload:work")


class Fleet:
    """A run on this machine with two workers of one slot each, below an empty `folder`.

    Used as a context it ends with this process, however that ends.
    """

    removed = True
    """Whether the folder is removed when the run has ended."""

    def __init__(
        self,
        folder: str,
        *,
        hosts: str = "bench[1-2]",
        concurrency: int = 1,
        functions: tuple[str, ...] = FUNCTIONS,
        more: tuple[str, ...] = (),
        grace: str = "1",
        kill_after: str = "2",
    ) -> None:
        self.folder = folder
        self.root = f"{folder}/runs/bench"
        own = {k: v for k, v in os.environ.items() if not k.startswith(("FLEET_", "SAO_"))}
        self._env = {**own, "FLEET_WORKSPACE": f"{folder}/ws", "PYTHONPATH": REPO}
        self._env["XDG_CONFIG_HOME"] = f"{folder}/config"
        os.makedirs(f"{folder}/config", exist_ok=True)
        self._stop = ("stop", "--root", self.root, "--grace", grace, "--kill-after", kill_after)
        fns = [word for name in functions for word in ("--fn", name)]
        self._start = (
            *("start", "--launcher", "local", "--hosts", hosts, "--concurrency", str(concurrency)),
            *("--repo", HERE, "--root", self.root, "--run-id", "bench", *fns, *more),
        )

    def __enter__(self) -> Self:
        stop = [*CTL, *self._stop]
        self._guard = Guard(stop, self._env, self.folder if self.removed else None)
        try:
            self._ctl(*self._start)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if os.path.exists(self.root):
                self._ctl(*self._stop, check=False)
            if self.removed:
                shutil.rmtree(self.folder, ignore_errors=True)
        finally:
            self._guard.dismiss()

    def hosts(self) -> list[str]:
        """The hosts of the run."""
        with open(f"{self.root}/manifest.json") as file:
            return [worker["host"] for worker in json.load(file)["workers"]]

    def beat(self, host: str) -> dict[str, Any]:
        """A worker's heartbeat."""
        with open(f"{self.root}/status/{host}.json") as file:
            found: dict[str, Any] = json.load(file)
        return found

    def worker(self, host: str) -> int:
        """A worker's pid."""
        return int(self.beat(host)["pid"])

    def log(self, host: str) -> str:
        """What a worker has logged."""
        with open(f"{self.root}/ctl/{host}.log", errors="replace") as file:
            return file.read()

    def ctl(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run `ctl VERB … --root ROOT`; what it says, whether it succeeds or not."""
        return self._ctl(*argv, "--root", self.root, check=False)

    def _ctl(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*CTL, *argv],
            env=self._env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode:
            raise RuntimeError(f"ctl {argv[0]} exits {done.returncode}: {done.stderr[-2000:]}")
        return done


@contextmanager
def temporary_fleet(**options: Any) -> Iterator[Fleet]:
    """A run in a folder of its own, which is gone afterwards."""
    folder = tempfile.mkdtemp(prefix="bench-fleet-")
    try:
        with Fleet(folder, **options) as run:
            yield run
    finally:
        shutil.rmtree(folder, ignore_errors=True)
