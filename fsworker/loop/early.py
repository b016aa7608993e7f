"""When a batch that takes long publishes what it has finished: pure, by counts and moments.

The first time after two seconds and then ever more seldom, since each time costs calls on the root.
Sooner where nothing more has come between two looks: then all that is finished waits for a
straggler, and whoever sent it should not.
"""

from __future__ import annotations

FIRST = 2.0
"""Seconds after which a batch publishes what it has finished, the first time."""
FIRST_STALL = 0.5
"""Seconds between two publications because nothing more comes, at first."""
SLOWER, LONGEST = 1.5, 15.0


class Early:
    """The early results of one batch, which was claimed at `now`. `published` counts them."""

    def __init__(self, now: float) -> None:
        self.published = 0
        self._seen = -1
        self._pause, self._due = FIRST, now + FIRST
        self._stall_pause, self._stall_due = FIRST_STALL, 0.0

    def hurry(self) -> None:
        """At the next chance: somebody waits."""
        self._due = 0.0

    def is_due(self, now: float, finished: int) -> bool:
        """Whether to publish now, with so many tasks finished; asked at every look."""
        stalled = finished == self._seen and finished > self.published and now >= self._stall_due
        self._seen = finished
        if now < self._due and not stalled:
            return False
        if stalled:
            self._stall_due = now + self._stall_pause
            self._stall_pause *= SLOWER
        self._due = now + self._pause
        return True

    def did(self, count: int) -> None:
        """So many more are published."""
        self.published += count
        self._pause = min(self._pause * SLOWER, LONGEST)
