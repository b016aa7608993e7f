"""Waiting for what real processes do, and ending every process that a test started.

A test that sleeps and hopes is either slow or flaky. `wait_until` polls for the event itself with
a deadline that only a broken program reaches; `Spawned` ends, by identity, whatever was started.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


def wait_until(predicate: Callable[[], T], deadline: float = 120.0, what: str = "it") -> T:
    """The first true value of `predicate`, asked again and again; AssertionError if too late."""
    end = time.monotonic() + deadline
    pause = 0.005
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not happen within {deadline} s (last: {value!r})")
        time.sleep(pause)
        pause = min(0.1, pause * 1.5)


def proc_state(pid: int) -> str:
    """The state letter of a process (`R`, `S`, `D`, `Z`, `T`, …), or an empty string when gone."""
    try:
        data = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return data.rpartition(b")")[2].split()[0].decode()


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot: with the pid it names one process."""
    try:
        data = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(data.rpartition(b")")[2].split()[19])


def gone(pid: int) -> bool:
    """Whether the process has ended; one that only waits to be reaped counts as ended."""
    return proc_state(pid) in ("", "Z", "X")


def kill_at_once(*pids: int) -> None:
    """SIGKILL all of them, none of which gets time to notice the end of another."""
    for signum in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signum)


def with_environ(entry: str) -> list[int]:
    """The pids of all processes whose environment holds exactly this `KEY=VALUE`."""
    wanted, found = entry.encode(), []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            data = Path(f"/proc/{name}/environ").read_bytes()
        except OSError:
            continue
        if wanted in data.split(b"\0") and not gone(int(name)):
            found.append(int(name))
    return found


def stuck_argv(fifo: str) -> list[str]:
    """A command that stays in state D while nobody writes to `fifo`, and that KILL still ends.

    Who starts a program by vfork waits for it uninterruptibly; here the child never gets so far.
    """
    code = (
        "import os; print('up', flush=True); "
        "action = (os.POSIX_SPAWN_OPEN, 3, {fifo!r}, os.O_RDONLY, 0); "
        "os.posix_spawn('/bin/true', ['true'], {{}}, file_actions=[action])"
    )
    return [sys.executable, "-c", code.format(fifo=fifo)]


class Spawned:
    """Processes of one test: `start` them, `track` those they start; all are ended at the end.

    `entry` is an environment entry (`KEY=VALUE`) that every process of the test inherits, so that
    those are found too which nobody told us about.
    """

    def __init__(self, entry: str | None = None) -> None:
        self.entry = entry
        self._children: list[subprocess.Popen[bytes]] = []
        self._others: dict[int, int | None] = {}

    def __enter__(self) -> Spawned:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end_all()

    def start(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start a child with `env` added to the environment; it is killed and reaped at the end."""
        full = {**os.environ, **(env or {})}
        if self.entry:
            key, _, value = self.entry.partition("=")
            full[key] = value
        child: subprocess.Popen[bytes] = subprocess.Popen(list(argv), env=full, **options)
        self._children.append(child)
        return child

    def track(self, pid: int) -> int:
        """Remember a process that the test did not start itself; returns its pid."""
        self._others[pid] = start_ticks(pid)
        return pid

    def end_all(self) -> None:
        """Kill and reap everything."""
        for child in self._children:
            child.kill()
            child.wait()
            for stream in (child.stdin, child.stdout, child.stderr):
                if stream:
                    stream.close()
        for _ in range(50):
            mine = [p for p, t in self._others.items() if t is not None and start_ticks(p) == t]
            mine += with_environ(self.entry) if self.entry else []
            mine = [p for p in mine if p not in (1, os.getpid()) and not gone(p)]
            for pid in mine:
                _kill(pid)
            if not mine:
                return
            time.sleep(0.02)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
