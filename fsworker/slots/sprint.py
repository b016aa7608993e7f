"""Calls in a row at full speed: what a slot does between two things that need its attention.

This loop is what a short task costs. So it makes no system call: what must be put right after user
code (an alarm that it left, descriptors that it closed, a fork that came back) takes some, and is
done only after tasks that took long enough to have made one themselves. Results are packed and put
where the worker sees them as they come, since user code may change what it returned, or not return
the next time; they become one record within `BURST` seconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from types import CoroutineType
from typing import Any, NamedTuple

from fsworker import outcomes
from fsworker.functions import Function
from fsworker.protocol import packing
from fsworker.slots.decoding import Calls
from fsworker.slots.memory import Region

BURST = 0.001
"""Seconds of tasks that share a record, at most."""
BURST_BYTES = 1 << 14
"""Bytes of results, likewise."""

_HARMLESS = 0.7
"""Of the time of the quickest system call: a task that took less made none."""

_clock = time.monotonic


class Other(NamedTuple):
    """A task that did not simply return something small that can be packed: its status and value as
    far as they are known, and when it began."""

    status: str
    value: Any
    started: float


class Sprint(NamedTuple):
    """What came of calls in a row: how many returned, and what came of the next one, if it was
    begun."""

    returned: int
    other: Other | None = None


class Sprinter:
    """Runs calls in a slot. `settle` puts right what user code may have left behind; `wait` runs
    a coroutine to its end."""

    def __init__(
        self, region: Region, settle: Callable[[], None], wait: Callable[[Any], Any]
    ) -> None:
        self._region, self._settle, self._wait = region, settle, wait
        self._pack = packing.packer()

    def run(
        self, function: Function, calls: Calls, index: int, numbers: list[int], label: Any
    ) -> Sprint:
        """Execute calls, the first of which is task `index`, until they end, the limit is reached,
        it is time to record results, or one did not simply return. `label` is given the item of
        `numbers` that belongs to each task."""
        first, region, pack = index, self._region, self._pack
        at, since, limit = region.index_mark, region.started_mark, region.limit_mark
        if index >= limit[0]:
            return Sprint(0)
        (write, room), filled, size = region.open_run(first), region.size_mark, 0
        harmless, other = _HARMLESS * quickest_call(), None
        ended = begun = _clock()
        enough = begun + BURST
        for args, kwargs in calls:
            at[0], since[0], label[0] = index, ended, numbers[index]
            started = _clock()
            try:
                value = function(*args, **kwargs)
                if type(value) is CoroutineType:
                    value = self._wait(value)
                ended = _clock()
                if ended - started > harmless:
                    self._settle()
            except BaseException as error:  # exit and interrupt too: they end the task, not us
                self._settle()
                other = Other(outcomes.ERROR, outcomes.raised(error), started)
                break
            try:
                packed = pack(value)
            except BaseException:  # its own methods ran; the careful way has the words for it
                packed = None
            if packed is None or (size := size + len(packed)) > room:
                self._pack = packing.packer()  # one keeps a buffer as large as its largest value
                other = Other(outcomes.OK, value, started)
                break
            write(packed)
            filled[0] = size
            index += 1
            if ended > enough or size > BURST_BYTES or index >= limit[0]:
                break
        region.close_run(index - first, ended - begun)
        return Sprint(index - first, other)


def quickest_call() -> float:
    """Seconds that the quickest system call takes now, the clock included: no task that made one
    takes less. Measured each time, since machines are slower at one moment than at another."""
    best = 1.0
    for _ in range(3):  # one may be interrupted
        started = _clock()
        os.getpid()
        best = min(best, _clock() - started)
    return best
