"""What runs inside a slot: user code in the main thread of a process of its own.

The main thread, because libraries set alarms there. A process of its own, because user code may
crash, exit, close descriptors or hang in C, and its neighbours must not notice. The slot leads a
session and inherits its orphaned descendants, so that everything that user code started can be
found and ended with it. Nothing here reads or writes descriptors 0 to 2: they belong to user code.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import socket
import sys
import time
from collections.abc import Sequence
from types import CoroutineType
from typing import Any

from fsworker import functions, outcomes
from fsworker.errors import FleetError
from fsworker.functions import Function
from fsworker.inventory import software
from fsworker.slots import insisting
from fsworker.slots import wire as slot_wire
from fsworker.slots.aftermath import Aftermath
from fsworker.slots.awaiting import Awaiter
from fsworker.slots.conditions import Conditions, check, confine
from fsworker.slots.decoding import Calls, Stretch, limit_of, one_by_one, parse_task, stretches
from fsworker.slots.env import MOST, Numbers, Variable
from fsworker.slots.memory import IDLE, Entry, Region, pack_entry
from fsworker.slots.process import become_slot
from fsworker.slots.recording import fetched, result_record
from fsworker.slots.serving import Served
from fsworker.slots.sprint import BURST_BYTES, Sprinter
from fsworker.slots.wire import Range

log = logging.getLogger("fsworker.slots.main")

FLUSH_AFTER = 0.05
"""Seconds that a finished result waits at most for the next one before both are sent."""


class Slot:
    """Executes ranges of tasks until the worker is gone."""

    def __init__(
        self, sock: socket.socket, region: Region, served: Served, slot_mem: int | None = None
    ) -> None:
        self._sock = sock
        self._region = region
        self._functions = served
        self._flushed = time.monotonic()
        self._task_id, self._numbers = Variable("FLEET_TASK_ID"), Numbers()
        self._attempt = ""
        self._slot_mem = slot_mem
        self._conditions: Conditions | None = None
        self._invoke = self._call
        self._spent = False
        """A call went over the memory limit: what it left may hold memory for ever."""
        self._aftermath, self._awaiter = Aftermath(), Awaiter()
        self._sprinter = Sprinter(region, self._aftermath.settle, self._awaiter.run)

    def serve(self) -> None:
        """Take ranges until the socket closes."""
        self._sock.setblocking(True)
        self._sock.sendall(slot_wire.pack_frame(slot_wire.READY, os.getpid(), self._functions.told))
        while (work := slot_wire.read_range(self._sock)) is not None:
            self._run_range(work)
            if self._spent:
                return  # the worker starts another one

    def _run_range(self, work: Range) -> None:
        attempt = str(work.meta.get("attempt", ""))
        if attempt != self._attempt:
            os.environ["FLEET_ATTEMPT"] = self._attempt = attempt
        function = self._functions.get(work.meta["fn"])
        self._conditions = Conditions.of(work.meta, self._slot_mem)
        self._invoke = self._call if self._conditions is None else self._call_apart
        self._flushed = time.monotonic()
        self._region.open(work.number)
        self._task_id.renew()
        apart = function is None or self._conditions is not None or work.end > MOST
        for stretch in one_by_one(work) if apart else stretches(work):
            if stretch.first >= self._region.limit_mark[0]:
                break
            if stretch.calls is None or function is None:
                self._run_alone(stretch, work, function)
            else:
                self._run_stretch(stretch.calls, stretch.first, work, function)
            if self._spent:
                break
        self._region.begin(IDLE, 0.0, 0.0)
        # A range that is not finished is handed out again when the process has ended.
        self._flush(work.number, slot_wire.RESULTS if self._spent else slot_wire.FINISHED)

    def _run_stretch(self, calls: Calls, index: int, work: Range, function: Function) -> None:
        """Execute calls in a row, and keep their results."""
        self._numbers.reach(work.end)
        while True:
            self._flush_in_time(work.number)
            self._region.begin(index, time.monotonic(), work.meta.get("timeout") or 0.0)
            label = self._task_id.numbered(f"{work.meta['batch']}:")
            done = self._sprinter.run(function, calls, index, self._numbers, label)
            index += done.returned
            if done.other is not None:
                status, value, started = done.other
                if status == outcomes.ERROR and work.meta.get("retries"):
                    status, value = self._insist(index, work, function, value)
                self._keep_single(work.number, index, None, status, value, started)
                index += 1
            elif not done.returned:
                return

    def _run_alone(self, stretch: Stretch, work: Range, function: Function | None) -> None:
        """Execute a task that is more than a call, or none, and keep its result."""
        self._flush_in_time(work.number)
        index, started, task_id = stretch.first, time.monotonic(), None
        self._region.begin(index, started, work.meta.get("timeout") or 0.0)
        try:
            task_id, args, kwargs, options = parse_task(stretch.task, work.meta.get("form"))
            if options and "timeout" in options:
                self._region.begin(index, started, limit_of(options["timeout"]))
            if options and "blobs" in options:
                args, kwargs = fetched(args, kwargs)
            if function is None:
                why = self._functions.why(work.meta["fn"])
                status, value = outcomes.REFUSED, outcomes.cause("Refused", why)
            else:
                label = f"{work.meta['batch']}:{index}" if task_id is None else str(task_id)
                self._task_id.set(label)
                status, value = self._invoke(function, args, kwargs)
                if status == outcomes.ERROR and work.meta.get("retries"):
                    status, value = self._insist(index, work, function, value)
        except ValueError as error:  # not a task, or an id that no environment can hold
            status, value = outcomes.INVALID, outcomes.cause("InvalidTask", str(error))
        self._keep_single(work.number, index, task_id, status, value, started)

    def _call_apart(self, function: Function, args: Any, kwargs: Any) -> tuple[str, Any]:
        """Call under the conditions of the range, which has some."""
        assert self._conditions is not None
        answer = self._conditions.around(self._call, function, args, kwargs)
        self._spent = self._conditions.spent
        return answer

    def _call(self, function: Function, args: Any, kwargs: Any) -> tuple[str, Any]:
        """Run user code, whatever it does: (status, value)."""
        try:
            value = function(*args, **kwargs)
            if isinstance(value, CoroutineType):
                value = self._awaiter.run(value)
            self._aftermath.settle()
        except BaseException as error:  # exit and interrupt too: they end the task, not the slot
            self._aftermath.settle()
            if self._conditions is not None:
                self._conditions.lift()  # or there is no memory to tell it
            return outcomes.ERROR, outcomes.raised(error)
        return outcomes.OK, value

    def _insist(self, index: int, work: Range, function: Function, value: Any) -> tuple[str, Any]:
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
            task = work.records[index - work.first]
            _, args, kwargs, options = parse_task(task, work.meta.get("form"))
            if "blobs" in options:
                args, kwargs = fetched(args, kwargs)
            self._region.begin(index, time.monotonic(), limit)
            status, value = self._invoke(function, args, kwargs)
        return status, value

    # -- results

    def _keep_single(
        self, number: int, index: int, task_id: Any, status: str, value: Any, started: float
    ) -> None:
        elapsed = time.monotonic() - started
        status, data = result_record(index, task_id, status, value, elapsed)
        self._keep(number, Entry(index, 1, outcomes.CODES[status], elapsed, data))

    def _keep(self, number: int, entry: Entry) -> None:
        packed = pack_entry(entry)
        if self._region.append(packed):
            return
        self._flush(number, slot_wire.RESULTS)
        if not self._region.append(packed):
            self._sock.sendall(slot_wire.pack_frame(slot_wire.RESULTS, number, packed))

    def _flush_in_time(self, number: int) -> None:
        late = time.monotonic() - self._flushed >= FLUSH_AFTER
        if late or self._region.crowded(2 * BURST_BYTES):
            self._flush(number, slot_wire.RESULTS)

    def _flush(self, number: int, kind: int) -> None:
        data = self._region.unsent()
        if data or kind == slot_wire.FINISHED:
            self._sock.sendall(slot_wire.pack_frame(kind, number, data))
        self._region.clear()
        self._flushed = time.monotonic()


def serve(
    socks: Sequence[socket.socket],
    memory: mmap.mmap,
    number: int,
    served: Served,
    slot_mem: int | None,
) -> None:
    """Be process `number` with a place for each of `socks`, until the worker is gone."""
    confine(slot_mem)
    if len(socks) == 1:
        Slot(socks[0], Region(memory, number), served, slot_mem).serve()
    else:
        from fsworker.slots import coroutines  # only where they are asked for

        coroutines.serve(socks, memory, number * len(socks), served, slot_mem)


def main() -> None:
    """A spawned slot: `python -m fsworker.slots.main '<json>'`, started by the zygote."""
    request = json.loads(sys.argv[1])
    become_slot(request["parent"])
    socks = [socket.socket(fileno=fd) for fd in request["sockets"]]
    memory = mmap.mmap(request["memory"], 0)
    os.close(request["memory"])
    for sock in socks:
        os.set_inheritable(sock.fileno(), False)
    try:
        loaded = functions.load(request["functions"])
        told = json.dumps(software.sources(loaded)).encode()
        served = Served(loaded, request["allow"], told)
        check(request.get("slot_mem"))
    except FleetError as error:
        socks[0].sendall(slot_wire.pack_frame(slot_wire.FAILED, 0, str(error).encode()))
        return
    serve(socks, memory, request["slot"], served, request.get("slot_mem"))
    os._exit(0)  # what user code left behind for the end is nobody's business any more


if __name__ == "__main__":
    main()
