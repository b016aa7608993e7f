"""`ctl status`: is it running? Answered from the root alone, with an exit code that says so."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from typing import Any

import click

from ctl import groupstatus, health, render, roots, statusview, units
from ctl.bundle import terms as bundle_terms
from ctl.drift import onroot as drift
from ctl.params import DURATION, json_option, root_option
from ctl.session import Session
from fsworker.errors import FleetError


@click.command()
@root_option
@click.option(
    "--heartbeat-stale",
    type=DURATION,
    help="Age at which a heartbeat is stale [default: the run's].",
)
@json_option
@click.pass_obj
def command(
    session: Session, root: str | None, heartbeat_stale: float | None, as_json: bool
) -> int:
    """Show the state of a run.

    Contacts no host. Tasks done and failed are those of the workers' current lives. Exit code:
    0 running, 1 degraded, 3 not running, 4 unknown.
    """
    run = roots.open_run(*roots.find_root(root, session.config))
    stale = heartbeat_stale or (run.meta.heartbeat_stale if run.meta else 15.0)
    look = statusview.look(run, stale)
    code = statusview.EXIT_CODES[look.state]
    if look.refusal:
        waits = "heartbeats and results wait until it takes them"
        print(f"warning: {render.clean(look.refusal)}; {waits}", file=sys.stderr)
    if as_json:
        render.document(_document(run, look, code))
    elif render.on_terminal():
        _table(run, look)
    else:
        _lines(run, look)
    return code


def meta_fields(run: roots.Run) -> dict[str, Any]:
    """A run's meta as scripts know it."""
    return dataclasses.asdict(run.meta or run.manifest)


def _document(run: roots.Run, look: statusview.Look, code: int) -> dict[str, Any]:
    return {
        "root": run.root,
        "run_id": run.manifest.run_id,
        "state": look.state,
        "exit_code": code,
        "hosts": [host.fields() for host in look.hosts],
        "shards": look.backlog.rows(run.manifest.shard_count),
        "totals": look.totals(),
        "storage_refuses": look.refusal or None,
        "scheduler": _scheduler(run),
        "aggregator": groupstatus.aggregator(run.store).fields(),
        "unknown_status_files": look.strangers,
        "bundle": _bundle(run, look),
        "drift": _drift(run, look).fields(),
        "meta": meta_fields(run),
    }


def _bundle(run: roots.Run, look: statusview.Look) -> dict[str, Any] | None:
    """Which bundle the run starts hosts from, and which one each worker runs from."""
    return bundle_terms.summary(run.meta, {host.host: host.beat for host in look.hosts})


def _drift(run: roots.Run, look: statusview.Look) -> drift.Drift:
    """Who differs from the others in the code that it runs, among those that beat."""
    fresh = {h.host: h.beat for h in look.hosts if h.reason in ("ok", "not_ready")}
    return drift.look(run.store, fresh)


def _scheduler(run: roots.Run) -> list[dict[str, str]] | None:
    """What Slurm says of the run's jobs; None for a run that has none, and when it is silent."""
    if run.meta is None or run.meta.launcher != "slurm":
        return None
    from ctl.slurm import fleet  # lazily: other runs have no use for it

    try:
        book = fleet.read(run.store)
        return fleet.view(book).fields() if book else []
    except FleetError as error:
        print(f"warning: {error}", file=sys.stderr)
        return None


def _lines(run: roots.Run, look: statusview.Look) -> None:
    # After the first line scripts expect hosts and nothing else.
    totals, shards = look.totals(), look.backlog.rows(run.manifest.shard_count)
    told = {"meta": {"root": run.root, **meta_fields(run)}, "state": look.state, "totals": totals}
    render.line({**told, "shards": shards, "drift": _drift(run, look).lines})
    for host in look.hosts:
        render.line(host.fields())


def _table(run: roots.Run, look: statusview.Look) -> None:
    total = look.totals()
    print(f"run {run.manifest.run_id} at {run.root} ({run.source}): {look.state}")
    rows = [_row(host) for host in look.hosts]
    head = ("host", "state", "reason", "age", "shard", "slots", "done", "failed", "skew", "note")
    render.table(head, rows)
    for host in look.hosts:
        if host.gpus:
            print(f"  GPUs of the slots of {render.clean(host.host)}: {_gpus(host.gpus)}")
    print(
        f"{total['ok']} of {total['hosts']} ok; {total['pending']} batches pending, "
        f"{total['claimed']} claimed; {total['done']} tasks done and {total['failed']} failed "
        "by the workers' current lives"
    )
    if total["jobs"]:
        print(f"  {total['jobs']} of {total['job_slots']} job slots are busy; see ctl jobs")
    for shard in look.backlog.rows(run.manifest.shard_count):
        if shard["pending"] or shard["claimed"]:
            print(
                f"  shard {shard['shard']}: {shard['pending']} pending, {shard['claimed']} claimed"
            )
    for job in _scheduler(run) or ():
        where = job["node"] or job["reason"]
        print(f"  job {job['job']}: {job['state']} {where} ({job['member']})")
    if (merging := groupstatus.aggregator(run.store)).beat is not None:
        print(f"  {render.clean(merging.words)}; see ctl rounds")
        for group, words in merging.troubles.items():
            print(f"  group {render.clean(group)}: {render.clean(words)}")
    for line in (*_drift(run, look).lines, *bundle_terms.lines(_bundle(run, look))):
        print(f"  {render.clean(line)}")
    for name in look.strangers:
        print(f"  status/{name} belongs to no host of this run")


def _gpus(masks: list[str]) -> str:
    """Each slot's devices; slots that see the same ones are told together."""
    return render.clean("; ".join(f"{n} x {m}" if n > 1 else m for m, n in Counter(masks).items()))


def _row(host: statusview.HostStatus) -> tuple[object, ...]:
    beat = host.beat
    skewed = host.skew is not None and abs(host.skew) >= 5
    return (
        host.host,
        host.state,
        "-" if host.state == health.State.STOPPED else host.reason,
        units.human(host.age),
        host.shard,
        f"{beat.slots_busy}/{beat.slots_total}" if beat else "-",
        beat.done if beat else "-",
        beat.failed if beat else "-",
        f"{host.skew:+.0f}s" if skewed else "-",
        host.words,
    )
