"""The watcher as other verbs see it: start one that outlives us, and end one that runs.

`stop` ends the watcher before the workers, or it would start them again; and it signals only a
process that is proven to be the watcher, because a pid file on a shared folder may name a process
of another machine.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from typing import Any

from ctl.locks import TAKES_NOTHING
from fsworker import errors
from fsworker.errors import FormatError, UsageError
from fsworker.identity import RUNNING, Place, send, state_of
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.records import coding
from fsworker.protocol.records.run import Identity

log = logging.getLogger(__name__)

IDENTITY = layout.CTL + "/watch.identity.json"
LEAST_STALE = 5.0
"""Seconds: a worker beats every 2 s, and one beat that is late must accuse nobody."""
PATIENCE = 15.0
"""Seconds for a watcher on this machine to end: it finishes the act that it is in."""


def check_stale(seconds: float, wanted: bool = True) -> None:
    """UsageError for a watcher, if one is wanted, that would suspect workers that are well."""
    if wanted and seconds < LEAST_STALE:
        raise UsageError(
            "--heartbeat-stale of a watcher (FLEET_WATCH_STALE) must be at least "
            f"{LEAST_STALE:g} s: workers beat each 2 s"
        )


def start(root: str, config_file: str | None, extra: tuple[str, ...] = ()) -> int:
    """Start a watcher in a session of its own; its pid. It logs to `ctl/watch.log` itself."""
    home = os.path.dirname(os.path.dirname(os.path.abspath(errors.__file__)))
    path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
    named = ["--config", config_file] if config_file else []
    argv = [sys.executable, "-m", "ctl", *named, "watch", "--root", root, *extra]
    store = Store(root)
    try:
        # What it says before it can log by itself, and a traceback, must not be lost.
        with open(store.path(layout.WATCH_ERR), "ab") as out:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path},
            )
    except OSError as error:
        raise storage_error(error, "start a watcher for", root) from None
    return child.pid


def stop(store: Store, patience: float = PATIENCE) -> str | None:
    """Ask the run's watcher to end, and end it if it is here; a sentence if it may still run."""
    try:
        store.publish(layout.WATCH_STOP, b"")
    except OSError as error:
        failure = storage_error(error, "write", store.path(layout.WATCH_STOP))
        if error.errno not in TAKES_NOTHING:
            raise failure from None
        log.warning("%s: a watcher on another machine is not told", failure)
    who = read_identity(store)
    if who is None:
        return None
    if state_of(who, Place.here(who.host)) == "unknown":
        return _elsewhere(store, who)
    return end(who, "the watcher", patience)


def end(who: Identity, what: str, patience: float) -> str | None:
    """TERM to a process that is here, and wait for it; a sentence if it outlives `patience`."""
    place = Place.here(who.host)
    if state_of(who, place) not in RUNNING:
        return None
    send(who, signal.SIGTERM, place)
    limit = time.monotonic() + patience
    while (state := state_of(who, place)) in RUNNING:
        if time.monotonic() >= limit:
            return f"{what} (pid {who.pid}) is still there after {patience:g} s ({state})"
        time.sleep(0.05)
    return None


def read_identity(store: Store) -> Identity | None:
    """Who the watcher says that it is; None when nobody watches or the file is damaged."""
    names = store.scan(layout.CTL)
    if IDENTITY.rpartition("/")[2] not in names or layout.WATCH_PID.rpartition("/")[2] not in names:
        return None
    path = store.path(IDENTITY)
    try:
        value = json.loads(store.read(IDENTITY, limit=1 << 16))
        return coding.from_object(Identity, _process(value), path)
    except (OSError, ValueError, FormatError) as error:
        log.warning("cannot tell who watches: %s", error)
        return None


def _process(value: Any) -> dict[str, Any]:
    """The process in an identity file: itself, or under `worker` as hosts' files have it."""
    if not isinstance(value, dict):
        raise ValueError("it must hold a JSON object")
    inner = value.get("worker")
    return inner if isinstance(inner, dict) else value


def _elsewhere(store: Store, who: Identity) -> str | None:
    """A watcher on another machine sees the request at its next sweep; wait for a short one."""
    end = time.monotonic() + 3.0
    while layout.WATCH_PID.rpartition("/")[2] in store.scan(layout.CTL):
        if time.monotonic() >= end:
            return f"the watcher on {who.host} (pid {who.pid}) was asked to end at its next sweep"
        time.sleep(0.2)
    return None
