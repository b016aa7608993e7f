"""Whose shard nobody calls home: hosts join a live run, leave it, and are stopped.

Clients send to every shard of the run, whatever hosts it has at the moment, so a shard without a
worker of its own must be looked at as often as one with. Who does so follows from what the
controller wrote down, so all workers come to the same answer without a word to each other: the
shards that nobody serves are dealt out to the workers that are there. A worker that is merely dead
is the watcher's business, and thieves serve its shard until then.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from fsworker.errors import FormatError
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.records.run import LaunchMeta, WorkerSpec

log = logging.getLogger("fsworker.loop.roster")

LOOK_EVERY = 10.0
"""Seconds between two looks, which cost a listing and a read."""


class Roster:
    """What the controller wants of the run's hosts, as one worker sees it."""

    def __init__(self, store: Store, host: str) -> None:
        self._store, self._host = store, host
        self._due = 0.0
        self._told = b""
        self._meta: LaunchMeta | None = None
        self.adopted: tuple[int, ...] = ()
        """Shards beside the own one that this worker is to look after."""

    @property
    def hosts(self) -> frozenset[str] | None:
        """The hosts of the run, or None while nobody said."""
        return frozenset(w.host for w in self._meta.workers) if self._meta else None

    def turn(self, now: float) -> bool:
        """Look if it is time. True when other shards are to be looked after than before."""
        if now < self._due:
            return False
        self._due = now + LOOK_EVERY
        before = self.adopted
        try:
            self._look()
        except FileNotFoundError:
            return False  # a run without a controller
        except (OSError, FormatError) as error:
            log.info("cannot see which hosts are of the run: %s", error)
            return False
        if self.adopted != before:
            log.info("looking after shards %s as well, which no host calls home", self.adopted)
        return self.adopted != before

    def _look(self) -> None:
        data = self._store.read(layout.LAUNCH_META)
        if data != self._told:
            self._meta = LaunchMeta.from_json(data, layout.LAUNCH_META)
            self._told = data
        assert self._meta
        names = set(self._store.scan(layout.CTL))
        stops = {w.host for w in self._meta.workers if _stop_name(w.host) in names}
        self.adopted = adopted(self._meta.workers, stops, self._meta.shard_count, self._host)


def adopted(
    workers: Sequence[WorkerSpec], down: Collection[str], shard_count: int, host: str
) -> tuple[int, ...]:
    """The shards without a worker that fall to `host`; `down`: hosts that are told to stop."""
    there = [w for w in workers if w.host not in down]
    served = {w.shard for w in there}
    orphans = [s for s in range(shard_count) if s not in served]
    hosts = [w.host for w in there]
    if host not in hosts:
        return ()
    return tuple(orphans[hosts.index(host) :: len(hosts)])


def _stop_name(host: str) -> str:
    return layout.host_file(host, "stop").rpartition("/")[2]
