"""What a watcher has done now and then, by a command of its own, so that it never hangs."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Sequence

from fsworker.protocol.records.run import LaunchMeta

log = logging.getLogger(__name__)


class Errand:
    """One command at a time, every `every` seconds, given up after `patience`. Monotonic times."""

    def __init__(self, argv: Sequence[str], every: float = 30.0, patience: float = 120.0) -> None:
        self._argv = [sys.executable, "-P", "-m", "ctl", *argv]
        self._every, self._patience = every, patience
        self._child: subprocess.Popen[bytes] | None = None
        self._begun = float("-inf")

    def turn(self, now: float) -> None:
        """Send it when it is due, see whether it came back."""
        if self._child is not None:
            if self._child.poll() is None and now - self._begun > self._patience:
                self._child.kill()
            if self._child.poll() is None:
                return
            self._child = None
        if now - self._begun >= self._every:
            self._begun = now
            try:
                null = subprocess.DEVNULL
                self._child = subprocess.Popen(self._argv, stdin=null, stdout=null, stderr=null)
            except OSError as error:
                log.warning("cannot run %s: %s", " ".join(self._argv[3:]), error)

    def close(self) -> None:
        """Let it end by itself: what it began is whole at any moment."""
        if self._child is not None and self._child.poll() is None:
            try:
                self._child.wait(5.0)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()


class Errands:
    """Those of a watcher: jobs of a batch system, and the run's aggregator, where it has them."""

    def __init__(self, root: str) -> None:
        self._scaling = Errand(["scale", "--step", "--root", root])
        self._merging = Errand(["aggregator", "keep", "--root", root])

    def turn(self, meta: LaunchMeta | None, aggregated: bool, now: float) -> None:
        """Send those that are due; a run that needs none sends nobody."""
        if meta is not None and meta.launcher == "slurm":
            self._scaling.turn(now)
        if aggregated:
            self._merging.turn(now)

    def close(self) -> None:
        """Let them end by themselves."""
        self._scaling.close()
        self._merging.close()
