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
            code = self._child.poll()
            if code is None:
                return
            if code:
                log.warning("ctl %s ended with %d", " ".join(self._argv[4:]), code)
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
    """Those of a watcher: jobs of a batch system, the run's aggregator, where it has them, and
    once a day that a purge spares the run's files."""

    def __init__(self, root: str) -> None:
        self._scaling = Errand(["scale", "--step", "--root", root])
        self._merging = Errand(["aggregator", "keep", "--root", root])
        # What it had no time for it goes on with: a pass may be cut short.
        self._renewing = Errand(["renew", "--root", root], every=3600.0, patience=1200.0)

    def turn(
        self, meta: LaunchMeta | None, now: float, *, aggregated: bool = False, old: bool = False
    ) -> None:
        """Send those that are due; a run that needs none sends nobody. `old`: renewal is due."""
        if meta is not None and meta.launcher == "slurm":
            self._scaling.turn(now)
        if aggregated:
            self._merging.turn(now)
        if old:
            self._renewing.turn(now)

    def close(self) -> None:
        """Let them end by themselves."""
        self._scaling.close()
        self._merging.close()
        self._renewing.close()
