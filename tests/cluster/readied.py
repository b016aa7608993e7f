"""A Python that has imported the project once and forks for each command, as a machine runs it.

    python -m tests.cluster.readied        reads commands from its input until that ends

An import takes an emulated processor seconds, and a test runs a dozen commands. Each is a process
of its own, with an environment, an exit code and an end of its own; only what it imports is there
already. A command is a line of JSON; so is its answer, once it has ended:

    {"id": 1, "words": ["-m", "ctl", "status"], "env": {…}, "file": null or where it says things}
    {"id": 1, "code": 0, "out": …, "err": …}
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import runpy
import select
import sys
import tempfile
from dataclasses import dataclass
from typing import IO, Any

PACKAGES = ("ctl",)
MODULES = ("fsworker.client", "paramiko", "tests.cluster.sender")


def import_all() -> None:
    """Import what commands need."""
    names = [
        found.name
        for package in PACKAGES
        for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.")
    ]
    for name in (*names, *MODULES):
        if not name.endswith("__main__"):
            importlib.import_module(name)


@dataclass
class Command:
    """One that runs, and the files that take what it says."""

    number: int
    pid: int
    out: IO[bytes]
    err: IO[bytes]

    def answer(self) -> str:
        """What it came to; it has ended."""
        _, status = os.waitpid(self.pid, 0)
        said = {}
        for name, file in (("out", self.out), ("err", self.err)):
            file.seek(0)
            said[name] = file.read().decode(errors="replace")
        self.out.close()
        self.err.close()
        code = os.waitstatus_to_exitcode(status)
        return json.dumps({"id": self.number, "code": code, **said})


class Desk:
    """Where commands come in, and where it is told what each came to."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._poll.register(0, select.POLLIN)
        self._running: dict[int, Command] = {}
        self._unread = b""
        self._asked: list[dict[str, Any]] = []

    def next(self) -> dict[str, Any] | None:
        """The next command; None once there will be none."""
        while not self._asked:
            for descriptor, _ in self._poll.poll():
                if descriptor:
                    self._poll.unregister(descriptor)
                    os.close(descriptor)
                    print(self._running.pop(descriptor).answer(), flush=True)
                elif not self._read():
                    return None
        return self._asked.pop(0)

    def _read(self) -> bool:
        read = os.read(0, 1 << 16)
        *lines, self._unread = (self._unread + read).split(b"\n")
        self._asked += map(json.loads, lines)
        return bool(read)

    def begin(self, asked: dict[str, Any]) -> bool:
        """Fork for a command; whether this is the process that is to run it."""
        out, err = _file(asked["file"]), _file(asked["file"])
        pid = os.fork()
        if pid:
            command = Command(asked["id"], pid, out, err)
            self._running[descriptor := os.pidfd_open(pid)] = command
            self._poll.register(descriptor, select.POLLIN)
            return False
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for new, old in ((nothing, 0), (out.fileno(), 1), (err.fileno(), 2)):
            os.dup2(new, old)
        os.environ.update(asked["env"])
        return True


def _file(name: str | None) -> IO[bytes]:
    return open(name, "a+b") if name else tempfile.TemporaryFile(dir="/run")


def run(words: list[str]) -> None:
    """As Python would, were it called with these words."""
    option, module, *arguments = words
    assert option == "-m", words
    sys.argv = [module, *arguments]
    sys.stdin, sys.stdout, sys.stderr = (open(n, m) for n, m in ((0, "r"), (1, "w"), (2, "w")))  # noqa: SIM115
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def main() -> None:
    import_all()
    print("{}", flush=True)
    desk = Desk()
    while asked := desk.next():
        if desk.begin(asked):
            return run(asked["words"])
    return None


if __name__ == "__main__":
    main()
