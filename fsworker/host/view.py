"""What a host knows of one run on it: who was started, who lives, what belongs to it.

The root may be damaged or away while processes live, and processes may have lost their record. So
each source is read for itself, what could not be read is a warning, and the proofs are combined:
the identity file, the lock that only a living wrapper or worker holds, and the environment that
every process of the run was started with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fsworker import procfs
from fsworker.errors import FleetError
from fsworker.identity import PROVABLY_DEAD, Place, State, find_by_environ, state_of
from fsworker.life import hostlock, lifefiles
from fsworker.protocol.fsops import Store
from fsworker.protocol.records.run import HostIdentity, Identity

STUCK_PATIENCE = 1.0
"""Seconds for which a process must be seen in state D at every look to count as stuck."""


@dataclass
class HostView:
    """One run on this host. `run_id` is None when the manifest cannot be read.

    `recorded` is what the root says; `asked` is the identity that the asker means, if it named one.
    """

    store: Store
    place: Place
    run_id: str | None = None
    recorded: HostIdentity | None = None
    asked: HostIdentity | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> dict[str, str]:
        """The environment entries that every process of this run on this host holds."""
        assert self.run_id is not None
        run = hostlock.run_key(self.store.root, self.run_id)
        return {"FLEET_RUN": run, "FLEET_HOST": self.place.host}

    def lock_is_free(self) -> bool:
        """Whether wrapper and worker are proven to be gone, whatever any record says."""
        return self.run_id is not None and hostlock.is_free(
            self.store.root, self.run_id, self.place.host
        )

    def lock_is_held(self) -> bool:
        """Whether a wrapper or a worker is proven to be there, in sight or not."""
        return self.run_id is not None and not self.lock_is_free()

    def state(self, who: Identity | None) -> State:
        """What is known of a recorded process; without a record only the lock can tell."""
        state = state_of(who, self.place, STUCK_PATIENCE) if who else "unknown"
        return "dead" if state == "unknown" and self.lock_is_free() else state

    def members(self, covers: int | None = None) -> list[Identity]:
        """Every process of the run on this host, found by its environment.

        With `covers` only those of that launch and those before.
        """
        if self.run_id is None:
            return []
        found = find_by_environ(self.tokens, self.place)
        return [who for who in found if covers is None or _launch_of(who.pid) <= covers]

    def strays(self) -> list[Identity]:
        """Members that no living wrapper or worker that we know of is above."""
        records = [record for record in (self.recorded, self.asked) if record]
        both = [who for record in records for who in (record.wrapper, record.worker) if who]
        known = [who.pid for who in both if self.lives(who)]
        spared = {*known, *(stat.pid for stat in procfs.descendants(known))}
        return [who for who in self.members() if who.pid not in spared]

    def lives(self, who: Identity) -> bool:
        """Whether it is proven to run here."""
        return state_of(who, self.place) not in {*PROVABLY_DEAD, "unknown"}


def view(root: str, host: str, identity: Mapping[str, Any] | None = None) -> HostView:
    """Look. An `identity` that the asker brings along is the one that it means."""
    seen = HostView(Store(root), Place.here(host))
    try:
        seen.run_id = lifefiles.read_manifest(seen.store).run_id
    except FleetError as error:
        seen.warnings.append(f"strays cannot be found: {error}")
    try:
        seen.recorded = lifefiles.read_identity(seen.store, host)
    except (OSError, FleetError) as error:
        seen.warnings.append(f"who was started is not known: {error}")
    if identity is not None:
        data = json.dumps(dict(identity)).encode()
        seen.asked = HostIdentity.from_json(data, "the identity in the request")
    return seen


def _launch_of(pid: int) -> int:
    for entry in procfs.environ(pid):
        key, _, value = entry.partition(b"=")
        if key == b"FLEET_LAUNCH" and value.isdigit():
            return int(value)
    return 0
