"""How old a beat is, without comparing the clocks of two machines.

A process that keeps watching counts from when it saw the beat change, on its own monotonic clock.
Two things would make it accuse the innocent, and are prevented here: it was frozen itself (a
suspended laptop, a stopped process), so no step of its clock is longer than two sweep intervals;
the storage was away, so that nobody's beat could be seen, after which all ages start anew.
"""

from __future__ import annotations

from collections.abc import Iterable


class WatchClock:
    """A clock that stands still while its owner does. It starts at the file server's time.

    So that what is remembered on the root means the same to the next watcher.
    """

    def __init__(self, interval: float, monotonic: float, server_time: float) -> None:
        self._longest = 2 * interval
        self._last = monotonic
        self.now = server_time

    def tick(self, monotonic: float) -> float:
        """Move on to `monotonic`, by two intervals at most; gives the time."""
        self.now += min(max(0.0, monotonic - self._last), self._longest)
        self._last = monotonic
        return self.now


class Ages:
    """When each host's beat was last seen to change."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[tuple[str, int], float]] = {}

    def age(self, host: str, key: tuple[str, int], now: float) -> float:
        """Seconds since the beat `key` of `host` was first seen."""
        known = self._seen.get(host)
        if known is None or known[0] != key:
            self._seen[host] = (key, now)
            return 0.0
        return now - known[1]

    def restart(self, now: float) -> None:
        """Count all ages from now."""
        self._seen = {host: (key, now) for host, (key, _) in self._seen.items()}

    def keep(self, hosts: Iterable[str]) -> None:
        """Forget every other host."""
        wanted = set(hosts)
        for host in self._seen.keys() - wanted:
            del self._seen[host]
