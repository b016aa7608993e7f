"""Heartbeats as they lie on the root: reading one, and who beats, by the file server's clock."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from fsworker.errors import FormatError
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.records import coding
from fsworker.protocol.records.run import Heartbeat

log = logging.getLogger(__name__)

HEARTBEAT_LIMIT = 1 << 20
EVERY = 2.0
"""Seconds between two beats of a worker that is well."""
LATE = 3 * EVERY
"""Seconds without a beat from which on a worker is called silent."""


def server_now(store: Store) -> float:
    """Now, by the clock that dates heartbeats, even when the disk is full."""
    return server_clock(store)[0]


def server_clock(store: Store) -> tuple[float, str]:
    """The same, and why the root takes no writes; nothing where it does."""
    try:
        return store.server_time(layout.STATUS), ""
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        # A full disk takes no probe file; the marker's own time can be set without space.
        marker = store.path(layout.MARKER)
        os.utime(marker)
        return os.stat(marker).st_mtime, str(storage_error(error, "write to", store.root))


def beating(store: Store, limit: float) -> list[str]:
    """The hosts that beat within `limit` seconds and did not say that they stopped.

    A status that cannot be understood counts: it was written by something.
    """
    names = store.scan(layout.STATUS)
    now = server_now(store) if names else 0.0
    found = []
    for name in sorted(names):
        host = layout.parse_status_name(name)
        rel = f"{layout.STATUS}/{name}"
        if host is None:
            continue
        try:
            data, changed = store.read_with_mtime(rel)
        except (FileNotFoundError, IsADirectoryError):
            continue
        if now - changed <= limit and not _said_goodbye(data, rel):
            found.append(host)
    return found


def is_over(store: Store, host: str) -> bool:
    """Whether a host's worker has said goodbye, or left no heartbeat behind."""
    rel = layout.status_path(host)
    if rel.rpartition("/")[2] not in store.scan(layout.STATUS):
        return True
    try:
        return _said_goodbye(store.read(rel, HEARTBEAT_LIMIT), rel)
    except FileNotFoundError:
        return True


def _said_goodbye(data: bytes, rel: str) -> bool:
    try:
        beat: Heartbeat = Heartbeat.from_json(data, rel)
    except FormatError:
        return False
    return beat.stopped


def say_goodbye_for(store: Store, host: str, launch: int) -> None:
    """Let the beat of a worker that was killed, and is proven gone, say that it stopped.

    Else the root would look live until that beat is old, to the very people who just stopped it.
    Should the proof be wrong, then the worker's next beat takes this back.
    """
    rel = layout.status_path(host)
    try:
        beat: Heartbeat = Heartbeat.from_json(store.read(rel, HEARTBEAT_LIMIT), store.path(rel))
        if beat.host == host and beat.launch <= launch and not beat.stopped:
            over = replace(beat, stopped=True, ready=False, draining=False, slots_busy=0)
            store.publish(rel, over.to_json(), durable=False)
    except (OSError, FormatError) as error:
        log.info("the last beat of host %s is left as it is: %s", host, error)


def read_beat(
    store: Store, host: str, beats: Collection[str]
) -> tuple[Heartbeat | None, dict[str, Any] | None, float | None, str | None]:
    """(heartbeat, its JSON, when it changed, what is wrong with it)."""
    rel = layout.status_path(host)
    path = store.path(rel)
    if rel.rpartition("/")[2] not in beats:
        return None, None, None, None
    try:
        data, mtime = store.read_with_mtime(rel, HEARTBEAT_LIMIT)
    except OSError as error:
        return None, None, None, f"cannot read {path}: {error.strerror or error}"
    try:
        raw = coding.load_object(data, path)
        beat = coding.from_object(Heartbeat, raw, path)
    except FormatError as error:
        return None, None, mtime, str(error)
    if beat.host != host:
        return None, raw, mtime, f"{path}: it is the heartbeat of {beat.host!r}, not of {host!r}"
    return beat, raw, mtime, None
