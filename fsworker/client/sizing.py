"""How many tasks go into a batch: the trade between round trips and an even load.

A batch costs the same ten calls whether it holds one task or a thousand, so tasks that take
microseconds want large batches. A batch is executed by one worker, so tasks that take seconds want
small ones. The duration of a task is learnt from the results as they come.

A batch's duration is not all its tasks': on slow storage or a busy host a batch of no work at all
may take longer than the target. Were that taken for the tasks' doing, batches would shrink to
single tasks, the overhead would be paid for each, and nothing would ever show the mistake. So what
counts is how the duration grows with the number of tasks, and now and then a small batch is made
larger to see.
"""

from __future__ import annotations

import math

TARGET_SECONDS = 0.2
"""What a batch should take its worker: far more than it costs, far less than people notice."""

UNKNOWN = 64
"""The size that is aimed at until a result has told how long a task takes."""

_WEIGHT = 0.3
_MEMORY = 0.1
"""The weight of the latest batch in what is known of how durations grow."""
_SPREAD = 0.1
"""How much sizes must differ, relative to their mean, to tell anything about that."""
_PROBE_EVERY, _PROBE_TIMES, _PROBE_BELOW = 16, 4, 16
"""Each so manyth batch is so many times larger, where batches have less than so many tasks."""
_PROBE_SECONDS = 10 * TARGET_SECONDS
"""Unless batches take longer than that: then it is the tasks, or it would be felt."""


class Sizer:
    """Chooses batch sizes of at most `limit` tasks for `width` shards."""

    def __init__(self, limit: int, width: int) -> None:
        self._limit = limit
        self._width = width
        self._target = float(min(UNKNOWN, limit))
        self._growth = Growth()
        self._chosen = 0

    def learn(self, tasks: int, elapsed: object) -> None:
        """Take a finished batch's duration on its worker (seconds) into account."""
        if not isinstance(elapsed, (int, float)) or not math.isfinite(elapsed) or tasks < 1:
            return
        self._growth.learn(float(tasks), float(elapsed))
        each = max(float(elapsed), 1e-6) / tasks
        if (growth := self._growth.each()) is not None:
            each = min(each, max(growth, 1e-9))
        fitting = TARGET_SECONDS / each
        # A step is bounded: a batch that was served from one look says little about the next.
        fitting = min(max(fitting, self._target / 8), self._target * 8)
        target = self._target + _WEIGHT * (fitting - self._target)
        self._target = min(max(target, 1.0), float(self._limit))

    def choose(self, waiting: int | None) -> int:
        """The size of the next batches when `waiting` tasks wait (None: unknown, or many)."""
        target = max(1, round(self._target))
        self._chosen += 1
        small = target < _PROBE_BELOW and self._growth.elapsed < _PROBE_SECONDS
        if small and self._chosen % _PROBE_EVERY == 0:
            target = min(target * _PROBE_TIMES, self._limit)
        if waiting is None:
            return target
        fair = -(-waiting // self._width)
        return min(max(fair, target // 8, 1), target)


class Growth:
    """How the duration of a batch grows with its tasks: a line through the latest of them."""

    def __init__(self) -> None:
        self.elapsed = 0.0
        self._tasks = 0.0
        self._squares = 0.0
        self._products = 0.0
        self._known = False

    def learn(self, tasks: float, elapsed: float) -> None:
        """Take a batch of so many tasks that took so many seconds into account."""
        if not self._known:
            self._known, self._tasks, self.elapsed = True, tasks, elapsed
            return
        # Exponentially weighted moments, by differences to the mean of before (West 1979).
        off, late = tasks - self._tasks, elapsed - self.elapsed
        self._tasks += _MEMORY * off
        self.elapsed += _MEMORY * late
        self._squares = (1 - _MEMORY) * (self._squares + _MEMORY * off * off)
        self._products = (1 - _MEMORY) * (self._products + _MEMORY * off * late)

    def each(self) -> float | None:
        """Seconds that one more task takes; None when batches were alike, or others than before."""
        alike = self._squares <= (_SPREAD * self._tasks) ** 2
        if alike or self._products <= 0 or self.elapsed > _PROBE_SECONDS:
            return None
        return self._products / self._squares
