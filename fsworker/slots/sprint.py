"""Calls in a row at full speed: what a slot does between two things that need its attention.

This loop is what a short task costs. So it makes no system call: what must be put right after user
code (an alarm that it left, descriptors that it closed, a fork that came back) takes some, and is
done only after tasks that took long enough to have made one themselves. Results are packed as they
come, since user code may change what it returned, and recorded together within `BURST` seconds.
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
"""Seconds after which results are recorded: a crash takes back no more than that."""
BURST_BYTES = 1 << 15
"""Bytes of results, likewise."""

_HARMLESS = 0.7
"""Of the time of the quickest system call: a task that took less made none."""

_clock = time.monotonic


class Other(NamedTuple):
    """A task that did not simply return something that can be packed: its status and value as far
    as they are known, and when it began."""

    status: str
    value: Any
    started: float


class Sprint(NamedTuple):
    """What came of calls in a row: the packed values of those that returned, in how many seconds,
    and what came of the next one, if it was begun."""

    values: list[bytes]
    seconds: float = 0.0
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
        at, since = self._region.index_mark, self._region.started_mark
        limit, pack = self._region.limit_mark, self._pack
        values: list[bytes] = []
        room, harmless = BURST_BYTES, _HARMLESS * quickest_call()
        ended = begun = _clock()
        enough = begun + BURST
        if index >= limit[0]:
            return Sprint(values)
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
                return Sprint(values, started - begun, other)
            try:
                packed = pack(value)
            except BaseException:  # its own methods ran; the careful way has the words for it
                return Sprint(values, started - begun, Other(outcomes.OK, value, started))
            values.append(packed)
            index += 1
            room -= len(packed)
            if ended > enough or room < 0 or index >= limit[0]:
                break
        return Sprint(values, ended - begun)


def quickest_call() -> float:
    """Seconds that the quickest system call takes now, the clock included: no task that made one
    takes less. Measured each time, since machines are slower at one moment than at another."""
    best = 1.0
    for _ in range(3):  # one may be interrupted
        started = _clock()
        os.getpid()
        best = min(best, _clock() - started)
    return best
