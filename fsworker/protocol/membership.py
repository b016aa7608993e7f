"""Who has attached to a run, and which tokens let somebody in: read from `ctl/`."""

from __future__ import annotations

from collections.abc import Collection

from fsworker.errors import FormatError
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import members as names
from fsworker.protocol.records.member import JoinToken, Member

_SMALL = 1 << 16


def read_members(store: Store, present: Collection[str] | None = None) -> tuple[Member, ...]:
    """Who has attached, by name; a record that cannot be read is passed over.

    `present`: a fresh listing of `ctl/`, if at hand.
    """
    found = []
    listed = store.scan(layout.CTL) if present is None else present
    for host in filter(None, map(names.parse_member_name, listed)):
        path = names.member_path(host)
        try:
            member: Member = Member.from_json(store.read(path, _SMALL), path)
        except (FileNotFoundError, FormatError):
            continue
        if member.host == host:
            found.append(member)
    return tuple(sorted(found, key=lambda m: m.host))


def read_token(store: Store, public: str) -> JoinToken | None:
    """A token's record; None when there is none."""
    path = names.token_path(public)
    if names.parse_token_name(path.rpartition("/")[2]) is None:
        return None
    try:
        record: JoinToken = JoinToken.from_json(store.read(path, _SMALL), store.path(path))
    except FileNotFoundError:
        return None
    return record if record.id == public else None
