"""Claims that nobody will ever commit, returned by a worker that has nothing else to do.

Normally a host's next life returns what its last one held, and the watcher does it for hosts that
have none. Without a watcher there remain the claims of lives that are over by their hosts' own
word, and of hosts that were taken out of the run. A life that is its host's current one is never
touched, however long it has been silent: only who asks the host may judge that. Even so nothing is
done at first sight: between the making of a claims folder and the first beat a new life looks as
if it were an old one. And a life that has just begun gets time to return the claims of its
predecessor itself, because it alone knows that this one died, and so whom to blame.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Collection
from dataclasses import dataclass

from fsworker.errors import FormatError
from fsworker.protocol import layout, ledger
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Owner
from fsworker.protocol.records.run import Heartbeat

log = logging.getLogger("fsworker.loop.orphans")

LOOK_EVERY = 40.0
"""Seconds between two looks, give or take a quarter: idle workers shall not all look at once."""
OVER_FOR = 30.0
"""Seconds for which a life must have been seen to be over."""
SUCCESSOR_PATIENCE = 300.0
"""The same while its successor has not become ready."""
BEATS_A_LOOK = 60
"""Heartbeats that are read at one look: with LOOK_EVERY, less than two a second."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Since when a life has looked as it does, and by which beat of its host (None: none)."""

    since: float
    patience: float
    beat: tuple[str, int] | None


class Orphans:
    """What one worker has seen of the claims of other hosts."""

    def __init__(self, store: Store, host: str) -> None:
        self._store, self._host = store, host
        self._due = LOOK_EVERY * random.random()  # noqa: S311  # no secret
        self._first = True
        self._suspicions: dict[Owner, Suspicion] = {}
        self._from = random.randrange(1 << 16)  # noqa: S311

    def turn(self, now: float, hosts: Collection[str] | None) -> int:
        """Look if it is time; `hosts` are those of the run, if known. How many batches moved."""
        if self._first:
            self._first, self._due = False, now + self._due
        if now < self._due:
            return 0
        self._due = now + LOOK_EVERY * random.uniform(0.75, 1.25)  # noqa: S311
        try:
            return self._look(now, hosts)
        except OSError as error:
            log.info("cannot look for claims of lives that are over: %s", error)
            return 0

    def _look(self, now: float, hosts: Collection[str] | None) -> int:
        owners = [o for o in map(layout.parse_owner, self._store.scan(layout.CLAIMS)) if o]
        others = sorted({o.host for o in owners if o.host != self._host})
        at = self._from % max(len(others), 1)
        chosen = (others[at:] + others[:at])[:BEATS_A_LOOK]
        self._from += len(chosen)
        beats = {host: self._beat(host) for host in chosen}
        seen: dict[Owner, Suspicion] = {
            o: s for o, s in self._suspicions.items() if o in owners and o.host not in beats
        }
        moved = 0
        for owner in owners:
            if owner.host not in beats:
                continue
            removed = hosts is not None and owner.host not in hosts
            found = suspect(owner, beats[owner.host], removed, now, self._suspicions.get(owner))
            if found is None:
                continue
            seen[owner] = found
            if now - found.since >= found.patience:
                moved += self._return(owner)
        self._suspicions = seen
        return moved

    def _beat(self, host: str) -> Heartbeat | None:
        """What a host last said; None when there is nothing that can be believed."""
        path = layout.status_path(host)
        try:
            beat: Heartbeat = Heartbeat.from_json(self._store.read(path), path)
        except (FileNotFoundError, FormatError):
            return None
        return beat if beat.host == host else None

    def _return(self, owner: Owner) -> int:
        done = self._store.run(ledger.reclaim(owner, died=False))
        if done.moved:
            log.warning(
                "%d batches of %s, whose life is over, are back: %s",
                len(done.moved),
                owner.name,
                ", ".join(done.names),
            )
        return len(done.moved)


def suspect(
    owner: Owner, beat: Heartbeat | None, removed: bool, now: float, past: Suspicion | None
) -> Suspicion | None:
    """Whether a life looks as if it were over: since when, and for how long that must last.

    `removed`: its host is no longer of the run. Then silence counts as well, but only as long as
    it is the same silence.
    """
    mark = (beat.incarnation, beat.seq) if beat else None
    over = beat is not None and (beat.incarnation != owner.incarnation or beat.stopped)
    if over:
        assert beat is not None
        settled = beat.ready or beat.stopped or beat.refused is not None
        patience = (
            OVER_FOR if settled or beat.incarnation == owner.incarnation else (SUCCESSOR_PATIENCE)
        )
        since = past.since if past is not None else now
        return Suspicion(since, patience, mark)
    if removed:
        same = past is not None and past.beat == mark
        return Suspicion(past.since if past and same else now, 2 * OVER_FOR, mark)
    return None
