"""How long a look at the root may take before the storage is suspected. Pure.

A single look that is late tells of a storage that stalls. Where one after the other is, the storage
is as slow as that: it has many hosts, or much other work. To suspect it for ever would leave the
dead where they are for ever.
"""

from __future__ import annotations

QUICK_LOOKS = 20
"""So many quick looks in a row make the limit shorter again."""


class Patience:
    """`limit`: seconds for a look. From `least` on, doubled while looks are late, up to `most`."""

    def __init__(self, least: float, most: float) -> None:
        self.limit = least
        self._least, self._most = least, max(least, most)
        self._late = self._quick = 0

    def late(self) -> bool:
        """A look took longer than the limit. True when more is allowed from now on."""
        self._late, self._quick = self._late + 1, 0
        if self._late < 2 or self.limit >= self._most:
            return False
        self.limit = min(2 * self.limit, self._most)
        return True

    def kept(self, took: float) -> None:
        """A look took so many seconds, within the limit."""
        self._late = 0
        self._quick = self._quick + 1 if took <= self._least else 0
        if self._quick >= QUICK_LOOKS:
            self.limit, self._quick = max(self.limit / 2, self._least), 0
