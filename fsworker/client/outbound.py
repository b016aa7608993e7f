"""What a client has not sent yet, and how it is cut into batches.

Tasks stay here until the workers can use them: a batch that lies on disk has a fixed size and
cannot be taken back, one that is not cut yet can be cut better, or cancelled, a moment later.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any

from fsworker.client.futures import TaskFuture, begin
from fsworker.client.idbook import TaskId
from fsworker.client.receivers import Futures, Receiver, Strip
from fsworker.client.sizing import Sizer
from fsworker.client.terms import USUAL, Lane, Terms
from fsworker.protocol.segment import widen

_FINENESS = 50
"""A batch limits the time in the queue for all of its tasks; this is how exact that is: a part."""

MAX_BATCH_BYTES = 8 << 20
"""Bytes of records after which a batch is full, whatever its number of tasks."""


def anything(_: str) -> bool:
    """Means tasks of all needs, and of none."""
    return True


@dataclass(slots=True)
class Outgoing:
    """A batch as it is about to be sent. `form`: that of its records; `since`: when its first task
    was submitted, if it counts; `ids`: those that callers gave to its tasks, if they did."""

    terms: Terms
    records: list[bytes]
    receiver: Receiver
    form: str | None = None
    since: float | None = None
    ids: list[TaskId] | None = None


class Call(TaskFuture):
    """One submitted call, which is its own future: the caller's, once it is sent.

    `since`: when it was submitted, if its terms limit the time in the queue. Whoever makes one
    sets its terms and its record.
    """

    terms: Terms
    record = b""
    form: str | None = None
    since: float | None = None
    id: TaskId | None = None


class Outbound:
    """The queue between those who submit and the thread that sends.

    Any thread may add, cancel or fail; one thread takes. Calls rely on deque's appends and pops
    being atomic; a strip is cut in several steps, so those hold a lock.
    """

    def __init__(self, sizer: Sizer) -> None:
        self._sizer = sizer
        self._calls: deque[Call] = deque()
        self._lanes: dict[Lane, deque[Call]] = {USUAL: self._calls}
        self._strips: deque[Strip] = deque()
        self._cutting = threading.Lock()
        self.cancelled = 0
        """Calls that were passed over because their callers had cancelled them."""
        self.add_call = self._calls.append

    def __bool__(self) -> bool:
        return bool(self._calls or self._strips) or any(self._lanes.values())

    def add_prior(self, call: Call) -> None:
        """Add a call that is not as most are."""
        with self._cutting:
            self._lanes.setdefault(call.terms.lane, deque()).append(call)

    def add_strip(self, strip: Strip) -> None:
        """Add a strip behind those of its priority."""
        with self._cutting:
            prior = [s.terms.priority >= strip.terms.priority for s in self._strips]
            self._strips.insert(prior.index(False) if False in prior else len(prior), strip)

    def lanes(self) -> list[Lane]:
        """Those that something waits in, the highest priority first."""
        with self._cutting:
            found = {lane for lane, calls in self._lanes.items() if calls}
            found.update(strip.terms.lane for strip in self._strips)
        return sorted(found, key=lambda lane: (-lane.priority, lane.needs))

    def take(self, room: Callable[[Lane], int]) -> Iterator[Outgoing]:
        """Batches of about as many tasks as there is `room` for in each lane, the highest priority
        first. Calls that were cancelled are passed over."""
        for lane in self.lanes():
            left = room(lane)
            calls = self._calls_of(lane, left)
            yield from self._batches(calls)
            yield from self._pieces(left - len(calls), lane)

    def _calls_of(self, lane: Lane, room: int) -> list[Call]:
        waiting = self._lanes.get(lane, ())
        calls: list[Call] = []
        while waiting and len(calls) < room:
            taken = [waiting.popleft() for _ in range(min(len(waiting), room - len(calls)))]
            running = begin(taken)
            self.cancelled += len(taken) - len(running)
            calls += running
        return calls

    def _drained(self, meant: Callable[[str], bool]) -> Iterator[Call]:
        for lane, calls in list(self._lanes.items()):
            while calls and meant(lane.needs):
                yield calls.popleft()

    def cancel(self) -> int:
        """Cancel everything; how many tasks that were."""
        cancelled = 0
        for call in self._drained(anything):
            call.cancel()
            call.set_running_or_notify_cancel()
            cancelled += 1
        return cancelled + self._fail_strips(CancelledError(), anything)

    def fail(self, error: BaseException, meant: Callable[[str], bool] = anything) -> int:
        """Fail everything with `error` whose needs are `meant`; how many tasks that were."""
        failed = 0
        for call in self._drained(meant):
            if call.set_running_or_notify_cancel():
                call.set_exception(error)
            failed += 1
        return failed + self._fail_strips(error, meant)

    def drop(self, strip: Strip) -> int:
        """Cancel what was not sent of a strip; how many tasks that were."""
        with self._cutting:
            if strip not in self._strips:
                return 0
            self._strips.remove(strip)
            records, rest = strip.cut(strip.waiting)
        rest.fail(CancelledError())
        return len(records)

    def _fail_strips(self, error: BaseException, meant: Callable[[str], bool]) -> int:
        failed = 0
        while True:
            with self._cutting:
                strip = next((s for s in self._strips if meant(s.terms.lane.needs)), None)
                if strip is None:
                    break
                self._strips.remove(strip)
                records, piece = strip.cut(strip.waiting)
            piece.fail(error)
            failed += len(records)
        return failed

    def _batches(self, calls: list[Call]) -> Iterator[Outgoing]:
        for group in _alike(calls):
            size = self._sizer.choose(len(group))
            at, first = 0, group[0]
            ids = None if first.id is None else [call.id for call in group if call.id is not None]
            while at < len(group):
                form, records = _records(group[at : at + size])
                count = fitting(records)
                futures = Futures(group[at : at + count])
                for call in group[at : at + count]:
                    call.record = b""  # its future may be kept for long
                outgoing = Outgoing(first.terms, records[:count], futures, form, first.since)
                outgoing.ids = ids and ids[at : at + count]
                yield outgoing
                at += count

    def _pieces(self, room: int, lane: Lane) -> Iterator[Outgoing]:
        while room > 0:
            with self._cutting:
                strip = next((s for s in self._strips if s.terms.lane == lane), None)
                if strip is None:
                    return
                records, piece = self._cut(strip)
            room -= len(records)
            yield Outgoing(strip.terms, records, piece, strip.form, strip.since)

    def _cut(self, strip: Strip) -> tuple[list[bytes], Receiver]:
        last = len(self._strips) == 1
        size = strip.size or self._sizer.choose(strip.waiting if last else None)
        records, piece = strip.cut(fitting(strip.peek(size)))
        if not strip.waiting:
            self._strips.remove(strip)
        return records, piece


def _alike(calls: list[Call]) -> Iterable[list[Call]]:
    """Calls in groups that may share a batch."""
    terms = {call.terms for call in calls}
    if len(terms) == 1 and calls[0].terms.common and all(call.id is None for call in calls):
        return [calls]
    alike: dict[Any, list[Call]] = {}
    for call in calls:
        alike.setdefault(_kind(call), []).append(call)
    return alike.values()


def _kind(call: Call) -> tuple[Any, ...]:
    """What calls of one batch have in common: also about the time since which they wait."""
    limit = call.terms.options.queue_limit
    age = None if limit is None or call.since is None else int(call.since / limit * _FINENESS)
    return call.terms, age, call.id is not None


def _records(calls: list[Call]) -> tuple[str | None, list[bytes]]:
    """(form, records): that of all if they have one, else the form that carries everything."""
    forms = {call.form for call in calls}
    if len(forms) == 1:
        return forms.pop(), [call.record for call in calls]
    return None, [widen(call.record, call.form) for call in calls]


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
