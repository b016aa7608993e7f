"""What a client has not sent yet, and how it is cut into batches.

Tasks stay here until the workers can use them: a batch that lies on disk has a fixed size and
cannot be taken back, one that is not cut yet can be cut better, or cancelled, a moment later.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any

from fsworker.receivers import Futures, Receiver, Strip
from fsworker.sizing import Sizer

MAX_BATCH_BYTES = 8 << 20
"""Bytes of records after which a batch is full, whatever its number of tasks."""


@dataclass(slots=True)
class Outgoing:
    """A batch as it is about to be sent."""

    fn: str
    records: list[bytes]
    receiver: Receiver


@dataclass(slots=True)
class Call:
    """One submitted call."""

    fn: str
    record: bytes
    future: Future[Any]


class Outbound:
    """The queue between those who submit and the thread that sends.

    Any thread may add, cancel or fail; one thread takes. Calls rely on deque's appends and pops
    being atomic; a strip is cut in several steps, so those hold a lock.
    """

    def __init__(self, sizer: Sizer) -> None:
        self._sizer = sizer
        self._calls: deque[Call] = deque()
        self._strips: deque[Strip] = deque()
        self._cutting = threading.Lock()
        self.cancelled = 0
        """Calls that were passed over because their callers had cancelled them."""
        self.add_call = self._calls.append
        self.add_strip = self._strips.append

    def __bool__(self) -> bool:
        return bool(self._calls or self._strips)

    def take(self, room: int) -> Iterator[Outgoing]:
        """Batches of about `room` tasks together. Calls that were cancelled are passed over."""
        calls: list[Call] = []
        while self._calls and len(calls) < room:
            call = self._calls.popleft()
            if call.future.set_running_or_notify_cancel():
                calls.append(call)
            else:
                self.cancelled += 1
        yield from self._batches(calls)
        yield from self._pieces(room - len(calls))

    def cancel(self) -> int:
        """Cancel everything; how many tasks that were."""
        cancelled = 0
        while self._calls:
            call = self._calls.popleft()
            call.future.cancel()
            call.future.set_running_or_notify_cancel()
            cancelled += 1
        return cancelled + self._fail_strips(CancelledError())

    def fail(self, error: BaseException) -> int:
        """Fail everything with `error`; how many tasks that were."""
        failed = 0
        while self._calls:
            future = self._calls.popleft().future
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
            failed += 1
        return failed + self._fail_strips(error)

    def drop(self, strip: Strip) -> int:
        """Send no more of a strip; how many tasks were left of it."""
        with self._cutting:
            if strip not in self._strips:
                return 0
            self._strips.remove(strip)
            left = strip.waiting
            strip.records.clear()
        return left

    def _fail_strips(self, error: BaseException) -> int:
        failed = 0
        while self._strips:
            with self._cutting:
                if not self._strips:
                    break
                strip = self._strips.popleft()
                records, piece = strip.cut(strip.waiting)
            piece.fail(error)
            failed += len(records)
        return failed

    def _batches(self, calls: list[Call]) -> Iterator[Outgoing]:
        by_function: dict[str, list[Call]] = {}
        for call in calls:
            by_function.setdefault(call.fn, []).append(call)
        for fn, group in by_function.items():
            size = self._sizer.choose(len(group))
            at = 0
            while at < len(group):
                records = [call.record for call in group[at : at + size]]
                count = fitting(records)
                futures = [call.future for call in group[at : at + count]]
                yield Outgoing(fn, records[:count], Futures(futures))
                at += count

    def _pieces(self, room: int) -> Iterator[Outgoing]:
        while room > 0:
            with self._cutting:
                if not self._strips:
                    return
                strip = self._strips[0]
                records, piece = self._cut(strip)
            room -= len(records)
            yield Outgoing(strip.fn, records, piece)

    def _cut(self, strip: Strip) -> tuple[list[bytes], Receiver]:
        last = len(self._strips) == 1
        size = strip.size or self._sizer.choose(strip.waiting if last else None)
        records, piece = strip.cut(fitting(strip.peek(size)))
        if not strip.waiting:
            self._strips.popleft()
        return records, piece


def fitting(records: Sequence[bytes]) -> int:
    """How many of the records, from the first on, one batch can hold by their bytes."""
    if sum(map(len, records)) <= MAX_BATCH_BYTES:
        return len(records)
    total = 0
    for count, record in enumerate(records):
        total += len(record)
        if total > MAX_BATCH_BYTES:
            return max(1, count)
    return len(records)
