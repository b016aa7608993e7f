"""The clean process that slots are forked from, and their parent.

It imports the functions once, so that a lost slot is replaced in milliseconds; it runs no task, so
that no task can spoil what later slots start from. As the parent of every slot it is the one that
knows for certain which pids are still theirs: it alone kills slots, ends what they leave behind,
reaps, and reports how each ended. When the worker is gone, however it went, it ends everything
below it and itself.

worker to zygote:

    {"do": "start", "slot": n, "env": {…}}    with its end of a socket for each of its places
    {"do": "kill", "pid": p}
    {"do": "ping"}

zygote to worker:

    {"is": "loaded", "threads": n, "sources": {name: digest, …} or null}
    {"is": "refused", "why": sentence}
    {"is": "started", "slot": n, "pid": p}    or {"is": "failed", "slot": n, "why": words}
    {"is": "ended", "slot": n, "pid": p, "how": "exit" or "signal", "code": c}
    {"is": "pong"}

Each message is one JSON datagram.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from fsworker import bundled, functions, procfs
from fsworker.errors import FleetError
from fsworker.functions import Function
from fsworker.inventory import software
from fsworker.protocol.records.slots import MOST_COROUTINES
from fsworker.slots import conditions, process
from fsworker.slots import main as slot_main
from fsworker.slots.serving import Served

MESSAGE = 64 * 1024
LAST_PATIENCE = 5.0
"""Seconds to wait at the end for processes that were killed to be gone."""


class Zygote:
    """The parent of slots, driven by one worker over `control`."""

    def __init__(self, control: socket.socket, memory_fd: int, request: dict[str, Any]) -> None:
        self._control = control
        self._memory_fd = memory_fd
        self._memory = mmap.mmap(memory_fd, 0)
        self._functions: list[str] = request["functions"]
        self._allow: list[str] = request["allow"]
        self._slot_mem: int | None = request.get("slot_mem")
        self._forks: bool = request["start"] == "fork"
        self._known: dict[str, Function] = {}
        self._sources: dict[str, str | None] | None = None
        self._slots: dict[int, int] = {}
        self._spawned: dict[int, subprocess.Popen[bytes]] = {}
        self._spared: set[int] = set()
        self._over = False

    def run(self) -> int:
        """Serve until the worker is gone or asks for the end."""
        if self._forks and not self._load():
            return 1
        wake, waker = socket.socketpair()
        for end in (wake, waker):
            end.setblocking(False)
        self._arm(waker.fileno())
        threads = len(os.listdir("/proc/self/task"))
        self._tell({"is": "loaded", "threads": threads, "sources": self._sources})
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(wake, selectors.EVENT_READ)
            while not self._over:
                events = selector.select(5.0)
                for key, _ in events:
                    if key.fileobj is wake:
                        wake.recv(4096)
                    else:
                        self._obey()
                if self._reap() or not events:
                    self._end_orphans()
        self._end()
        return 0

    def _load(self) -> bool:
        try:
            self._known = functions.load(self._functions)
            conditions.check(self._slot_mem)
        except FleetError as error:
            self._tell({"is": "refused", "why": str(error)[:8000]})
            return False
        self._sources = software.sources(self._known)
        for stream in (sys.stdout, sys.stderr):
            _line_by_line(stream)
        self._spared = procfs.children()
        gc.collect()
        gc.freeze()  # what was imported is shared by all slots, as long as nobody touches it
        return True

    def _arm(self, waker: int) -> None:
        """Our own signal handlers; user modules may have set theirs while they were imported."""
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def _stop(self, *_: object) -> None:
        self._over = True

    def _obey(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._control, MESSAGE, MOST_COROUTINES)
        except OSError:
            data, fds = b"", []
        if not data:
            self._over = True
            return
        order = json.loads(data)
        if order["do"] == "start":
            self._start(order["slot"], order.get("env") or {}, fds)
        elif order["do"] == "kill" and order["pid"] in self._slots:
            procfs.kill_group(order["pid"])
        elif order["do"] == "ping":
            self._tell({"is": "pong"})

    def _start(self, slot: int, env: dict[str, str], fds: list[int]) -> None:
        try:
            pid = self._fork(slot, env, fds) if self._forks else self._spawn(slot, env, fds)
        except OSError as error:
            self._tell({"is": "failed", "slot": slot, "why": f"cannot start a process: {error}"})
        else:
            self._slots[pid] = slot
            self._tell({"is": "started", "slot": slot, "pid": pid})
        finally:
            for fd in fds:
                os.close(fd)

    def _fork(self, slot: int, env: dict[str, str], fds: list[int]) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            process.become_slot(parent)
            self._control.close()
            os.environ.update(env)
            _reseed()
            socks = [socket.socket(fileno=os.dup(fd)) for fd in fds]
            for fd in fds:
                os.close(fd)
            served = Served(self._known, self._allow)
            slot_main.serve(socks, self._memory, slot, served, self._slot_mem)
            code = 0
        except BrokenPipeError:
            code = 0  # the worker is gone: nobody is there to tell, and nothing is wrong here
        except BaseException:  # never back into the zygote's own code
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)

    def _spawn(self, slot: int, env: dict[str, str], fds: list[int]) -> int:
        request = {
            "parent": os.getpid(),
            "sockets": fds,
            "memory": self._memory_fd,
            "slot": slot,
            "functions": self._functions,
            "allow": self._allow,
            "slot_mem": self._slot_mem,
        }
        argv = [*bundled.command("fsworker.slots.main"), json.dumps(request)]
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            pass_fds=(*fds, self._memory_fd),
            env={**os.environ, **env},
        )
        self._spawned[child.pid] = child
        return child.pid

    def _reap(self) -> bool:
        """Reap what ended and report the slots among it; whether anything had."""
        ended = False
        while (gone := _next_ended()) is not None:
            pid, how, code = gone
            ended = True
            slot = self._slots.pop(pid, None)
            if slot is not None:
                procfs.kill_group(pid)  # still a zombie, so the group cannot be anybody else's
            os.waitpid(pid, 0)
            child = self._spawned.pop(pid, None)
            if child is not None:
                child.returncode = 0  # it is reaped: nobody must wait for it again
            if slot is not None:
                self._tell({"is": "ended", "slot": slot, "pid": pid, "how": how, "code": code})
        return ended

    def _end_orphans(self) -> None:
        # Slots inherit their own orphans, so those that are ours belonged to slots that ended.
        for orphan in procfs.children() - self._slots.keys() - self._spared:
            _kill(orphan)

    def _end(self) -> None:
        deadline = time.monotonic() + LAST_PATIENCE
        for pid in self._slots:
            procfs.kill_group(pid)
        self._spared = set()
        while (left := procfs.children()) and time.monotonic() < deadline:
            for pid in left:
                _kill(pid)
            self._reap()
            time.sleep(0.002)

    def _tell(self, message: dict[str, Any]) -> None:
        try:
            self._control.send(json.dumps(message).encode())
        except OSError:
            self._over = True


def _next_ended() -> tuple[int, str, int] | None:
    """(pid, how, code) of a child that ended and is not reaped yet."""
    try:
        info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    if info is None:
        return None
    how = "exit" if info.si_code == os.CLD_EXITED else "signal"
    return info.si_pid, how, info.si_status


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _reseed() -> None:
    """Give this slot random numbers of its own where the library does not do so at a fork."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy.random" in sys.modules:
        numpy.random.seed()


def _line_by_line(stream: Any) -> None:
    try:
        stream.flush()
        stream.reconfigure(line_buffering=True)  # or prints of a killed slot are lost
    except (AttributeError, ValueError, OSError):
        pass


def main() -> int:
    """`python -m fsworker.slots.zygote '<json>'`, started by a worker with its control socket."""
    request = json.loads(sys.argv[1])
    control = socket.socket(fileno=request["control"])
    for fd in (request["control"], request["memory"]):
        os.set_inheritable(fd, False)
    process.inherit_orphans()
    # TERM, not KILL: what slots left in sessions of their own must be ended by somebody.
    if not process.die_with_parent(signal.SIGTERM, request["parent"]):
        return 0
    return Zygote(control, request["memory"], request).run()


if __name__ == "__main__":
    sys.exit(main())
