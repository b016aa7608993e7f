"""What attaching reads from a run root and leaves in it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from fsworker.errors import FormatError, NotRunning, Refused
from fsworker.life import lifefiles
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import members as names
from fsworker.protocol.membership import read_members
from fsworker.protocol.records.member import Member
from fsworker.protocol.records.run import Heartbeat, LaunchMeta, Manifest

WATCH_FOR = 6.0
"""Seconds in which a living worker beats: three times its interval."""


@dataclass(frozen=True)
class Seen:
    """What is there of a run."""

    manifest: Manifest
    meta: LaunchMeta
    members: tuple[Member, ...]
    last_launch: int


def look(store: Store, host: str) -> Seen:
    """The run as it is now. NotRunning, OSError and FormatError as they come."""
    manifest = lifefiles.read_manifest(store)
    path = store.path(layout.LAUNCH_META)
    try:
        meta: LaunchMeta = LaunchMeta.from_json(store.read(layout.LAUNCH_META), path)
    except FileNotFoundError:
        raise NotRunning(f"{path} is missing: the run is not started yet", path=path) from None
    who = lifefiles.read_identity(store, host)
    return Seen(manifest, meta, read_members(store), who.launch if who else 0)


def check_silent(store: Store, host: str, watch_for: float = WATCH_FOR) -> None:
    """Refused when somebody else beats under this name; silence is its last holder's end."""
    try:
        first = _beat(store, host)
    except FormatError:
        first = Heartbeat(host, 0, "", 0, 0.0)  # whatever comes next is another
    if first is None or first.stopped:
        return
    end = time.monotonic() + watch_for
    while time.monotonic() < end:
        time.sleep(min(0.5, watch_for))
        try:
            now = _beat(store, host)
        except FormatError:
            continue  # unreadable is not silent
        if now is None or now.stopped:
            return
        if (now.incarnation, now.seq) != (first.incarnation, first.seq):
            raise Refused(
                f"{host!r} is in use: pid {now.pid} on {now.hostname or 'another machine'} beats "
                "under that name: attach under another (--name)"
            )


def appear(store: Store, member: Member) -> None:
    """Become a member: an older stop intent must not end us, and then everybody may see us."""
    store.publish(names.member_path(member.host), member.to_json())


def vanish(store: Store, member: Member) -> None:
    """End being a member, unless a later start of this name is one."""
    path = names.member_path(member.host)
    try:
        there: Member = Member.from_json(store.read(path, 1 << 16), path)
    except (FileNotFoundError, FormatError):
        return
    if there.launch == member.launch:
        store.remove(path)
        store.remove(layout.status_path(member.host))


def _beat(store: Store, host: str) -> Heartbeat | None:
    path = layout.status_path(host)
    if path.rpartition("/")[2] not in store.scan(layout.STATUS):
        return None
    try:
        beat: Heartbeat = Heartbeat.from_json(store.read(path, 1 << 20), path)
    except FileNotFoundError:
        return None
    return beat
