"""Where results go inside a client: into futures, or into the strips that `map` walks along.

A future costs several microseconds, so `map` does without: it keeps the values of thousands of
tasks in one list, in the order of its input. Either way the first result of a task wins and later
ones are ignored, as the protocol allows a task to have several.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any, Final, Protocol

from fsworker import outcomes
from fsworker.client.futures import TaskFuture, answer
from fsworker.client.terms import Terms
from fsworker.remote import lost, task_error

log = logging.getLogger(__name__)

MISSING = "the batch was answered, but without this task"


class Receiver(Protocol):
    """Takes the results of one batch."""

    @property
    def count(self) -> int:
        """The tasks of the batch."""
        ...

    def take(self, rows: list[Any]) -> None:
        """Take result records, decoded: `[index, id, status, value, …]`, or runs."""
        ...

    def places(self, wanted: Collection[Future[Any]]) -> dict[Future[Any], int]:
        """The indexes of those of the wanted futures that wait here."""
        ...

    def fail(self, error: BaseException) -> None:
        """Answer every task that has no result yet with `error`."""
        ...


class Futures:
    """Results of a batch whose tasks have a future each, all of one client."""

    def __init__(self, futures: Sequence[TaskFuture]) -> None:
        self._futures: list[TaskFuture | None] = list(futures)
        self._condition = futures[0]._condition
        self.count = len(self._futures)

    def take(self, rows: list[Any]) -> None:
        """Resolve futures."""
        for row in rows:
            if outcomes.is_run(row) and 0 <= row[1] <= self.count - len(row[2]):
                self._take_run(row[1], row[2])
            else:
                for single in outcomes.singles([row]):
                    self._take_one(single)

    def _take_run(self, first: int, values: list[Any]) -> None:
        taken = self._futures[first : first + len(values)]
        self._futures[first : first + len(values)] = [None] * len(values)
        answer(self._condition, taken, values)

    def _take_one(self, row: Any) -> None:
        try:
            index, _, status, value = row[:4]
            future = self._futures[index]
        except (TypeError, ValueError, IndexError):
            log.warning("a result row is not one: %.100r", row)
            return
        if future is None:
            return
        self._futures[index] = None
        try:
            if status == outcomes.OK:
                future.set_result(value)
            else:
                future.set_exception(task_error(status, value))
        except InvalidStateError:
            pass  # another thread gave up on it at this moment

    def places(self, wanted: Collection[Future[Any]]) -> dict[Future[Any], int]:
        """The indexes of those of the wanted futures that wait here."""
        return {f: i for i, f in enumerate(self._futures) if f is not None and f in wanted}

    def fail(self, error: BaseException) -> None:
        """Fail the futures that are not resolved."""
        for index, future in enumerate(self._futures):
            if future is not None:
                self._futures[index] = None
                try:
                    future.set_exception(error)
                except InvalidStateError:
                    pass  # its result came at this moment


class Failed:
    """In the place of a value: the exception that its task ended with."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


PENDING: Final = object()
"""In the place of a value that is not there yet."""


class Strip:
    """A stretch of `map`'s input: its records until they are sent, its values once they came.

    `size` is the batch size that the caller asked for, if any, `form` that of the records.
    `records[i]` belongs to `values[places[i]]`; without `places` to `values[i]` (a task that cannot
    be packed has none).
    """

    def __init__(
        self, terms: Terms, count: int, size: int | None = None, form: str | None = None
    ) -> None:
        self.terms, self.form = terms, form
        limited = terms.options.queue_limit is not None
        self.since = time.monotonic() if limited else None
        self.count = count
        self.size = size
        self.records: list[bytes] = []
        self.places: list[int] | None = None
        self.values: list[Any] = [PENDING] * count
        self.flawless = True
        self.changed = threading.Event()
        self.lock = threading.Lock()
        """Held while values are put: they come by the reading thread, failures by any."""
        self._sent = 0
        self._open = count

    @property
    def complete(self) -> bool:
        """Whether every value is there."""
        return self._open == 0

    @property
    def waiting(self) -> int:
        """How many records nobody has taken."""
        return len(self.records) - self._sent

    def peek(self, count: int) -> list[bytes]:
        """The next records, left where they are."""
        return self.records[self._sent : self._sent + count]

    def cut(self, count: int) -> tuple[list[bytes], Piece]:
        """The next records to send, at most `count`, and who receives their results."""
        start = self._sent
        records = self.peek(count)
        self._sent += len(records)
        if not self.waiting:
            self.records = []  # they are on disk; the memory is worth more here
            self._sent = 0
        return records, Piece(self, start, len(records))

    def fill(self, start: int, values: list[Any]) -> None:
        """Keep values in a row, for none of which there was one yet."""
        self.values[start : start + len(values)] = values
        self._open -= len(values)

    def put(self, place: int, value: Any) -> None:
        """Keep a value unless there is one."""
        if self.values[place] is PENDING:
            self.values[place] = value
            self._open -= 1
            if type(value) is Failed:
                self.flawless = False


class Piece:
    """Results of a batch that was cut from a strip."""

    def __init__(self, strip: Strip, start: int, count: int) -> None:
        self.count = count
        self._strip = strip
        self._start = start
        self._known = bytearray(count)

    def take(self, rows: list[Any]) -> None:
        """Put values where the input stood."""
        with self._strip.lock:
            for row in rows:
                if not self._take_run(row):
                    for single in outcomes.singles([row]):
                        self._take_one(single)
        self._strip.changed.set()

    def _take_run(self, row: Any) -> bool:
        """The common case: values of tasks in a row, none of which is known yet, at once."""
        if self._strip.places is not None or not outcomes.is_run(row):
            return False
        first, values = row[1], row[2]
        end = first + len(values)
        if not 0 <= first <= end <= self.count or self._known.find(1, first, end) >= 0:
            return False
        self._known[first:end] = b"\1" * len(values)
        self._strip.fill(self._start + first, values)
        return True

    def _take_one(self, row: Any) -> None:
        try:
            index, _, status, value = row[:4]
            place = self._place(index)
        except (TypeError, ValueError, IndexError):
            log.warning("a result row is not one: %.100r", row)
            return
        if self._known[index]:
            return  # again, perhaps when all were taken and the strip is empty
        self._known[index] = 1
        value = value if status == outcomes.OK else Failed(task_error(status, value))
        self._strip.put(place, value)

    def places(self, wanted: Collection[Future[Any]]) -> dict[Future[Any], int]:
        """None: `map` has no futures."""
        return {}

    def is_of(self, strip: Strip) -> bool:
        """Whether it was cut from this strip."""
        return self._strip is strip

    def fail(self, error: BaseException) -> None:
        """Answer the tasks of this batch that are open."""
        failed, index = Failed(error), -1
        with self._strip.lock:
            while (index := self._known.find(0, index + 1)) >= 0:
                self._strip.put(self._place(index), failed)
        self._strip.changed.set()

    def _place(self, index: int) -> int:
        if not 0 <= index < self.count:
            raise IndexError(index)
        at = self._start + index
        places = self._strip.places
        return at if places is None else places[at]


def close(receiver: Receiver) -> None:
    """End a batch whose results have all come: what has none will not get one."""
    receiver.fail(lost(MISSING))
