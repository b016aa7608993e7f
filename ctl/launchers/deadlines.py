"""Calls that become due, made by one thread for all of them.

Every command on a host has a bound, and nearly none is ever reached. A timer thread for each costs
as much as the rest of a command over a connection that is kept.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

log = logging.getLogger(__name__)

LINGER = 5.0
"""Seconds for which the thread waits for work before it ends."""
_SPARE = 64


@dataclass(order=True, slots=True)
class Due:
    """A call at a monotonic time."""

    at: float
    order: int
    call: Callable[[], object] | None = field(compare=False)


class Deadlines:
    """Safe to use from many threads. A call must be quick, and must not raise."""

    def __init__(self, linger: float = LINGER) -> None:
        self._linger = linger
        self._changed = threading.Condition(threading.Lock())
        self._heap: list[Due] = []
        self._order = itertools.count()
        self._void = 0
        self._serving = False

    def add(self, at: float, call: Callable[[], object]) -> Due:
        """Have `call` made at the monotonic time `at`, unless `drop` comes first."""
        due = Due(at, next(self._order), call)
        with self._changed:
            heapq.heappush(self._heap, due)
            if not self._serving:
                threading.Thread(target=self._serve, name="deadlines", daemon=True).start()
                self._serving = True
            elif self._heap[0] is due:
                self._changed.notify()
        return due

    def drop(self, due: Due) -> None:
        """Make no call; whether one was made already does not matter."""
        with self._changed:
            if due.call is None:
                return
            due.call = None
            self._void += 1
            if self._void > max(_SPARE, len(self._heap) // 2):
                self._heap = [d for d in self._heap if d.call]
                heapq.heapify(self._heap)
                self._void = 0

    def __len__(self) -> int:
        return len(self._heap)

    def _serve(self) -> None:
        while (call := self._next()) is not None:
            try:
                call()
            except Exception:
                log.exception("what was due failed")

    def _next(self) -> Callable[[], object] | None:
        """Wait for the next call that is due; None when there was nothing for a while."""
        idle = time.monotonic() + self._linger
        with self._changed:
            while True:
                now = time.monotonic()
                while self._heap and self._heap[0].call is None:
                    heapq.heappop(self._heap)
                    self._void = max(0, self._void - 1)
                if self._heap and self._heap[0].at <= now:
                    due = heapq.heappop(self._heap)
                    call, due.call = due.call, None
                    return call
                if self._heap:
                    self._changed.wait(self._heap[0].at - now)
                    idle = time.monotonic() + self._linger
                elif now >= idle:
                    self._serving = False
                    return None
                else:
                    self._changed.wait(idle - now)


DEADLINES = Deadlines()
"""Those of this process."""
