"""Stopping the workers of a run, and being sure that they are gone.

The intent is written first, for every host, also for those that cannot be reached: whoever finds
it later (a wrapper between two lives, a watcher elsewhere) starts nothing again. An intent covers
the launches up to its number, so it can never keep a later start from running. Nothing is killed
unless that was asked for, and what is left is named.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ctl import beats, departed, render
from ctl.fleet import Outcome, fan_out
from ctl.launchers.base import Launcher, Stopped
from ctl.locks import TAKES_NOTHING
from fsworker.errors import FleetError, StorageError
from fsworker.identity import PROVABLY_DEAD
from fsworker.protocol import layout, ledger
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.records.run import LaunchMeta

log = logging.getLogger(__name__)

SLACK = 60.0
"""Seconds beyond grace and kill after which a host's answer is not waited for any longer."""


@dataclass
class Report:
    """What a stop achieved: hosts by outcome, and a sentence for all that went wrong."""

    stopped: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    revoked: int = 0


def write_intents(store: Store, meta: LaunchMeta, hosts: Iterable[str]) -> None:
    """Tell every wrapper and watcher that these hosts are to stay down."""
    for host in hosts:
        try:
            _write_intent(store, meta, host)
        except OSError as error:
            raise _unwritten(error, store, host) from None


def try_intents(store: Store, meta: LaunchMeta, hosts: Iterable[str]) -> dict[str, str]:
    """As `write_intents`, but storage that takes no writes keeps nobody from being stopped.

    For each host whose intent is not there: why. Such a host can still be told by a signal.
    """
    found = {}
    for host in hosts:
        try:
            _write_intent(store, meta, host)
        except OSError as error:
            if error.errno not in TAKES_NOTHING:
                raise _unwritten(error, store, host) from None
            found[host] = str(_unwritten(error, store, host))
    return found


def _write_intent(store: Store, meta: LaunchMeta, host: str) -> None:
    store.publish(layout.host_file(host, "stop"), b"%d\n" % meta.launches.get(host, 0))


def _unwritten(error: OSError, store: Store, host: str) -> StorageError:
    return storage_error(error, "write", store.path(layout.host_file(host, "stop")))


def stop_hosts(
    store: Store,
    meta: LaunchMeta,
    hosts: Sequence[str],
    launcher: Launcher,
    grace: float,
    kill_after: float | None,
    width: int,
) -> Report:
    """Stop these hosts' workers, verified by the host itself; then return what they held."""
    beating = _beating(store, meta)  # before the intents: some workers end by them alone
    unwritten = try_intents(store, meta, hosts)

    def stop(host: str) -> Stopped:
        launch = meta.launches.get(host, 0)
        return launcher.stop(host, meta.root, launch, grace=grace, kill_after=kill_after)

    each = grace + (kill_after or 0.0) + SLACK
    report = Report()
    report.problems += [f"warning: host {h}: {why}" for h, why in unwritten.items()]
    for outcome in fan_out(hosts, stop, width=width, each=each):
        _judge(outcome, report, beating)
    for host in report.stopped:
        report.revoked += revoke(store, host)
        beats.say_goodbye_for(store, host, meta.launches.get(host, 0))
        if host in meta.attached:
            departed.let_go(store, host, meta.launches.get(host, 0))
    return report


def _beating(store: Store, meta: LaunchMeta) -> frozenset[str]:
    try:
        return frozenset(beats.beating(store, meta.heartbeat_stale))
    except OSError as error:
        if error.errno in TAKES_NOTHING:
            return frozenset()  # the clock is read by writing; hosts know what runs there
        raise storage_error(error, "read", store.path(layout.STATUS)) from None


def _judge(outcome: Outcome[Stopped], report: Report, beating: frozenset[str]) -> None:
    host, answer = outcome.host, outcome.value
    if answer is None:
        report.failed.append(host)
        report.problems.append(f"host {host}: not stopped: {reason_of(host, outcome.error)}")
        return
    report.problems += [f"warning: host {host}: {render.clean(w)}" for w in answer.warnings]
    left = [p for p in answer.left if p.state not in PROVABLY_DEAD]
    if left:
        pids = (f" {p.pid}" if p.pid else "" for p in left)
        named = zip(left, pids, strict=True)
        names = ", ".join(f"{p.role or 'process'}{pid} ({p.state})" for p, pid in named)
        report.failed.append(host)
        report.problems.append(f"host {host}: still there after the grace: {names}")
    else:
        ran = answer.was_running or host in beating
        (report.stopped if ran else report.idle).append(host)


def reason_of(host: str, error: BaseException | None) -> str:
    """Why, without the host's name, which the sentence around it has already."""
    return render.clean(error).removeprefix(f"host {host}").lstrip(": ")


def revoke(store: Store, host: str, patience: float = 5.0) -> int:
    """Return all claims of a host whose processes are proven gone; the number of batches.

    Their deaths stay as they are: we ended the worker, no batch did.
    """
    moved = 0
    try:
        owners = [o for o in map(layout.parse_owner, store.scan(layout.CLAIMS)) if o]
        for owner in owners:
            if owner.host == host:
                moved += _revoke_owner(store, owner, time.monotonic() + patience)
    except OSError as error:
        log.warning("cannot return the claims of host %s: %s", host, error)
    return moved


def _revoke_owner(store: Store, owner: layout.Owner, end: float) -> int:
    moved = 0
    while True:
        outcome = store.run(ledger.reclaim(owner, died=False))
        moved += len(outcome.moved)
        if outcome.finished or time.monotonic() >= end:
            return moved
        time.sleep(0.1)


def allowed_or_not(
    meta: LaunchMeta, hosts: Sequence[str], allowed: Sequence[str], enforce: bool
) -> tuple[list[str], list[str]]:
    """(hosts that may be contacted, hosts that were allowed once and are no longer)."""
    if not enforce:
        return list(hosts), []
    # Who attached is not contacted at all, so nobody has to allow it.
    known = {name.lower() for name in (*allowed, *meta.attached)}
    return (
        [h for h in hosts if h.lower() in known],
        [h for h in hosts if h.lower() not in known],
    )


def as_error(report: Report, count: int) -> FleetError:
    """What a stop that did not stop everything ends with."""
    names = ", ".join(report.failed[:5])
    return FleetError(f"{len(report.failed)} of {count} hosts are not proven stopped: {names}")
