"""What runs inside a slot: user code in the main thread of a process of its own.

The main thread, because libraries set alarms there. A process of its own, because user code may
crash, exit, close descriptors or hang in C, and its neighbours must not notice. The slot leads a
session and inherits its orphaned descendants, so that everything that user code started can be
found and ended with it. Nothing here reads or writes descriptors 0 to 2: they belong to user code.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import fcntl
import json
import logging
import mmap
import os
import select
import signal
import socket
import sys
import time
from types import CoroutineType
from typing import Any

from fsworker import functions, outcomes
from fsworker.errors import FleetError
from fsworker.functions import Function
from fsworker.protocol import packing
from fsworker.slots import insisting
from fsworker.slots import wire as slot_wire
from fsworker.slots.decoding import limit_of, parse_task, read_ahead
from fsworker.slots.env import Variable
from fsworker.slots.memory import IDLE, Region, pack_entry
from fsworker.slots.serving import Served

log = logging.getLogger("fsworker.slots.main")

FLUSH_AFTER = 0.05
"""Seconds that a finished result waits at most for the next one before both are sent."""

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


class Slot:
    """Executes ranges of tasks until the worker is gone."""

    def __init__(self, sock: socket.socket, region: Region, served: Served) -> None:
        self._sock = sock
        self._region = region
        self._functions = served
        self._pid = os.getpid()
        self._flushed = time.monotonic()
        self._task_id = Variable("FLEET_TASK_ID")
        self._attempt = ""
        self._runner: asyncio.Runner | None = None
        self._standard = {fd: _copy(fd) for fd in (0, 1, 2)}
        self._broken = select.poll()  # one call a task tells whether any of them was closed
        for fd in self._standard:
            self._broken.register(fd, 0)

    def serve(self) -> None:
        """Take ranges until the socket closes."""
        self._sock.setblocking(True)
        self._sock.sendall(slot_wire.pack_frame(slot_wire.READY, self._pid))
        while (work := slot_wire.read_range(self._sock)) is not None:
            self._run_range(work)

    def _run_range(self, work: slot_wire.Range) -> None:
        attempt = str(work.meta.get("attempt", ""))
        if attempt != self._attempt:
            os.environ["FLEET_ATTEMPT"] = self._attempt = attempt
        function = self._functions.get(work.meta["fn"])
        self._flushed = now = time.monotonic()
        self._region.open(work.number)
        self._task_id.renew()
        for index, task in enumerate(read_ahead(work.records), work.first):
            if index >= self._region.limit():
                break
            if now - self._flushed >= FLUSH_AFTER:
                self._flush(work.number, slot_wire.RESULTS)
                now = self._flushed
            now = self._run_task(index, task, work, function, now)
        self._region.begin(IDLE, 0.0, 0.0)
        self._flush(work.number, slot_wire.FINISHED)

    def _run_task(
        self,
        index: int,
        task: Any,
        work: slot_wire.Range,
        function: Function | None,
        started: float,
    ) -> float:
        """Execute one task and keep its result; gives the time at its end."""
        self._region.begin(index, started, work.meta.get("timeout") or 0.0)
        task_id = None
        try:
            task_id, args, kwargs, options = parse_task(task)
            if options and "timeout" in options:
                self._region.begin(index, started, limit_of(options["timeout"]))
            if options and "blobs" in options:
                args, kwargs = _fetched(args, kwargs)
            if function is None:
                why = self._functions.why(work.meta["fn"])
                status, value = outcomes.REFUSED, outcomes.cause("Refused", why)
            else:
                label = f"{work.meta['batch']}:{index}" if task_id is None else str(task_id)
                self._task_id.set(label)
                status, value = self._call(function, args, kwargs)
                if status == outcomes.ERROR and work.meta.get("retries"):
                    status, value = self._insist(index, work, function, value)
        except ValueError as error:  # not a task, or an id that no environment can hold
            status, value = outcomes.INVALID, outcomes.cause("InvalidTask", str(error))
        ended = time.monotonic()
        status, data = _record(index, task_id, status, value, ended - started)
        self._keep(work.number, pack_entry(index, outcomes.CODES[status], ended - started, data))
        return ended

    def _call(self, function: Function, args: Any, kwargs: Any) -> tuple[str, Any]:
        """Run user code, whatever it does: (status, value)."""
        status, value = outcomes.OK, None
        try:
            value = function(*args, **kwargs)
            if isinstance(value, CoroutineType):
                value = self._await(value)
            signal.alarm(0)  # an alarm left over would hit the next task
        except BaseException as error:  # exit and interrupt too: they end the task, not the slot
            signal.alarm(0)
            status, value = outcomes.ERROR, outcomes.raised(error)
        if os.getpid() != self._pid:
            os._exit(0)  # user code forked, and its child came back here: it has no business here
        if self._broken.poll(0):
            self._restore_standard()
        return status, value

    def _insist(
        self, index: int, work: slot_wire.Range, function: Function, value: Any
    ) -> tuple[str, Any]:
        """Try a task that raised again, as its batch asks for: (status, value)."""
        status, tries, limit = outcomes.ERROR, 0, self._region.state().timeout
        while status == outcomes.ERROR:
            pause = insisting.pause(work.meta["retries"], tries, value)
            if pause is None:
                break
            tries += 1
            self._region.begin(index, time.monotonic(), 0.0)
            time.sleep(pause)
            # As it was sent: the function may have changed what it was given.
            _, args, kwargs, options = parse_task(work.records[index - work.first])
            if "blobs" in options:
                args, kwargs = _fetched(args, kwargs)
            self._region.begin(index, time.monotonic(), limit)
            status, value = self._call(function, args, kwargs)
        return status, value

    def _restore_standard(self) -> None:
        """Open again what a task closed of descriptors 0 to 2, or later tasks would suffer."""
        for fd, copy in self._standard.items():
            try:
                fcntl.fcntl(fd, fcntl.F_GETFD)
            except OSError:
                os.dup2(copy, fd)
                _reopen(fd)

    def _await(self, coroutine: Any) -> Any:
        """Run a coroutine to its end in an event loop that later tasks use again."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        try:
            return self._runner.run(_alone(coroutine))
        except BaseException as error:
            if not isinstance(error, Exception):
                self._runner = None  # the loop was left in the middle
            raise

    def _keep(self, number: int, packed: bytes) -> None:
        if self._region.append(packed):
            return
        self._flush(number, slot_wire.RESULTS)
        if not self._region.append(packed):
            self._sock.sendall(slot_wire.pack_frame(slot_wire.RESULTS, number, packed))

    def _flush(self, number: int, kind: int) -> None:
        data = self._region.unsent()
        if data or kind == slot_wire.FINISHED:
            self._sock.sendall(slot_wire.pack_frame(kind, number, data))
        self._region.clear()
        self._flushed = time.monotonic()


