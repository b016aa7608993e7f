"""A run with real workers in real processes, without `ctl`: for tests of what sends them work."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import Popen

from fsworker.errors import FormatError
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.records.run import Heartbeat
from tests.support.small_worker import make_run
from tests.support.waiting import Spawned, wait_until

REPO = str(Path(__file__).parents[2])
NOTE = "tests.support.client_functions:note"
MISBEHAVE = "tests.support.functions_for_tests:misbehave"


class Fleet:
    """A run root and its workers, one for each shard, ended with `spawned`."""

    def __init__(
        self,
        path: Path,
        spawned: Spawned,
        functions: Sequence[str] = (NOTE, MISBEHAVE),
        *,
        allow: Sequence[str] = (),
        pythonpath: str | None = None,
        shards: int = 2,
    ) -> None:
        self.root = make_run(path, functions, shards, allow=allow)
        self._env = {"PYTHONPATH": pythonpath} if pythonpath else None
        self.store = Store(self.root)
        self.workers: dict[str, Popen[bytes]] = {}
        self._spawned = spawned

    def start(self, *hosts: str, options: Mapping[str, Sequence[str]] | None = None) -> None:
        """Start workers, with further options for some, and wait until they are ready."""
        for host in hosts:
            argv = [sys.executable, "-m", "fsworker", "run", "--root", str(self.root)]
            argv += ["--host", host, "--shard", host.removeprefix("h"), "--concurrency", "2"]
            argv += ["--log-level", "WARNING", *(options or {}).get(host, ())]
            self.workers[host] = self._spawned.start(argv, cwd=REPO, env=self._env)
        for host in hosts:
            pid = self.workers[host].pid
            wait_until(lambda h=host, p=pid: self._ready(h, p), what=f"worker {host}")

    def kill(self, host: str) -> None:
        """End a worker as the kernel does when memory is short."""
        self.workers[host].kill()
        self.workers[host].wait()

    def stop(self, host: str) -> None:
        """End a worker gracefully."""
        self.workers[host].terminate()
        assert self.workers[host].wait(120) == 0

    def files(self) -> list[str]:
        """What lies where batches and results move."""
        found = []
        for top in (layout.INBOX, layout.CLAIMS, layout.OUTBOX):
            for folder, _, names in os.walk(self.root / top):
                found += [os.path.join(folder, name) for name in names]
        return found

    def _ready(self, host: str, pid: int) -> bool:
        path = layout.status_path(host)
        try:
            beat: Heartbeat = Heartbeat.from_json(self.store.read(path), path)
        except (FileNotFoundError, FormatError):
            return False
        return beat.ready and beat.pid == pid
