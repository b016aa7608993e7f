"""What attaching reads from a run root and leaves in it."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass

from fsworker.errors import Busy, FormatError, NotRunning, Refused, UsageError
from fsworker.identity import Place
from fsworker.life import hostlock, lifefiles
from fsworker.loop.admission import admit
from fsworker.protocol import launches, layout, ledger
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import members as names
from fsworker.protocol.membership import read_members
from fsworker.protocol.records.member import Member
from fsworker.protocol.records.run import Heartbeat, LaunchMeta, Manifest

WATCH_FOR = 6.0
"""Seconds in which a living worker beats: three times its interval."""
LOCK_PATIENCE = 5.0
"""Seconds in which the worker of a wrapper that was killed has ended."""


@dataclass(frozen=True)
class Seen:
    """What is there of a run."""

    manifest: Manifest
    meta: LaunchMeta
    members: tuple[Member, ...]


def look(store: Store) -> Seen:
    """The run as it is now. Refused, NotRunning, OSError and FormatError as they come."""
    if os.path.isfile(store.root):
        raise UsageError(f"--root {store.root} is a file: name the folder of a run")
    manifest = admit(store, 0)
    path = store.path(layout.LAUNCH_META)
    try:
        meta: LaunchMeta = LaunchMeta.from_json(store.read(layout.LAUNCH_META), path)
    except FileNotFoundError:
        raise NotRunning(f"{path} is missing: the run is not started yet", path=path) from None
    return Seen(manifest, meta, read_members(store))


def last_launch(store: Store, host: str) -> int:
    """The highest launch of a host that anything tells of; 0 for none."""
    who = lifefiles.read_identity(store, host)
    given = launches.numbers(store.scan(layout.CTL)).get(host, 0)
    return max(given, who.launch if who else 0)


def check_silent(store: Store, host: str, watch_for: float = WATCH_FOR) -> None:
    """Busy when somebody else beats under this name; silence is its last holder's end."""
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
            raise Busy(
                f"{host!r} is in use: pid {now.pid} on {now.hostname or 'another machine'} beats "
                "under that name: attach under another (--name)"
            )


def lock(store: Store, run_id: str, host: str, patience: float = LOCK_PATIENCE) -> socket.socket:
    """The lock of this machine for a name. Busy when a worker that does not beat has it."""
    try:
        return hostlock.acquire(store.root, run_id, host, patience)
    except Busy:
        pid = layout.host_file(host, lifefiles.WRAP_PID)
        raise Busy(
            f"{host!r} is in use: its worker on this machine lives, though it does not beat "
            f"({store.path(pid)}): end it, or attach under another name (--name)",
            host=host,
        ) from None


def take_back(store: Store, host: str, *, requeued: bool) -> None:
    """Return what earlier workers of a name held.

    Their death is a batch's affair only where it is proven: they were on this machine, whose lock
    we hold, and nobody ended them from outside.
    """
    who = lifefiles.read_identity(store, host)
    here, last = Place.here(host), who.worker or who.wrapper if who else None
    known = last is not None and (last.boot_id, last.pid_ns) == (here.boot_id, here.pid_ns)
    for owner in filter(None, map(layout.parse_owner, store.scan(layout.CLAIMS))):
        if owner.host == host:
            store.run(ledger.reclaim(owner, died=known and not requeued))


class Stopped(Exception):
    """The workers of a name were told to stop while one of them was about to attach."""


def appear(store: Store, member: Member, known: bytes | None = None) -> None:
    """Become a member. Busy when somebody on another machine becomes the same at this moment.

    `known` is the stop intent that was there when this began. Whoever wrote another since could not
    know of this launch, but meant it: the last one was killed, and this is its next life. Stopped.
    """
    host = member.host
    intent = lifefiles.stop_intent(store, host)
    if intent and intent != known:
        raise Stopped(f"{host!r} was told to stop while it attached")
    if intent is not None and lifefiles.covers(intent, member.launch):
        path = store.path(layout.host_file(host, lifefiles.STOP))
        raise Refused(f"{path} tells every worker called {host!r} to stop: remove it first")
    if host in store.run(launches.take({host: member.launch}, os.urandom(4).hex())):
        raise Busy(f"{host!r} is in use: another machine attaches under that name (--name)")
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
        store.remove(layout.host_file(member.host, "code.json"))
        for token in filter(None, map(layout.parse_launch_token, store.scan(layout.CTL))):
            if token.host == member.host and token.number <= member.launch:
                store.remove(token.path)


def refusal(store: Store, host: str) -> str | None:
    """Why the worker of a name refused to serve, in its last beat; None where it did not."""
    try:
        beat = _beat(store, host)
    except (OSError, FormatError):
        return None
    return beat.refused if beat else None


def _beat(store: Store, host: str) -> Heartbeat | None:
    path = layout.status_path(host)
    if path.rpartition("/")[2] not in store.scan(layout.STATUS):
        return None
    try:
        beat: Heartbeat = Heartbeat.from_json(store.read(path, 1 << 20), path)
    except FileNotFoundError:
        return None
    return beat
