"""From what a run recorded of its launch to the launcher and the request that repeat it.

Start, restart and the watcher must start a host in the same way, so the way is written down in
`launch_meta.json` and read back here, in one place.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from ctl import passing
from ctl.hostterms import env_for
from fsworker.errors import Busy, UsageError
from fsworker.protocol import launches, layout
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.records.hostterms import HostTerms
from fsworker.protocol.records.launch import LaunchRequest
from fsworker.protocol.records.run import LaunchMeta, WorkerSpec

if TYPE_CHECKING:
    from ctl.launchers.base import Launcher

HOSTS_SHARE = 0.75
"""Of the time for a start, what the host may use before it undoes it; the rest: for its answer."""


def open_for(meta: LaunchMeta, fence: float | None = None) -> Launcher:
    """The launcher of the run, with the options that it was started with; `fence` as `opened`."""
    from ctl.launchers import open_launcher  # lazily: it may pull in paramiko

    setup = [*passing.lines(meta.pass_env, os.environ), *meta.setup]
    common = {"python": meta.python, "pythonpath": list(meta.pythonpath), "setup": setup}
    bundle = {"bundle": meta.bundle and f"{meta.root}/{meta.bundle}"}
    options = {**meta.launcher_options, **common, **bundle, "from_bundle": meta.from_bundle}
    launcher = open_launcher(meta.launcher, options, meta.host_terms)
    if not meta.attached:
        return launcher
    from ctl.launchers.attached import Mixed

    silent_after = None if fence is None else meta.heartbeat_stale + fence
    return Mixed(launcher, meta.attached, silent_after)


@contextmanager
def opened(
    meta: LaunchMeta, hosts: Iterable[str] | None = None, *, fence: float | None = None
) -> Iterator[Launcher]:
    """The launcher of the run, closed at the end; `hosts` (default: all) are to be reached.

    At a terminal, passphrases that they need are asked for first. A member that is stale for
    `fence` seconds holds no stop; None: it does until it is proven gone.
    """
    launcher = open_for(meta, fence)
    try:
        if sys.stdin is not None and sys.stdin.isatty():
            launcher.unlock([w.host for w in meta.workers] if hosts is None else hosts, _ask)
        yield launcher
    finally:
        launcher.close()


def _ask(prompt: str) -> str | None:
    """What a person types, unseen; None when they would rather not."""
    import getpass  # lazily: seldom needed

    try:
        return getpass.getpass(prompt)
    except EOFError:
        return None


def request_for(meta: LaunchMeta, host: str) -> LaunchRequest:
    """What to ask of `host` for the launch that `meta` gives it."""
    passing.warn(meta.pass_env)
    worker = worker_of(meta, host)
    terms = meta.host_terms.get(host, HostTerms())
    return LaunchRequest(
        root=meta.root,
        launch=meta.launches[host],
        shard=worker.shard,
        concurrency=worker.concurrency,
        slots=worker.slots,
        job_slots=worker.job_slots,
        respawn=meta.respawn,
        python=terms.python or meta.python,
        env=env_for(meta.env, terms),
        log_level=meta.log_level,
        labels=tuple(dict.fromkeys((*meta.labels, *terms.labels))),
        wait=HOSTS_SHARE * float(meta.launcher_options.get("start_timeout", 60.0)),
    )


def worker_of(meta: LaunchMeta, host: str) -> WorkerSpec:
    """The worker of `host` in the run; UsageError names the hosts that there are."""
    for worker in meta.workers:
        if worker.host == host:
            return worker
    known = ", ".join(w.host for w in meta.workers[:8])
    raise UsageError(f"host {host!r} is not of this run, which has {known}", host=host)


def relaunch(meta: LaunchMeta, host: str) -> LaunchMeta:
    """The same run with a new launch number for `host`."""
    return replace(meta, launches={**meta.launches, host: meta.launches.get(host, 0) + 1})


def publish(store: Store, meta: LaunchMeta, numbered: Iterable[str] = ()) -> None:
    """Write what the run is to have; the launches of `numbered` are new.

    Raises Busy when one of them was given out meanwhile, whatever the locks say. StorageError.
    """
    try:
        number(store, meta, numbered)
        store.publish(layout.LAUNCH_META, meta.to_json())
    except OSError as error:
        raise storage_error(error, "write", store.path(layout.LAUNCH_META)) from None


def number(store: Store, meta: LaunchMeta, hosts: Iterable[str]) -> None:
    """Give out the launches that `meta` has for `hosts`. Busy; OSError."""
    wanted = {host: meta.launches[host] for host in hosts}
    lost = store.run(launches.take(wanted, secrets.token_hex(4))) if wanted else ()
    if lost:
        raise Busy(
            f"{', '.join(sorted(lost)[:5])} of {store.root}: launched by somebody else meanwhile: "
            "look at ctl status, then try again",
            path=store.root,
        )
