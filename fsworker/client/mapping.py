"""`map` over a fleet: results in the order of the input, no future per task, bounded memory.

The input is packed in strips, a bounded number of tasks ahead of the one who walks along the
results; so a million tasks, or an endless input, take no more memory than a window of them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice, repeat
from typing import Any

from fsworker.client.engine import Engine
from fsworker.client.receivers import PENDING, Failed, Strip
from fsworker.client.terms import Terms
from fsworker.protocol.segment import ARG
from fsworker.remote import NotSent
from fsworker.taskpack import TaskPacker

STRIP = 8192
"""Tasks in a strip at most, and so in a batch of `map`."""


class MapCall:
    """One call of `map`. `size` is the batch size asked for, if any; `timeout` is in seconds."""

    def __init__(
        self,
        engine: Engine,
        terms: Terms,
        inputs: tuple[Iterable[Any], ...],
        *,
        size: int | None,
        timeout: float | None,
    ) -> None:
        self._engine = engine
        self._terms = terms
        self._form = ARG if len(inputs) == 1 else None
        self._rows = iter(inputs[0]) if self._form == ARG else zip(*inputs, strict=False)
        self._size = size
        self._end = None if timeout is None else time.monotonic() + timeout
        self._window = engine.settings.outstanding
        self._packer = TaskPacker()
        self._strips: deque[Strip] = deque()
        self._ahead = 0
        self._exhausted = False

    def feed(self) -> None:
        """Pack and queue input until the window is full."""
        size = min(STRIP, max(1, self._window // 4))
        while not self._exhausted and (not self._ahead or self._ahead + size <= self._window):
            rows = list(islice(self._rows, size))
            if not rows:
                self._exhausted = True
                return
            strip = self._pack(rows)
            if strip.waiting:
                self._engine.send(strip)
            self._strips.append(strip)
            self._ahead += len(rows)

    def results(self, client: object = None) -> Iterator[Any]:
        """The values, in the order of the input; the first failure is raised in its place.

        `client` is kept alive as long as the iterator: forgetting it would end its engine.
        """
        try:
            while self._strips:
                strip = self._strips[0]
                yield from self._values(strip)
                self._strips.popleft()
                self._ahead -= strip.count
                self.feed()
        finally:
            for strip in self._strips:
                self._engine.withdraw(strip)
            self._strips.clear()

    def _values(self, strip: Strip) -> Iterator[Any]:
        values = strip.values
        for place in range(len(values)):
            if values[place] is PENDING:
                self._wait(strip, place)
            if strip.complete and strip.flawless:
                yield from _all_taken(values, place)
                return
            if type(values[place]) is Failed:
                raise values[place].error
            yield _taken(values, place)

    def _wait(self, strip: Strip, place: int) -> None:
        """Wait until the value is there. TimeoutError when the whole call took too long."""
        while True:
            strip.changed.clear()
            if strip.values[place] is not PENDING:
                return
            left = None if self._end is None else self._end - time.monotonic()
            if (left is not None and left <= 0) or not strip.changed.wait(left):
                raise TimeoutError

    def _pack(self, rows: list[Any]) -> Strip:
        strip = Strip(self._terms, len(rows), self._size, self._form)
        try:
            if self._form == ARG:
                strip.records = self._packer.only_arguments(rows)
            else:
                strip.records = [self._packer.record([None, list(row)]) for row in rows]
        except Exception:
            self._pack_each(strip, rows)
        return strip

    def _pack_each(self, strip: Strip, rows: list[Any]) -> None:
        """Pack a strip of which not every task can be sent: those fail alone."""
        strip.places = []
        for place, row in enumerate(rows):
            try:
                task = row if self._form == ARG else [None, list(row)]
                strip.records.append(self._packer.record(task))
            except NotSent as error:
                strip.put(place, Failed(error))
            else:
                strip.places.append(place)


def _taken(values: list[Any], place: int) -> Any:
    """A value, taken out of the list: what the caller has had is the caller's alone."""
    value, values[place] = values[place], None
    return value


def _all_taken(values: list[Any], place: int) -> Iterator[Any]:
    """The same for all values from a place on, fast: backwards, so that each is the last."""
    del values[:place]
    values.reverse()
    return map(list.pop, repeat(values, len(values)))
