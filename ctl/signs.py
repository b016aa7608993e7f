"""Whether a run root is live: the signs of life that a start or a cleanup must not overlook.

Silence is no proof of death: a launch that was published a moment ago has no beat yet, and a
wrapper between two lives beats for nobody. So beats are one sign, a young launch that nobody
stopped is another, and a process that is proven to run on this machine is a third.
"""

from __future__ import annotations

import shlex

from ctl import roots, statusview
from ctl.beats import server_now
from ctl.roots import Run, unknown
from fsworker.errors import FleetError, FormatError, NotRunning
from fsworker.identity import RUNNING, Place, state_of
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.records.run import HostIdentity, LaunchMeta

LEAST_STALE = 5.0
"""Seconds: workers beat every 2 s, and a shorter limit would overlook some that are well."""


def of_life(run: Run) -> str | None:
    """What shows that the run lives, as the rest of a sentence; None when nothing does.

    UnknownState when the root does not answer.
    """
    stale = max(run.meta.heartbeat_stale, LEAST_STALE) if run.meta else 15.0
    alive = statusview.alive_hosts(run, stale)
    if alive:
        return f"{len(alive)} workers beat there ({', '.join(alive[:4])})"
    try:
        young = _launched_lately(run, run.meta) if run.meta else None
        here = living_here(run.store, run.store.scan(layout.CTL))
    except OSError as error:
        raise unknown(error, run.root) from None
    if here:
        return f"process {here[1]} of {here[0]} runs here"
    return young


def left_of_start(root: str) -> str | None:
    """What an interrupted start left on `root`, and what ends it; None when nothing is left."""
    advice = f"ctl stop --root {shlex.quote(root)} ends them"
    try:
        sign = of_life(roots.open_run(root))
    except NotRunning:
        return None
    except (FleetError, OSError):
        sign = "it cannot be told what runs"
    return f"workers may run ({sign}): {advice}" if sign else None


def living_here(store: Store, names: list[str]) -> tuple[str, int] | None:
    """(host, pid) of a process of the run that is proven to live on this machine.

    `names` is a listing of `ctl/`.
    """
    for name in names:
        if not name.endswith(".identity.json"):
            continue
        rel = f"{layout.CTL}/{name}"
        try:
            who: HostIdentity = HostIdentity.from_json(store.read(rel), rel)
        except (OSError, FormatError):
            continue
        for process in (who.wrapper, who.worker):
            if process and state_of(process, Place.here(process.host)) in RUNNING:
                return process.host, process.pid
    return None


def _launched_lately(run: Run, meta: LaunchMeta) -> str | None:
    """Hosts whose launch may still come up: nobody stopped it, and it has not beaten yet."""
    age = server_now(run.store) - run.store.read_with_mtime(layout.LAUNCH_META)[1]
    if age > meta.ready_timeout:
        return None
    names = run.store.scan(layout.CTL)
    beats = {h.host: h.beat for h in statusview.look(run, LEAST_STALE).hosts}
    for host in run.hosts:
        launch, beat = meta.launches.get(host, 0), beats.get(host)
        come = beat is not None and beat.launch >= launch
        if launch and not come and not statusview.stop_intent(run, host, launch, names):
            return f"{host} was launched {max(age, 0.0):.0f} s ago and may still come up"
    return None
