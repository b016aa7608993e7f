"""The worker's end of its zygote: start it, order slots from it, hear what became of them.

It also cleans up after a zygote that died itself: the worker inherits what is left below it, which
is why it can be ended without a doubt about whose pids these are.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fsworker import bundled, procfs
from fsworker.executors import Setting
from fsworker.procfs import children, kill_group
from fsworker.slots.zygote import MESSAGE

log = logging.getLogger("fsworker.slots.zygote")

THREAD_CAPS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_PRIVATE = ("FLEET_LIFE_FD", "FLEET_LOCK_FD")
_FOR_JOBS = "FLEET_PASS_ENV"
CLOSE_PATIENCE = 6.0
PING_PATIENCE = 3.0
"""Seconds that a zygote may take to answer; it never does anything that takes long."""


def slot_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """What user code finds in its environment, complete before its modules are imported.

    Secrets that the host was given for jobs that ask for them are not in it.
    """
    env = {**os.environ, **extra}
    for name in (*_PRIVATE, *env.pop(_FOR_JOBS, "").split(",")):
        env.pop(name, None)
    for name in THREAD_CAPS:
        env.setdefault(name, "1")  # one slot is one core's worth of work
    return env


class ZygoteLink:
    """One zygote process, from its start to its end."""

    def __init__(self, setting: Setting, memory_fd: int) -> None:
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.setblocking(False)
        self._asked: float | None = None
        self._answered = False
        self.killed = False
        request = {
            "control": theirs.fileno(),
            "memory": memory_fd,
            "functions": list(setting.functions),
            "allow": list(setting.allow),
            "slot_mem": setting.terms.memory,
            "places": setting.terms.coroutines,
            "start": setting.slot_start,
            "parent": os.getpid(),
        }
        with theirs:
            self._process = subprocess.Popen(
                [*bundled.command("fsworker.slots.zygote"), json.dumps(request)],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), memory_fd),
                env=slot_environment(setting.env),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The zygote's pid."""
        return self._process.pid

    def fileno(self) -> int:
        """Readable when `receive` has something."""
        return self._sock.fileno()

    def order_start(
        self, slot: int, env: Mapping[str, str], socks: Sequence[socket.socket]
    ) -> bool:
        """Ask for a process that talks over `socks`, one for each of its places.

        False when the zygote cannot take it now.
        """
        message = json.dumps({"do": "start", "slot": slot, "env": dict(env)}).encode()
        try:
            socket.send_fds(self._sock, [message], [sock.fileno() for sock in socks])
        except OSError:
            return False
        return True

    def order_kill(self, pid: int) -> bool:
        """Ask for a slot's end, with all that it started."""
        return self._order({"do": "kill", "pid": pid})

    def answers(self, now: float) -> bool | None:
        """Whether the zygote does what it is told; None while that is being asked: ask again."""
        if self._asked is None:
            self._asked, self._answered = now, False
            self._order({"do": "ping"})
            return None
        if not self._answered and now < self._asked + PING_PATIENCE:
            return None
        self._asked = None
        return self._answered

    def receive(self) -> tuple[list[dict[str, Any]], bool]:
        """(what the zygote said, whether it is there)."""
        messages: list[dict[str, Any]] = []
        while True:
            try:
                data = self._sock.recv(MESSAGE)
            except BlockingIOError:
                return messages, True
            except OSError:
                data = b""
            if not data:
                return messages, False
            message = json.loads(data)
            if message["is"] == "pong":
                self._answered = True
            else:
                messages.append(message)

    def ended_how(self, patience: float = 1.0) -> tuple[str, int]:
        """How a zygote that is not there any more ended; it is reaped."""
        try:
            code = self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self._process.wait()
        return ("signal", -code) if code < 0 else ("exit", code)

    def kill(self) -> None:
        """End a zygote that does not answer."""
        self.killed = True
        self._process.kill()

    def _order(self, order: dict[str, Any]) -> bool:
        try:
            self._sock.send(json.dumps(order).encode())
        except OSError:
            return False
        return True

    def close(self) -> None:
        """End the zygote and every slot of it, and wait until they are gone."""
        self._sock.close()
        self._process.terminate()  # it may still be importing, and deaf to its socket
        self.ended_how(CLOSE_PATIENCE)


def end_inherited(slots: Collection[int], spared: Collection[int], patience: float = 2.0) -> None:
    """End what a dead zygote left to us: its slots, and everything that those had started.

    What is below us and neither in `spared` nor started by us came from there; our own children
    cannot be confused with other processes while we have not reaped them.
    """
    deadline = time.monotonic() + patience
    while left := children() - set(spared):
        for pid in left:
            if pid in slots:
                kill_group(pid)
            else:
                _kill(pid)
        for pid in left:
            _reap(pid)
        if time.monotonic() > deadline:
            log.warning("processes %s of ended slots cannot be ended yet", sorted(left))
            return
        time.sleep(0.002)


def lives(pid: int, parent: int) -> bool:
    """Whether a process is still that child of `parent`, and no zombie."""
    stat = procfs.read_stat(pid)
    if stat is None or stat.ppid != parent:
        return False
    return stat.state not in "ZXx" or procfs.has_live_thread(pid)


def is_gone(pid: int) -> bool:
    """Whether there is no such process any more; if it is our own child, it is reaped."""
    _reap(pid)
    return procfs.read_stat(pid) is None


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass
