"""Commands for the Python on a machine that has imported the project already (`readied`)."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from tests.rigs.hosts import REPO
from tests.rigs.vm import Machine

Done = subprocess.CompletedProcess[str]


class Calls:
    """One such Python, at the other end of a connection that is kept."""

    def __init__(self, machine: Machine) -> None:
        command = f"env PYTHONPATH={REPO} {sys.executable} -m tests.cluster.readied"
        self._child = subprocess.Popen(
            machine.ssh_argv(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Done]] = {}
        self._count = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def well(self) -> bool:
        """Whether it takes commands."""
        return self._child.poll() is None

    def begin(
        self, words: Sequence[str], env: Mapping[str, str], file: str | None = None
    ) -> Future[Done]:
        """Run a command, `-m`, a module, and its arguments; what it says goes to `file`, if any."""
        future: Future[Done] = Future()
        with self._lock:
            self._count += 1
            self._waiting[self._count] = future
            asked = {"id": self._count, "words": list(words), "env": dict(env), "file": file}
            assert self._child.stdin
            self._child.stdin.write(json.dumps(asked) + "\n")
        return future

    def close(self) -> None:
        """Let it go; what it has begun goes on."""
        with self._child:
            self._child.terminate()
            self._reader.join()

    def _read(self) -> None:
        assert self._child.stdout
        for line in self._child.stdout:
            told: dict[str, Any] = json.loads(line)
            if told:
                future = self._waiting.pop(told["id"])
                future.set_result(Done([], told["code"], told["out"], told["err"]))
        for future in list(self._waiting.values()):
            future.set_exception(ConnectionError("whoever runs commands there has ended"))


_KEPT: dict[str, Calls] = {}


def prepare(machine: Machine) -> None:
    """Let there be one on this machine; it begins to import."""
    _KEPT[str(machine.folder)] = Calls(machine)


def prepared(machine: Machine) -> Calls | None:
    """The one on this machine, where there is to be one."""
    kept = _KEPT.get(str(machine.folder))
    if kept and not kept.well:
        prepare(machine)
        return _KEPT[str(machine.folder)]
    return kept


def close_all() -> None:
    """End all of them."""
    while _KEPT:
        _KEPT.popitem()[1].close()
