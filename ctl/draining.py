"""Ending workers without hurry: they finish what runs, give back the rest, and take nothing new.

How long they may take is written down before the stop intent is, since from the intent on a worker
may end at any moment. Then nobody has to hold a connection for minutes: the root tells when a
worker has stopped, and only then is its host asked for the proof.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ctl import beats, locks, stopping
from ctl.launchers.base import Launcher
from ctl.roots import Run, unknown
from ctl.statusview import stop_intent
from ctl.stopping import Report
from fsworker.errors import StorageError, UsageError
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.records.run import LaunchMeta

log = logging.getLogger(__name__)

POLL = 0.5
SLACK = 15.0
"""Seconds beyond its patience that a worker gets to end, and its host to prove it."""


@dataclass(frozen=True)
class Drain:
    """Hosts to drain, as `meta` launched them; `patience` (seconds) is what running tasks get."""

    store: Store
    meta: LaunchMeta
    hosts: Sequence[str]
    patience: float
    width: int


def chosen(meta: LaunchMeta, names: Sequence[str]) -> list[str]:
    """The run's own spelling of the hosts that `names` mean. UsageError for a stranger."""
    known = {worker.host.lower(): worker.host for worker in meta.workers}
    for name in names:
        if name.lower() not in known:
            some = ", ".join(list(known.values())[:8])
            raise UsageError(f"host {name!r} is not of this run, which has {some}", host=name)
    return list(dict.fromkeys(known[name.lower()] for name in names))


def kept_down(run: Run) -> list[str]:
    """The hosts of the run that a stop intent keeps down."""
    meta = run.everybody or run.need_meta()
    try:
        names = run.store.scan(layout.CTL)
    except OSError as error:
        raise unknown(error, run.store.path(layout.CTL)) from None
    launches = ((host, meta.launches.get(host, 0)) for host in run.hosts)
    return [host for host, launch in launches if stop_intent(run, host, launch, names)]


def announce(drain: Drain) -> None:
    """Tell the workers: the patience first, then the intent. The verb lock must be held.

    Either all are told or, where the root takes no more writes, none: then what was written is
    taken back. StorageError.
    """
    store, meta = drain.store, drain.meta
    locks.check_room(store)
    files = [layout.host_file(host, kind) for host in drain.hosts for kind in ("stop", "drain")]
    try:
        there = set(store.scan(layout.CTL))
    except OSError as error:
        raise storage_error(error, "list", store.path(layout.CTL)) from None
    try:
        for host in drain.hosts:
            rel = layout.host_file(host, "drain")
            try:
                store.publish(rel, b"%d %g\n" % (meta.launches.get(host, 0), drain.patience))
            except OSError as error:
                raise storage_error(error, "write", store.path(rel)) from None
        stopping.write_intents(store, meta, drain.hosts)
    except StorageError:
        for rel in files:
            if rel.rpartition("/")[2] not in there:
                store.remove_quietly(rel)
        raise


def finish(drain: Drain, launcher: Launcher) -> Report:
    """Wait until they have stopped, and prove it. Those that have not are `failed`, and named."""
    _await_end(drain)
    store = drain.store
    report = stopping.stop_hosts(store, drain.meta, drain.hosts, launcher, SLACK, None, drain.width)
    for host in report.idle:  # stopped by the intent, before its host was asked
        report.revoked += stopping.revoke(store, host)
    report.stopped, report.idle = [*report.stopped, *report.idle], []
    for host in report.stopped:
        _forget(store, layout.host_file(host, "drain"))
    return report


def _await_end(drain: Drain) -> None:
    """Until no worker beats any more, or the patience is used up."""
    end = time.monotonic() + drain.patience + SLACK
    wanted = set(drain.hosts)
    while True:
        try:
            beating = wanted.intersection(beats.beating(drain.store, drain.meta.heartbeat_stale))
        except OSError as error:
            log.warning("cannot see how far the drain is: %s", error)
            beating = wanted
        if not beating or time.monotonic() >= end:
            return
        time.sleep(POLL)


def forget_host(store: Store, host: str) -> None:
    """Remove the signs of life of a host that is no longer of the run."""
    _forget(store, layout.status_path(host))


def _forget(store: Store, rel: str) -> None:
    try:
        store.remove(rel)
    except OSError as error:
        log.info("%s stays: %s", store.path(rel), error)
