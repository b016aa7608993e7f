"""One life of a worker as its parent sees it: started, signalled, reaped.

The chain of life is made here: the worker gets the read end of a pipe (`FLEET_LIFE_FD`) whose
write end only the wrapper has, so it sees end of file when the wrapper is gone, whatever killed
it. And the wrapper adopts orphans (a subreaper), so that what a dead worker leaves behind stays
below the wrapper in the tree even if it has left its session and cleared its environment.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence

from fsworker.life.hostlock import LOCK_FD_VARIABLE

LIFE_FD_VARIABLE = "FLEET_LIFE_FD"

_RESET = tuple(
    signal.Signals[name]
    for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGPIPE", "SIGTERM", "SIGCHLD", "SIGXFSZ")
)
_PR_SET_CHILD_SUBREAPER = 36


class Life:
    """A started worker. Its pid is safe to signal until `reap` has said that it ended."""

    def __init__(self, pid: int, incarnation: str, pipe: int) -> None:
        self.pid, self.incarnation = pid, incarnation
        self.code: int | None = None
        self._pipe: int | None = pipe
        self._began = time.monotonic()
        self._ended: float | None = None

    @property
    def lived(self) -> float:
        """Seconds from start to end, or to now."""
        return (self._ended or time.monotonic()) - self._began

    def reap(self) -> bool:
        """Collect every child that has ended, adopted ones too; whether the worker has."""
        for pid, code in reap_children():
            if pid == self.pid and self.code is None:
                self.code, self._ended = code, time.monotonic()
        return self.code is not None

    def signal(self, signum: int) -> None:
        """Signal the worker; it is our child and not reaped, so the pid is its own."""
        if self.code is None:
            os.kill(self.pid, signum)

    def close(self) -> None:
        """Close our end of the life pipe: whoever else listens on it ends now."""
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None


def spawn(
    argv: Sequence[str], env: Mapping[str, str], incarnation: str, log_fd: int | None, lock_fd: int
) -> Life:
    """Start a worker that holds the lock and the life pipe; raises OSError if it cannot be run."""
    reading, writing = os.pipe()
    output = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC) if log_fd is None else log_fd
    full = {
        **env,
        "FLEET_INCARNATION": incarnation,
        LIFE_FD_VARIABLE: str(reading),
        LOCK_FD_VARIABLE: str(lock_fd),
    }
    try:
        os.set_inheritable(reading, True)
        os.set_inheritable(lock_fd, True)
        pid = os.posix_spawnp(
            argv[0],
            list(argv),
            full,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, output, 2),
            ],
            setpgroup=0,
            setsigmask=[],
            setsigdef=_RESET,
        )
    except BaseException:
        os.close(writing)
        raise
    finally:
        os.close(reading)
        os.set_inheritable(lock_fd, False)
        if output != log_fd:
            os.close(output)
    return Life(pid, incarnation, writing)


def reap_children() -> list[tuple[int, int]]:
    """(pid, return code) of every child that has ended; the code is minus the signal's number."""
    found: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        found.append((pid, os.waitstatus_to_exitcode(status)))


def be_subreaper() -> bool:
    """Become the parent of all orphans below us; False where the system cannot."""
    try:
        import ctypes  # may be missing from a bare Python

        return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False
