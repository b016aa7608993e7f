"""How long to wait before the next life: a pure rule, so that it is tested as a table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds: `first` pause after any end, doubled up to `cap` with every life shorter than
    `healthy`; one healthy life makes the next pause `first` again.
    """

    first: float = 2.0
    cap: float = 60.0
    healthy: float = 30.0

    def after(self, short_lives: int, lived: float) -> tuple[int, float]:
        """(short lives in a row by now, pause) after a life of `lived` seconds.

        `short_lives` is what the previous call returned, 0 at the beginning.
        """
        if lived >= self.healthy:
            return 0, min(self.first, self.cap)
        doublings = min(short_lives, 60)  # beyond this only the float would overflow
        return short_lives + 1, min(self.cap, self.first * 2.0**doublings)
