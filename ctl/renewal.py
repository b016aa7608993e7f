"""Keeping a run from a site's purge of scratch folders: what must stay counts as used.

Sites delete what nobody has used for some days, by the time of the last reading, and a run may wait
longer than that: for a host, for a round, for a person. So what is older than a day gets a new time
of reading. The time of the last change often means something here (since when a batch waits, when
an upload came), and is new only where nobody goes by it. Heartbeats are never touched.

A pass needs no memory: whatever is old is renewed, in a random order, so that passes which are cut
short reach everything in the end. A name in `ctl/` says on which day the last one was whole.
"""

from __future__ import annotations

import enum
import errno
import os
import random
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ctl.locks import verb_lock
from ctl.shelf import REASON
from fsworker.errors import Busy
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import groups
from fsworker.protocol.layout.bundles import BUNDLES

DAY = 86_400.0
_MARK = ".renewed-"
_FEDERATION, _JOB, _ATTEMPTS = groups.FEDERATION + "/", "/job.json", "/attempts/"
_PASSING = (".tmp~", ".nfs", ".probe~", _MARK)
"""Beginnings of names that nobody will miss."""


class Times(enum.Enum):
    """Which times of a file may be new: that of reading, both, or both with a change long ago."""

    NONE = "none"
    READ = "read"
    BOTH = "both"
    AGED = "aged"


@dataclass
class Renewal:
    """What a pass did: entries that it saw, that it renewed, and that others own."""

    seen: int = 0
    renewed: int = 0
    refused: list[str] = field(default_factory=list)


def times_of(rel: str, *, folder: bool = False) -> Times:
    """What may be renewed of this path below the root."""
    top, _, rest = rel.partition("/")
    if rel.rpartition("/")[2].startswith(_PASSING) or top == layout.STATUS:
        return Times.NONE
    if folder:
        return Times.READ
    if rel == layout.LAUNCH_META:
        return Times.AGED  # it says when a launch was asked for, and that it was long ago will do
    cancelled = rel.startswith(layout.CANCEL + "/")
    if rel in (layout.MANIFEST, layout.MARKER) or top in (layout.CTL, BUNDLES):
        return Times.READ if cancelled or rest.endswith((".log", ".jsonl")) else Times.BOTH
    return Times.READ if _is_dated(top, rel) else Times.BOTH


def _is_dated(top: str, rel: str) -> bool:
    """Whether somebody goes by the time of a file's last change.

    That of a batch is when it was sent, of an upload when it came, of a merged model when its
    round began; of a job and of what was set aside, people are told. A training program may look
    for its newest file, and whoever merges a group's checkpoints takes one that changes meanwhile
    for damaged.
    """
    if top == layout.OUTBOX:
        return rel.startswith(_FEDERATION) or rel.endswith(_JOB) or _ATTEMPTS in rel
    return top not in (layout.DEAD, layout.QUARANTINE) or rel.endswith(REASON)


def is_due(times: Times, now: float, read: float, changed: float) -> bool:
    """Whether a file with these times needs new ones."""
    if times is Times.NONE:
        return False
    return now - (read if times is Times.READ else min(read, changed)) > DAY


def renew(store: Store) -> Renewal:
    """One whole pass, marked when it is done. OSError when the root does not take it."""
    now = store.server_time(layout.CTL)
    done = Renewal()
    for rel, found in _walk(store, ""):
        done.seen += 1
        times = times_of(rel, folder=stat.S_ISDIR(found.st_mode))
        if times is Times.AGED:
            # A launch that somebody asks for now must not be given an old time.
            due = is_due(times, now, found.st_atime, found.st_mtime + DAY)
        else:
            due = is_due(times, now, found.st_atime, found.st_mtime)
        if due:
            _renew(store, rel, times, now, done)
    mark(store, now)
    return done


def day_of(names: Iterable[str]) -> int:
    """The last day (since 1970, by the file server's clock) with a whole pass; 0 for none.

    `names` is a listing of `ctl/`.
    """
    days = (name.removeprefix(_MARK) for name in names if name.startswith(_MARK))
    return max((int(day) for day in days if day.isascii() and day.isdigit()), default=0)


def is_over(day: int, now: float) -> bool:
    """Whether a pass is due again."""
    return int(now // DAY) != day


def _walk(store: Store, folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """Everything below a folder but links, in a random order."""
    try:
        names = store.scan(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    random.shuffle(names)  # no secret
    for name in names:
        rel = f"{folder}/{name}" if folder else name
        try:
            found = os.lstat(store.path(rel))
        except FileNotFoundError:
            continue
        if stat.S_ISREG(found.st_mode):
            yield rel, found
        elif stat.S_ISDIR(found.st_mode) and rel != layout.STATUS:
            yield rel, found
            yield from _walk(store, rel)


def _renew(store: Store, rel: str, times: Times, now: float, done: Renewal) -> None:
    path = store.path(rel)
    try:
        if times is Times.BOTH:
            os.utime(path, follow_symlinks=False)
        elif times is Times.READ:
            _as_read(path)
        else:
            with verb_lock(store, "renew", patience=0):
                os.utime(path, (now, now - DAY), follow_symlinks=False)
    except (FileNotFoundError, Busy):
        return
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EACCES):
            raise
        done.refused.append(rel)
        return
    done.renewed += 1


_AT_FDCWD, _NOFOLLOW, _NOW, _OMIT = -100, 0x100, (1 << 30) - 1, (1 << 30) - 2


def _as_read(path: str) -> None:
    """A new time of reading, and of nothing else.

    Not by os.utime, which must be told the other time too: whoever writes the file between our
    look and our call would get an older time than a reader has seen.
    """
    import ctypes  # lazily: a watcher that looks at what was renewed does without

    times = (ctypes.c_long * 4)(0, _NOW, 0, _OMIT)
    if _libc().utimensat(_AT_FDCWD, os.fsencode(path), times, _NOFOLLOW) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)


@cache
def _libc() -> Any:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def mark(store: Store, now: float) -> None:
    """Note that all files count as used on the day of `now`."""
    mine = f"{_MARK}{int(now // DAY)}"
    store.put(f"{layout.CTL}/{mine}", b"", durable=False)
    for name in store.scan(layout.CTL):
        if name.startswith(_MARK) and name != mine:
            store.remove_quietly(f"{layout.CTL}/{name}")
