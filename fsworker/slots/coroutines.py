"""Several places in one process: coroutines that wait for something share one event loop.

To the worker each place is a slot like any other, with a socket and a region of its own; only the
process is shared. What it does for one task (a time that is over, a request to cancel) the loop
does here, without harm to the others. Plain functions run on the loop too, and so one at a time.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import socket
import time
from collections.abc import Coroutine, Sequence
from types import CoroutineType
from typing import Any

from fsworker import outcomes
from fsworker.functions import Function
from fsworker.slots import conditions, insisting
from fsworker.slots import wire as slot_wire
from fsworker.slots.decoding import limit_of, parse_task
from fsworker.slots.memory import IDLE, Entry, Region, pack_entry
from fsworker.slots.placelink import PlaceLink
from fsworker.slots.process import Standard
from fsworker.slots.recording import fetched, result_record
from fsworker.slots.serving import Served
from fsworker.slots.sharedloop import SharedLoop, owner

LEFT_PATIENCE = 1.0
"""Seconds that tasks get to end which a coroutine has left behind."""
_ALONE = "its worker runs several coroutines a slot (--slot-async), which cannot differ in it"


def serve(
    socks: Sequence[socket.socket],
    memory: mmap.mmap,
    first: int,
    served: Served,
    slot_mem: int | None,
) -> None:
    """Be the places from number `first` on, until the worker is gone."""
    process = Process(SharedLoop(memory, first), served, slot_mem)
    for number, sock in enumerate(socks):
        process.places.append(Place(process, number, sock, Region(memory, first + number)))
    asyncio.run(process.run())


class Process:
    """What the places of one process share. `spent`: a task went over the memory limit, and no
    other one begins here."""

    def __init__(self, loop: SharedLoop, served: Served, slot_mem: int | None) -> None:
        self.loop, self.served, self.slot_mem = loop, served, slot_mem
        self.pid = os.getpid()
        self.standard = Standard()
        self.spent = False
        self.places: list[Place] = []

    async def run(self) -> None:
        """Serve until every place is through, or the worker is gone."""
        self.loop.tenants += self.places
        self.loop.begin()
        serving = [asyncio.create_task(place.serve()) for place in self.places]
        await asyncio.wait(serving)
        os._exit(0)  # threads and tasks that user code left are nobody's business any more

    def spend(self) -> None:
        """Begin nothing more in this process."""
        self.spent = True
        for place in self.places:
            place.stop()


class Place:
    """Takes ranges like a slot, and executes their tasks one after the other."""

    def __init__(self, process: Process, number: int, sock: socket.socket, region: Region) -> None:
        self.number, self.busy, self.label = number, False, ""
        self._process, self._region = process, region
        self._link = PlaceLink(sock, region)
        self._work: slot_wire.Range | None = None
        self._index = IDLE
        self._running: asyncio.Task[Any] | None = None
        self._ended_by: str | None = None
        self._unwanted: set[int | None] = set()
        """Tasks of the range that must not run any more; None: none of them."""

    async def serve(self) -> None:
        """Take ranges until the process is spent."""
        self._inbox: asyncio.Queue[slot_wire.Range | None] = asyncio.Queue()
        self._listening = asyncio.create_task(self._listen())
        owner.set(self)
        await self._link.say(slot_wire.READY, self._process.pid, self._process.served.told)
        while not self._process.spent and (work := await self._inbox.get()) is not None:
            await self._run_range(work)

    def stop(self) -> None:
        """Begin no more tasks."""
        self._unwanted.add(None)
        self._inbox.put_nowait(None)

    async def _listen(self) -> None:
        """Hear the worker, also while a task runs."""
        while True:
            heard = await self._link.hear()
            if "cancel" in heard.meta:
                self._on_cancel(heard.number, heard.meta["cancel"])
            else:
                self._work, self._unwanted = heard, set()
                self._inbox.put_nowait(heard)

    def _on_cancel(self, number: int, index: int | None) -> None:
        if self._work is None or self._work.number != number:
            return
        self._unwanted.add(index)
        if index in (None, self._index):
            self._end(outcomes.CANCELLED)

    def _end(self, status: str) -> None:
        if self._running is not None and self._ended_by is None:
            self._ended_by = status
            self._running.cancel()

    async def _run_range(self, work: slot_wire.Range) -> None:
        function = self._process.served.get(work.meta["fn"])
        self._region.open(work.number)
        self.busy = True
        for index, task in enumerate(work.records, work.first):
            if None in self._unwanted or index >= self._region.limit_mark[0]:
                break
            await self._run_task(index, task, work, function)
        self.busy = False
        self._index = IDLE
        self._region.begin(IDLE, 0.0, 0.0)
        # A range that is not finished is handed out again when the process has ended.
        kind = slot_wire.RESULTS if self._process.spent else slot_wire.FINISHED
        await self._link.flush(work.number, kind)

    async def _run_task(
        self, index: int, task: bytes, work: slot_wire.Range, function: Function | None
    ) -> None:
        started, limit = time.monotonic(), float(work.meta.get("timeout") or 0.0)
        self._index, self._ended_by, task_id = index, None, None
        self._region.begin(index, started, limit)
        try:
            task_id, _, _, options = parse_task(task, work.meta.get("form"))
            self.label = str(task_id if task_id is not None else f"{work.meta['batch']}:{index}")
            if "timeout" in options:
                limit = limit_of(options["timeout"])
            for name in ("env", "memory"):
                if work.meta.get(name):
                    raise ValueError(f"it asks for {name} of its own, but {_ALONE}")
            if index in self._unwanted:
                status, value = outcomes.CANCELLED, _cancelled()
            elif function is None:
                why = self._process.served.why(work.meta["fn"])
                status, value = outcomes.REFUSED, outcomes.cause("Refused", why)
            else:
                status, value = await self._insist(index, work, function, limit)
        except ValueError as error:  # not a task, or not one for this place
            status, value = outcomes.INVALID, outcomes.cause("InvalidTask", str(error))
        if self._process.slot_mem and status == outcomes.ERROR and conditions.is_memory(value):
            told = conditions.too_much(self._process.slot_mem, "a slot", value)
            status, value = outcomes.OUT_OF_MEMORY, told
            self._process.spend()
        elapsed = time.monotonic() - started
        status, data = result_record(index, task_id, status, value, elapsed)
        entry = Entry(index, 1, outcomes.CODES[status], elapsed, data)
        await self._link.keep(work.number, pack_entry(entry))

    async def _insist(
        self, index: int, work: slot_wire.Range, function: Function, limit: float
    ) -> tuple[str, Any]:
        """Call, and again as the batch asks for: (status, value). Raises ValueError."""
        tries = 0
        while True:
            # As it was sent: the function may have changed what it was given.
            task = work.records[index - work.first]
            _, args, kwargs, options = parse_task(task, work.meta.get("form"))
            if "blobs" in options:
                args, kwargs = fetched(args, kwargs)
            self._region.begin(index, time.monotonic(), limit)
            status, value = await self._call(function, args, kwargs, limit)
            pause = None
            if status == outcomes.ERROR and work.meta.get("retries"):
                pause = insisting.pause(work.meta["retries"], tries, value)
            if pause is None:
                return status, value
            tries += 1
            self._region.begin(index, time.monotonic(), 0.0)
            await asyncio.sleep(pause)

    async def _call(
        self, function: Function, args: Any, kwargs: Any, limit: float
    ) -> tuple[str, Any]:
        """Run user code, whatever it does: (status, value)."""
        try:
            found = outcomes.OK, function(*args, **kwargs)
        except BaseException as error:  # exit and interrupt too: they end the task, not the slot
            found = outcomes.ERROR, outcomes.raised(error)
        if isinstance(found[1], CoroutineType):
            found = await self._await(found[1], limit)
        if os.getpid() != self._process.pid:
            os._exit(0)  # user code forked, and its child came back here: it has no business here
        if self._process.standard.broken(0):
            self._process.standard.restore()
        return found

    async def _await(self, coroutine: Any, limit: float) -> tuple[str, Any]:
        loop = asyncio.get_running_loop()
        self._running = running = loop.create_task(_guarded(coroutine))
        timer = loop.call_later(limit, self._end, outcomes.TIMEOUT) if limit else None
        await asyncio.wait([running])
        if timer is not None:
            timer.cancel()
        self._running = None
        await self._end_left(running)
        if self._ended_by == outcomes.TIMEOUT:
            return outcomes.TIMEOUT, outcomes.cause("Timeout", f"no result after {limit:g} s")
        if self._ended_by == outcomes.CANCELLED:
            return outcomes.CANCELLED, _cancelled()
        if running.cancelled():
            return outcomes.ERROR, outcomes.raised(asyncio.CancelledError())
        return running.result()

    async def _end_left(self, running: asyncio.Task[Any]) -> None:
        """End tasks that the coroutine left behind, as asyncio.run does."""
        ours = asyncio.current_task()
        left = [t for t in self._process.loop.left_by(self) if t is not ours and t is not running]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=LEFT_PATIENCE)


def _cancelled() -> dict[str, str]:
    return outcomes.cause("Cancelled", "cancelled on request")


async def _guarded(coroutine: Coroutine[Any, Any, Any]) -> tuple[str, Any]:
    try:
        return outcomes.OK, await coroutine
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # exit and interrupt would end the loop
        return outcomes.ERROR, outcomes.raised(error)
