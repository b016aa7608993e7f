"""Members that ended without a word: what tells that they are over, and taking them off the list.

Nobody may contact a member, so one that was killed is known by the root alone: by its record, where
its processes were on this machine, or by a silence that is long enough for its work to return.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime

from ctl import beats
from ctl.units import human
from fsworker.errors import FormatError
from fsworker.identity import PROVABLY_DEAD, Place, state_of
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout.members import member_path
from fsworker.protocol.records.member import Member
from fsworker.protocol.records.run import HostIdentity

log = logging.getLogger(__name__)

_SMALL = 1 << 16


@dataclass(frozen=True)
class Silence:
    """A last beat: `since` in epoch seconds and `seconds` ago, by the file server's clock."""

    since: float
    seconds: float

    def __str__(self) -> str:
        at = datetime.fromtimestamp(self.since, UTC)
        return f"silent since {at:%Y-%m-%d %H:%M:%S} UTC ({human(self.seconds)})"


def silence(store: Store, host: str) -> Silence:
    """How long the host has not beaten. FileNotFoundError when it left no heartbeat; OSError."""
    changed = store.read_with_mtime(layout.status_path(host))[1]
    return Silence(changed, max(0.0, beats.server_now(store) - changed))


def ended_here(store: Store, host: str, launch: int) -> bool:
    """Whether the member's processes were on this very machine, and are proven to be gone."""
    path = layout.host_file(host, "identity.json")
    try:
        who: HostIdentity = HostIdentity.from_json(store.read(path, _SMALL), path)
    except (OSError, FormatError):
        return False
    here = Place.here(host)
    if who.launch != launch or who.worker is None or not (here.boot_id and here.pid_ns):
        return False
    both = [process for process in (who.wrapper, who.worker) if process]
    known = all((p.boot_id, p.pid_ns) == (here.boot_id, here.pid_ns) for p in both)
    return known and all(state_of(p, here) in PROVABLY_DEAD for p in both)


def let_go(store: Store, host: str, launch: int) -> None:
    """Do for a member that is over what it does at its own end; a later start's record stays."""
    path = member_path(host)
    try:
        there: Member = Member.from_json(store.read(path, _SMALL), path)
        if there.launch != launch:
            return
        rels = [path, layout.status_path(host), layout.host_file(host, "code.json")]
        tokens = filter(None, map(layout.parse_launch_token, store.scan(layout.CTL)))
        rels += [t.path for t in tokens if t.host == host and t.number <= launch]
    except FileNotFoundError:
        return
    except (OSError, FormatError) as error:
        log.info("the member %s stays on the list: %s", host, error)
        return
    for rel in rels:
        store.remove_quietly(rel)
