"""One verb at a time on a run, and one writer of its event log.

The lock is a courtesy, not a proof: on a network filesystem it may lie, and every action of a verb
is checked by identity or moves a token. It keeps two people from starting and stopping the same
run against each other, and it is the reason why `events.jsonl` has one writer.
"""

from __future__ import annotations

import errno
import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ctl import render
from fsworker.errors import Busy
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.locks import lock_of, take

log = logging.getLogger(__name__)

VERB_LOCK = layout.CTL + "/.verb.lock"
_ROOM, _ROOM_BYTES = layout.CTL + "/.room", 1 << 16
"""A file that is written to see whether there is room for what a verb has to write."""
TAKES_NOTHING = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""Errors of storage that lets itself be read and not written: no reason to leave workers on."""


@contextmanager
def verb_lock(
    store: Store, verb: str, patience: float = 10.0, *, needed: bool = True
) -> Iterator[None]:
    """Hold the run's verb lock. Busy when another verb holds it for longer than `patience`.

    Unless it is `needed`, storage that takes no writes is worth a warning only.
    """
    from filelock import Timeout  # lazily: reading commands do without

    path, lock = store.path(VERB_LOCK), lock_of(store, VERB_LOCK)
    try:
        take(lock, patience)
    except Timeout:
        raise Busy(
            f"another command is working on {store.root}: try {verb} again when it has ended",
            path=path,
        ) from None
    except NotImplementedError:
        log.warning("%s has no locks: do not run two commands on it at once", store.root)
    except OSError as error:
        failure = storage_error(error, "lock", path)
        if needed or error.errno not in TAKES_NOTHING:
            raise failure from None
        log.warning("%s: going on without", failure)
    try:
        yield
    finally:
        lock.release()


def check_room(store: Store) -> None:
    """StorageError where the root takes no writes: a change is made whole or not begun.

    Asked for before the first of several files is written, since a disk that is full after the
    second of them leaves hosts that were told half of it.
    """
    try:
        store.publish(_ROOM, bytes(_ROOM_BYTES))
    except OSError as error:
        store.remove_quietly(_ROOM)
        raise storage_error(error, "change anything in", store.path(layout.CTL)) from None
    store.remove_quietly(_ROOM)


def record(store: Store, verb: str, **fields: Any) -> None:
    """Append what a verb did to the run's events; never a reason for the verb to fail.

    The watcher is the writer while it acts. Its lock says so, and then it sees what we did.
    """
    from filelock import Timeout

    event = {"at": render.iso(time.time()), "by": verb, **fields}
    text = json.dumps(event, ensure_ascii=False, default=str)
    lock = lock_of(store, layout.WATCH_LOCK)
    try:
        take(lock, 0)
        try:
            store.append_line(layout.EVENTS, text.encode("utf-8", "backslashreplace"))
        finally:
            lock.release()
    except Timeout:
        log.info("the watcher keeps the events; ours is not among them: %s", text)
    except (OSError, NotImplementedError) as error:
        log.warning("cannot write %s: %s", store.path(layout.EVENTS), error)
