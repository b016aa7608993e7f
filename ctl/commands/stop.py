"""`ctl stop`: end a run's workers, gently, and say what is left."""

from __future__ import annotations

import click

from ctl import aggregating, launching, locks, render, roots, stopping, watcher
from ctl.params import DURATION, POSITIVE, json_option, root_option
from ctl.session import Session
from ctl.slurm import running


@click.command()
@root_option
@click.option("--grace", type=DURATION, help="Time to end after TERM [default: 60s].")
@click.option(
    "--kill-after",
    type=POSITIVE,
    help="KILL what is left this long after the grace [default: never].",
)
@json_option
@click.pass_obj
def command(
    session: Session,
    root: str | None,
    grace: float | None,
    kill_after: float | None,
    as_json: bool,
) -> int:
    """Stop the workers of a run.

    The watcher and the run's aggregator end first, then every worker finishes or gives back what
    it holds. Nothing is killed unless --kill-after says so. Hosts that are no longer allowed are
    not contacted: they get the stop intent, which their wrapper sees within seconds, and are named.
    """
    config = session.config
    run = roots.open_run(*roots.find_root(root, config))
    if root is None:
        session.say(f"stopping {run.root} (from {run.source})")
    with locks.verb_lock(run.store, "stop", needed=False):
        report = stop_run(session, run, config.pick("grace", grace), kill_after)
    _tell(session, run, report)
    if as_json:
        render.document({"root": run.root, **vars(report), "exit_code": int(bool(report.failed))})
    elif report.failed:
        raise stopping.as_error(report, len(run.hosts))
    return int(bool(report.failed))


def stop_run(
    session: Session, run: roots.Run, grace: float, kill_after: float | None
) -> stopping.Report:
    """Stop the watcher, the aggregator and all workers of `run`; its verb lock must be held."""
    meta = run.everybody
    if meta is None:
        return stopping.Report(idle=run.hosts)  # a start that died before it launched anything
    for sentence in (watcher.stop(run.store), aggregating.try_stop(run.store)):
        if sentence:
            session.note(sentence)
    jobs = meta.launcher == "slurm"
    if jobs:
        run = running.before_stop(run)
        meta = run.everybody or meta
    enforce = meta.launcher != "local" or len(session.allowed) > 0
    hosts, strange = stopping.allowed_or_not(meta, run.hosts, session.allowed.names, enforce)
    unwritten = stopping.try_intents(run.store, meta, strange)
    with launching.opened(meta, fence=session.config.get("fence_after")) as launcher:
        width = session.config.get("width")
        report = stopping.stop_hosts(run.store, meta, hosts, launcher, grace, kill_after, width)
    if jobs:
        running.after_stop(run)
    for host in strange:
        report.failed.append(host)
        intent = unwritten.get(host, "its stop intent is written")
        report.problems.append(f"host {host}: no longer allowed, not contacted: {intent}")
    locks.record(
        run.store,
        "stop",
        event="stopped",
        hosts=report.stopped,
        idle=report.idle,
        failed=report.failed,
        revoked=report.revoked,
    )
    return report


def _tell(session: Session, run: roots.Run, report: stopping.Report) -> None:
    for host in report.stopped:
        session.say(f"stopped host={host}")
    for sentence in report.problems:
        click.echo(sentence, err=True)
    if report.revoked:
        session.say(f"returned {report.revoked} batches to the inbox")
    if not report.stopped and not report.failed:
        session.say(f"not running: {run.root}")
