"""The event loop of a process whose places share it: who started which task, and does it turn?

Where it stops turning, a thread says which task keeps it: to the log, and to the worker, which ends
the process if others run out of time for it.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import mmap
import sys
import threading
import time
import traceback
import weakref
from typing import Any, Protocol

from fsworker.slots.loopstate import LATE, NOBODY, LoopState

log = logging.getLogger("fsworker.slots.sharedloop")

TURN_EVERY = 0.2
"""Seconds between two signs of life of the loop."""


class Tenant(Protocol):
    """A place on the loop: its number in the process, what it executes, and whether it does."""

    number: int
    label: str
    busy: bool


owner: contextvars.ContextVar[Tenant | None] = contextvars.ContextVar("place", default=None)
"""For whom a task of the loop runs; tasks that it starts inherit that."""


class SharedLoop:
    """Knows of each task on the loop whose it is, and watches that the loop turns."""

    def __init__(self, memory: mmap.mmap, first: int) -> None:
        self.tenants: list[Tenant] = []
        self._state = LoopState(memory, first)
        self._turned = time.monotonic()
        self._tasks: weakref.WeakKeyDictionary[asyncio.Task[Any], Tenant] = (
            weakref.WeakKeyDictionary()
        )

    def begin(self) -> None:
        """Take over the running loop."""
        loop = asyncio.get_running_loop()
        loop.set_task_factory(self._make_task)
        threading.Thread(target=self._watch, args=(loop,), daemon=True).start()
        self._turning = loop.create_task(self._turn())

    def left_by(self, tenant: Tenant) -> list[asyncio.Task[Any]]:
        """Tasks that were started for a place and still run."""
        return [t for t, whose in list(self._tasks.items()) if whose is tenant and not t.done()]

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, **more: Any
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **more)
        if (tenant := owner.get()) is not None:
            self._tasks[task] = tenant
        return task

    async def _turn(self) -> None:
        while True:
            self._turned = time.monotonic()
            self._state.turned(self._turned)
            await asyncio.sleep(TURN_EVERY)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread: see whether the loop turns, and if not, who keeps it."""
        told = 0.0
        while True:
            time.sleep(TURN_EVERY)
            since = self._turned
            if time.monotonic() - since <= LATE:
                continue
            task = asyncio.current_task(loop)
            guilty = None if task is None else self._tasks.get(task)
            self._state.blocked(NOBODY if guilty is None else guilty.number)
            waiting = sum(other.busy for other in self.tenants if other is not guilty)
            if told != since and waiting:
                told = since
                what = "something" if guilty is None else f"task {guilty.label}"
                words = "%s keeps the event loop of its slot from turning, and %d others wait: %s"
                log.warning(words, what, waiting, _where())


def _where() -> str:
    """What the main thread is executing."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    place = traceback.extract_stack(frame)[-1] if frame is not None else None
    return f"{place.filename}:{place.lineno} in {place.name}" if place else "somewhere"