def _fetched(args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    """Arguments with what was sent in files of its own. Raises ValueError."""
    from fsworker import blob  # seldom needed, and not free

    return blob.fetch_all(os.environ.get("FLEET_RUN_ROOT", ""), args, kwargs)


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


async def _alone(coroutine: Any) -> Any:
    """The coroutine's value; tasks that it left behind are ended with it, as asyncio.run does."""
    try:
        return await coroutine
    finally:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.gather(*left, return_exceptions=True)


def _record(index: int, task_id: Any, status: str, value: Any, elapsed: float) -> tuple[str, bytes]:
    """(status, result record); a value that cannot be sent makes the result an invalid one."""
    try:
        data = outcomes.record(index, task_id, status, value, elapsed)
        if len(data) <= slot_wire.MAX_RECORD:
            return status, data
        told = f"the result has {len(data)} bytes, {slot_wire.MAX_RECORD} is the limit"
        why = outcomes.cause("ResultTooLarge", told)
    except BaseException as error:  # the value's own methods run here
        kind = "InvalidResult" if isinstance(error, packing.Unpackable) else type(error).__name__
        why = outcomes.cause(
            kind, f"the result cannot be sent: {outcomes.raised(error)['message']}"
        )
    return outcomes.INVALID, outcomes.record(index, task_id, outcomes.INVALID, why, elapsed)


def main() -> None:
    """A spawned slot: `python -m fsworker.slots.main '<json>'`, started by the zygote."""
    request = json.loads(sys.argv[1])
    become_slot(request["parent"])
    sock = socket.socket(fileno=request["socket"])
    memory = mmap.mmap(request["memory"], 0)
    os.close(request["memory"])
    os.set_inheritable(sock.fileno(), False)
    try:
        served = Served(functions.load(request["functions"]), request["allow"])
    except FleetError as error:
        sock.sendall(slot_wire.pack_frame(slot_wire.FAILED, 0, str(error).encode()))
        return
    sock.setblocking(True)
    Slot(sock, Region(memory, request["slot"]), served).serve()


if __name__ == "__main__":
    main()
