"""What a contender can do. It lives in a process of its own, with two workers below it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

BENCH = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WORKERS = 2


class Contender:
    """Two workers that serve the functions of `workload`. `folder` is empty, and its own."""

    sizes: ClassVar = {"noop": 1_000, "grade": 1_000}
    """How many tasks it is given, so that a measurement takes a second or two."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._children: list[subprocess.Popen[bytes]] = []

    def open(self) -> None:
        """Start the workers and wait until they work."""

    def run(self, fn: str, tasks: Sequence[Any]) -> list[Any]:
        """All results, in the fastest way that it documents."""
        raise NotImplementedError

    def one(self, fn: str, task: Any) -> Any:
        """The result of one task."""
        return self.run(fn, [task])[0]

    def stream(self, fn: str, tasks: Sequence[Any]) -> Iterator[Any]:
        """Results as they come, in any order, each task handed out alone."""
        raise NotImplementedError

    def victim(self) -> int:
        """The pid of a worker that is executing."""
        raise NotImplementedError

    def close(self) -> None:
        """End what was started."""
        for child in self._children:
            end_group(child)

    def spawn(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a process in a group of its own, which `close` ends."""
        with open(f"{self.folder}/{len(self._children)}.log", "wb") as log:
            child = subprocess.Popen(
                argv,
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": BENCH, **options.pop("env", {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **options,
            )
        self._children.append(child)
        return child


def end_group(child: subprocess.Popen[bytes]) -> None:
    """End a process that `spawn` started, and its group."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(5)
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)  # what its leader left behind


def python(*argv: str) -> list[str]:
    """This environment's interpreter with arguments."""
    return [sys.executable, *argv]


def script(name: str) -> str:
    """A program of this environment."""
    return os.path.join(os.path.dirname(sys.executable), name)


def children_of(pid: int) -> list[int]:
    """Pids of the children of a process."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []
