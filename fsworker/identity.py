"""Who a process is, whether it is provably dead, and how to end it without hitting another.

Pid files lie: pids are reused, a shared folder shows pids of other machines, a container counts
its own. So a process is known by host, boot, pid namespace, pid and start time together, and
nothing is signalled that does not match all of them at the moment of the signal. What cannot be
told is said to be unknown, which is never a reason to act.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from fsworker import procfs
from fsworker.protocol.records.run import Identity

log = logging.getLogger("fsworker.identity")

State = Literal["alive", "dead", "zombie", "stuck", "other", "unknown"]
"""`stuck`: in state D, cannot be killed now. `other`: that pid is another process by now."""

PROVABLY_DEAD: frozenset[State] = frozenset({"dead", "zombie", "other"})
RUNNING: frozenset[State] = frozenset({"alive", "stuck"})

_NO_PIDFD = (errno.ENOSYS, errno.EPERM)


@dataclass(frozen=True, slots=True)
class Place:
    """Where pids mean something: a host by its allowed name, one boot of it, one pid namespace."""

    host: str
    boot_id: str
    pid_ns: str

    @classmethod
    def here(cls, host: str) -> Place:
        """The place this process is in; `host` is the name under which the machine is allowed."""
        return cls(host, procfs.boot_id(), procfs.pid_namespace())

    def identify(self, stat: procfs.Stat) -> Identity:
        """The identity of a process that was read here."""
        return Identity(self.host, self.boot_id, self.pid_ns, stat.pid, stat.start)


@dataclass(frozen=True, slots=True)
class Left:
    """A process that could not be ended, and why: its state."""

    pid: int
    state: State


def identify(pid: int, place: Place) -> Identity | None:
    """The identity of the process that has this pid now, or None when there is none."""
    stat = procfs.read_stat(pid)
    return place.identify(stat) if stat else None


def judge(
    recorded: Identity, place: Place, stat: procfs.Stat | None, live_thread: bool = False
) -> State:
    """What a reading of the recorded pid (None: no such process) proves about that process."""
    if recorded.host != place.host or not (recorded.boot_id and place.boot_id):
        return "unknown"
    if recorded.boot_id != place.boot_id:
        return "dead"
    if recorded.pid_ns != place.pid_ns or not place.pid_ns:
        return "unknown"
    if stat is None:
        return "dead"
    if stat.start != recorded.start:
        return "other"
    if stat.state in "ZXx":
        return "alive" if live_thread else "zombie"
    return "stuck" if stat.state == "D" else "alive"


def state_of(recorded: Identity, place: Place, patience: float = 0.0) -> State:
    """What is known of a recorded process now.

    Every process is in state D for moments, while it waits for a disk; `stuck` is believed only
    when each look within `patience` seconds says so.
    """
    end = time.monotonic() + patience
    while True:
        stat = procfs.read_stat(recorded.pid)
        state = judge(recorded, place, stat, procfs.has_live_thread(recorded.pid))
        if state == "dead" and stat is None and _hidden(recorded.pid):
            return "unknown"
        if state != "stuck" or time.monotonic() >= end:
            return state
        time.sleep(0.05)


def provably_dead(recorded: Identity, place: Place) -> bool:
    """Whether the recorded process has ended for certain: only then may it be replaced."""
    return state_of(recorded, place) in PROVABLY_DEAD


def send(recorded: Identity, signum: int, place: Place) -> bool:
    """Signal exactly the recorded process; False, and nothing is sent, if it is not proven.

    The pid is pinned by a pidfd before the identity is checked, so it cannot be reused between.
    """
    pid = recorded.pid
    if pid <= 1 or pid == os.getpid():
        return False
    try:
        fd = os.pidfd_open(pid)
    except OverflowError:
        return False
    except OSError as error:
        if error.errno not in _NO_PIDFD:
            return False
        # Kernels before 5.3: the check and the signal are as close together as they can be.
        return _deliver(recorded, place, lambda: os.kill(pid, signum))
    try:
        return _deliver(recorded, place, lambda: signal.pidfd_send_signal(fd, signum))
    finally:
        os.close(fd)


def find_by_environ(wanted: Mapping[str, str], place: Place) -> list[Identity]:
    """All living processes that were started with every one of these environment entries."""
    found = []
    for pid in procfs.pids():
        before = procfs.read_stat(pid)
        if before and procfs.holds(procfs.environ(pid), wanted):
            after = procfs.read_stat(pid)
            if after and after.start == before.start and after.state not in "ZXx":
                found.append(place.identify(after))
    return found


def end_tree(
    roots: Iterable[Identity],
    place: Place,
    *,
    tokens: Mapping[str, str] | None = None,
    grace: float = 2.0,
    kill_patience: float | None = 5.0,
    below: Iterable[int] = (),
    spare: Collection[int] = (),
) -> list[Left]:
    """End `roots`, all their descendants, and every process that holds `tokens` in its environment.

    TERM, then after `grace` seconds KILL (never, when `kill_patience` is None), looking again for
    newly started ones until none is left or `kill_patience` has passed. `below` are processes
    whose descendants are meant but not they themselves. Returns what is left.
    """
    seek = (lambda: find_by_environ(tokens, place)) if tokens else None
    hunt = Hunt(place, roots, seek=seek, below=below, spare=spare)
    left = hunt.pursue(signal.SIGTERM, grace) if grace > 0 else hunt.look()
    if left and kill_patience is not None:
        hunt.pursue(signal.SIGKILL, kill_patience)
    return hunt.left()


class Hunt:
    """The pursuit of a tree of processes: what was once seen as part of it stays part of it.

    `seek` finds more of them than the tree of parents shows. The process that hunts and those
    above it are spared, unless they are among `roots`.
    """

    def __init__(
        self,
        place: Place,
        roots: Iterable[Identity] = (),
        *,
        seek: Callable[[], list[Identity]] | None = None,
        below: Iterable[int] = (),
        spare: Collection[int] = (),
    ) -> None:
        self._place, self._seek, self._below = place, seek, tuple(below)
        me = os.getpid()
        self._never = {0, 1, me, *procfs.ancestors(me), *spare}
        self._seen: dict[Identity, None] = dict.fromkeys(roots)
        self._signalled: set[tuple[Identity, int]] = set()

    def look(self) -> list[Identity]:
        """Everything of the tree that lives now."""
        below = [who.pid for who in self._living()] + list(self._below)
        found = [self._place.identify(stat) for stat in procfs.descendants(below)]
        if self._seek:
            found += self._seek()
        self._seen.update(dict.fromkeys(who for who in found if who.pid not in self._never))
        return self._living()

    def pursue(
        self,
        signum: int,
        patience: float,
        *,
        tops_only: bool = False,
        instead: Mapping[Identity, int] | None = None,
    ) -> list[Identity]:
        """Signal each of them once, and newcomers as they appear, until none lives.

        With `tops_only` one is signalled only when nothing of the tree is above it: it is left to
        end those below it in its own way. `instead` names other signals for some.
        """
        signals = instead or {}
        end, pause = time.monotonic() + patience, 0.01
        while True:
            living = self.look()
            for who in _tops(living) if tops_only else living:
                this = who, signals.get(who, signum)
                if this not in self._signalled and send(*this, self._place):
                    self._signalled.add(this)
            if not living or time.monotonic() >= end:
                return living
            time.sleep(max(0.0, min(pause, end - time.monotonic())))
            pause = min(0.5, pause * 1.5)

    def left(self) -> list[Left]:
        """What of it still runs, with its state."""
        states = [(who.pid, state_of(who, self._place, patience=0.2)) for who in self.look()]
        return [Left(pid, state) for pid, state in states if state in RUNNING]

    def _living(self) -> list[Identity]:
        return [who for who in self._seen if state_of(who, self._place) in RUNNING]


def _tops(living: list[Identity]) -> list[Identity]:
    """Those whose parent is not among them, or is stopped and so cannot pass anything on."""
    stats = {who.pid: procfs.read_stat(who.pid) for who in living}
    active = {pid for pid, stat in stats.items() if stat and stat.state not in "Tt"}
    return [who for who in living if (s := stats[who.pid]) and s.ppid not in active]


def _hidden(pid: int) -> bool:
    """Whether the kernel hides an existing process of another user (hidepid) from us."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        pass
    return False


def _deliver(recorded: Identity, place: Place, deliver: Callable[[], None]) -> bool:
    if state_of(recorded, place) not in RUNNING:
        return False
    try:
        deliver()
    except ProcessLookupError:
        return False
    except PermissionError:
        log.warning("not allowed to signal process %d of %s", recorded.pid, recorded.host)
        return False
    return True
