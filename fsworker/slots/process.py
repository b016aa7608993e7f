"""What makes a process a slot's: whose child it is, who inherits its orphans, which signals act.

And its descriptors 0 to 2, which belong to user code, and which user code may close.
"""

from __future__ import annotations

import ctypes
import faulthandler
import fcntl
import os
import select
import signal
import sys

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(signum: int, parent: int) -> bool:
    """Have the kernel send `signum` when the parent dies; False when it is dead already."""
    _libc.prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0)
    return os.getppid() == parent


def inherit_orphans() -> None:
    """Become the parent of descendants whose own parent ends, so that they can be found."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def become_slot(parent: int) -> None:
    """Turn a fresh child of the process `parent` into a place for user code."""
    os.setsid()
    if not die_with_parent(signal.SIGKILL, parent):
        os._exit(0)
    inherit_orphans()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for signum in (signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD, signal.SIGHUP):
        signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        faulthandler.enable()
    except (OSError, RuntimeError, ValueError, AttributeError):
        pass  # no usable stderr: a crash is reported by its signal alone


class Standard:
    """Descriptors 0 to 2 as they were."""

    def __init__(self) -> None:
        self._copies = {fd: _copy(fd) for fd in (0, 1, 2)}
        broken = select.poll()  # one call a task tells whether any of them was closed
        for fd in self._copies:
            broken.register(fd, 0)
        self.broken = broken.poll
        """Gives something when called with 0 and one of them was closed."""

    def restore(self) -> None:
        """Open again what a task closed, or later tasks would suffer."""
        for fd, copy in self._copies.items():
            try:
                fcntl.fcntl(fd, fcntl.F_GETFD)
            except OSError:
                os.dup2(copy, fd)
                _reopen(fd)


def _copy(fd: int) -> int:
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    except OSError:
        return os.open(os.devnull, os.O_RDWR)


def _reopen(fd: int) -> None:
    name, mode = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))[fd]
    stream = getattr(sys, name)
    if stream is None or stream.closed:
        setattr(sys, name, os.fdopen(fd, mode, buffering=1, closefd=False))
