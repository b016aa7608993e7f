"""One process tree in a session of its own, ended whole whatever it does.

The process itself gets TERM first, alone, as its chance to save; helpers are its own business while
it lives. Whatever is left of the tree then gets TERM for the rest of the grace, and KILL. The tree
is found by its parents (orphans come to us, the subreaper), and by a token in the environment, so
neither a session of its own nor a double fork hides a helper.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fsworker import identity
from fsworker.identity import Hunt, Left, Place
from fsworker.jobs.control import Control
from fsworker.life.lifetime import reap_children
from fsworker.protocol.records.run import Identity

log = logging.getLogger("fsworker.jobs.process")

TOKEN = "FLEET_ATTEMPT"  # noqa: S105  # what finds the tree; no secret
HASTE = 0.5
"""Seconds of grace where nobody wants what would be saved: a cancellation, a claim that is gone."""
HELPERS_GRACE = 2.0
"""Seconds that helpers get when their process has ended by itself."""
KILL_PATIENCE = 5.0
_LONGEST_PAUSE = 0.25

Why = Literal["exit", "timeout", "cancel", "drain", "gone"]


@dataclass(frozen=True)
class Ended:
    """How a process ended: why, its return code (minus the signal's number), and what is left."""

    why: Why
    code: int
    left: tuple[int, ...] = ()

    @property
    def by_signal(self) -> bool:
        """Whether a signal that is not ours ended it, also one below a shell."""
        return self.why == "exit" and (self.code < 0 or self.code in (128 + 9, 128 + 15))


@dataclass(frozen=True)
class Command:
    """What to run. Times in seconds; `token` is the value that finds its tree."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    log_fd: int
    token: str
    timeout: float
    grace: float
    pass_fds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Started:
    """A process that runs, and what it was started as."""

    command: Command
    child: subprocess.Popen[bytes]


def run(command: Command, place: Place, control: Control) -> Ended:
    """Run a process to its end. OSError when it cannot be started."""
    started = start(command)
    why = _see_through(started.child, command, control)
    return end_started(started, why, place, control)


def start(command: Command) -> Started:
    """Start a process in a session of its own. OSError when it cannot be."""
    child = subprocess.Popen(
        list(command.argv),
        stdin=subprocess.DEVNULL,
        stdout=command.log_fd,
        stderr=command.log_fd,
        env={**command.env, TOKEN: command.token},
        cwd=command.cwd,
        pass_fds=command.pass_fds,
        start_new_session=True,
        restore_signals=True,
    )
    return Started(command, child)


def end_started(started: Started, why: Why, place: Place, control: Control) -> Ended:
    """End what is left of a process and its tree, with the grace that the reason gives."""
    command, child = started.command, started.child
    grace = {"exit": min(command.grace, HELPERS_GRACE), "cancel": HASTE, "gone": HASTE}
    left = end(child, place, command.token, grace.get(why, command.grace), control)
    for one in left:
        log.error("pid %d of the job is left: %s", one.pid, one.state)
    return Ended(why, child.returncode or 0, tuple(one.pid for one in left))


def sweep(token: str, place: Place, control: Control) -> list[Left]:
    """End what an earlier runner of the same attempt left behind."""
    return end(None, place, token, HASTE, control)


def _see_through(child: subprocess.Popen[bytes], command: Command, control: Control) -> Why:
    """Wait for the end of the process, or for a reason to end it."""
    deadline = time.monotonic() + command.timeout
    watched = _pidfd(child.pid)
    if watched is not None:
        control.attach(watched, lambda: None)
    try:
        while child.poll() is None:
            if control.told is not None:
                return control.told
            left = deadline - time.monotonic()
            if left <= 0:
                return "timeout"
            control.listen(min(left, 1.0 if watched is not None else 0.1))
    finally:
        if watched is not None:
            control.detach(watched)
            os.close(watched)
    # Told and ended at once: who was told as well may have left its work unfinished.
    return "drain" if control.told == "drain" else "exit"


def end(
    child: subprocess.Popen[bytes] | None,
    place: Place,
    token: str,
    grace: float,
    control: Control,
) -> list[Left]:
    """End a tree within `grace` seconds, and then by force; what outlives that."""
    hunt = Hunt(place, seek=lambda: _holders(token, place), below=[os.getpid()])
    deadline = time.monotonic() + grace
    if child is not None and child.poll() is None:
        child.terminate()  # not reaped, so the pid is its own
        while child.poll() is None and (left := deadline - time.monotonic()) > 0:
            control.listen(min(left, 0.05))
    _pursue(hunt, signal.SIGTERM, deadline, control)
    _pursue(hunt, signal.SIGKILL, time.monotonic() + KILL_PATIENCE, control)
    left_over = hunt.left()
    if child is not None and child.poll() is None and not left_over:
        child.wait(KILL_PATIENCE)
    if child is None or child.returncode is not None:
        reap_children()
    return left_over


def _pursue(hunt: Hunt, signum: int, deadline: float, control: Control) -> None:
    pause = 0.01
    while hunt.pursue(signum, 0.0) and (left := deadline - time.monotonic()) > 0:
        control.listen(min(pause, left))
        pause = min(pause * 1.5, _LONGEST_PAUSE)


def _holders(token: str, place: Place) -> list[Identity]:
    return identity.find_by_environ({TOKEN: token}, place)


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None
