"""What earlier lives of a worker on this host held, returned before the new one takes work.

The host-local lock proves that they are dead, so it is charged to them as a death.
"""

from __future__ import annotations

import logging

from fsworker.protocol import layout, ledger
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Owner

log = logging.getLogger("fsworker.loop.predecessors")

RECLAIM_EVERY = 1.0


class Predecessors:
    """The lives on this host before `me`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._due = 0.0

    def returned(self, me: Owner, now: float) -> bool:
        """Whether nothing of theirs is left; tries again every RECLAIM_EVERY seconds."""
        if now < self._due:
            return False
        self._due = now + RECLAIM_EVERY
        try:
            owners = map(layout.parse_owner, self._store.scan(layout.CLAIMS))
            old = [o for o in owners if o and o.host == me.host and o != me]
            results = [self._return(owner) for owner in old]
            return all(results)
        except OSError as error:
            log.error("cannot take back what earlier lives held: %s", error)
            return False

    def _return(self, owner: Owner) -> bool:
        done = self._store.run(ledger.reclaim(owner, died=True))
        if done.moved:
            some = ", ".join(done.names)
            log.warning(
                "%d batches of %s are back in the inbox: %s", len(done.moved), owner.name, some
            )
        return done.finished
