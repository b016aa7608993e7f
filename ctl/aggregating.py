"""The aggregator as a run's own: start it, keep it alive, end it.

It is a process like any other, and `fedavg run` in a terminal or a unit does the same. What is here
is for who wants it to come and go with the run. That a run wants one is said by a file, its
identity; whoever finds the process that it names dead starts another. To start one too many does no
harm: it stands by until the other ends.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess
import sys

from ctl import groupstatus, watcher
from fsworker import errors
from fsworker.errors import FleetError, FormatError, StorageError, UsageError
from fsworker.identity import RUNNING, Place, identify, state_of
from fsworker.protocol import federation
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.layout import groups
from fsworker.protocol.records import coding
from fsworker.protocol.records.run import Identity

log = logging.getLogger(__name__)

FOLDER, LOG = groups.AGGREGATOR_FOLDER, groups.AGGREGATOR_LOG
IDENTITY = groups.AGGREGATOR_IDENTITY
MOST_LOG = 5 << 20
"""Bytes of the log above which the next start begins it anew."""
PATIENCE = 15.0
SILENT = 900.0
"""Seconds without a beat after which one on another machine is given up; it may be merging."""


def check() -> None:
    """UsageError when this interpreter cannot merge."""
    if importlib.util.find_spec("torch") is None:
        raise UsageError(
            "an aggregator needs torch, which is not installed here: pip install "
            "'shardfleet[fedavg]', or run fedavg on another machine that mounts the root"
        )


def start(store: Store) -> int:
    """Start an aggregator in a session of its own; its pid. It logs to `ctl/aggregator/log`."""
    check()
    home = os.path.dirname(os.path.dirname(os.path.abspath(errors.__file__)))
    path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
    argv = [sys.executable, "-P", "-m", "fedavg", "run", "--root", store.root]
    try:
        store.mkdir(FOLDER)
        if _size(store.path(LOG)) > MOST_LOG:
            store.remove(LOG)
        with open(store.path(LOG), "ab") as out:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path},
            )
        me = identify(child.pid, Place.here(os.uname().nodename))
        if me is not None:
            store.publish(IDENTITY, coding.encode(me))
    except OSError as error:
        raise storage_error(error, "start an aggregator for", store.root) from None
    return child.pid


def renew(store: Store) -> int:
    """End the run's aggregator if it has one, of an earlier start, and start one; its pid."""
    sentence = stop(store)
    if sentence:
        log.warning("%s", sentence)
    return start(store)


def is_wanted(store: Store) -> bool:
    """Whether the run has an aggregator of its own, alive or not."""
    return IDENTITY.rpartition("/")[2] in federation.names(store, FOLDER)


def read_identity(store: Store) -> Identity | None:
    """Who the run's aggregator is; None when it has none of its own, or that cannot be told."""
    if not is_wanted(store):
        return None
    path = store.path(IDENTITY)
    try:
        return coding.decode(Identity, store.read(IDENTITY, 1 << 16), path)
    except (OSError, FormatError) as error:
        log.warning("cannot tell who merges: %s", error)
        return None


def keep(store: Store) -> int | None:
    """Start the run's aggregator again if it has died; the new pid, None when there is no need."""
    who = read_identity(store)
    if who is None:
        return None
    state = state_of(who, Place.here(who.host))
    if state in RUNNING:
        return None
    if state == "unknown":
        seen = groupstatus.aggregator(store)
        if seen.age is None or seen.age < SILENT:
            return None
    return start(store)


def stop(store: Store, patience: float = PATIENCE) -> str | None:
    """End the run's aggregator, and want none; a sentence if it may still run."""
    who = read_identity(store)
    if not is_wanted(store):
        return None
    try:
        store.remove(IDENTITY)
    except OSError as error:
        raise storage_error(error, "remove", store.path(IDENTITY)) from None
    if who is None:
        return "it cannot be told who the aggregator is: end it by hand if it still runs"
    if state_of(who, Place.here(who.host)) == "unknown":
        return f"the aggregator on {who.host} (pid {who.pid}) must be ended there"
    return watcher.end(who, "the aggregator", patience)


def try_stop(store: Store) -> str | None:
    """The same for who has more to stop: what went wrong is a sentence as well."""
    try:
        return stop(store)
    except (FleetError, StorageError) as error:
        return str(error)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
