"""How many tasks go into a batch: the trade between round trips and an even load.

A batch costs the same ten calls whether it holds one task or a thousand, so tasks that take
microseconds want large batches. A batch is executed by one worker, so tasks that take seconds want
small ones. The duration of a task is learnt from the results as they come.
"""

from __future__ import annotations

import math

TARGET_SECONDS = 0.2
"""What a batch should take its worker: far more than it costs, far less than people notice."""

UNKNOWN = 64
"""The size that is aimed at until a result has told how long a task takes."""

_WEIGHT = 0.3


class Sizer:
    """Chooses batch sizes of at most `limit` tasks for `width` shards."""

    def __init__(self, limit: int, width: int) -> None:
        self._limit = limit
        self._width = width
        self._target = float(min(UNKNOWN, limit))

    def learn(self, tasks: int, elapsed: object) -> None:
        """Take a finished batch's duration on its worker (seconds) into account."""
        if not isinstance(elapsed, (int, float)) or not math.isfinite(elapsed) or tasks < 1:
            return
        fitting = tasks * TARGET_SECONDS / max(float(elapsed), 1e-6)
        # A step is bounded: a batch that was served from one look says little about the next.
        fitting = min(max(fitting, self._target / 8), self._target * 8)
        target = self._target + _WEIGHT * (fitting - self._target)
        self._target = min(max(target, 1.0), float(self._limit))

    def choose(self, waiting: int | None) -> int:
        """The size of the next batches when `waiting` tasks wait (None: unknown, or many)."""
        target = max(1, round(self._target))
        if waiting is None:
            return target
        fair = -(-waiting // self._width)
        return min(max(fair, target // 8, 1), target)
