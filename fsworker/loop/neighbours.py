"""What a worker does for hosts beside its own: serve their shards, return what they left, and
forward to them what it cannot serve itself.

All follow from looks at the root that are rare, and all are harmless when several do them.
"""

from __future__ import annotations

from fsworker.loop.capability import Capability
from fsworker.loop.intake import Intake
from fsworker.loop.orphans import Orphans
from fsworker.loop.roster import Roster
from fsworker.protocol.fsops import Store


class Neighbours:
    """The other hosts of the run, as far as they concern this one."""

    def __init__(
        self, store: Store, host: str, intake: Intake, capability: Capability | None = None
    ) -> None:
        self._intake, self._capability = intake, capability
        self._roster = Roster(store, host)
        self._orphans = Orphans(store, host)

    def turn(self, now: float, *, idle: bool) -> None:
        """Do what is due. `idle`: there is nothing else to do."""
        if self._roster.turn(now):
            self._intake.adopt(self._roster.adopted)
        if self._capability is not None:
            self._capability.turn(now)
        if idle:
            self._orphans.turn(now, self._roster.hosts)
