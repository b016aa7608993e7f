"""`ctl restart-host`: one host anew, everything else as it was."""

from __future__ import annotations

import sys

import click

from ctl import bringup, completion, launching, locks, render, roots, rundir, stopping
from ctl.explain import prospects
from ctl.params import DURATION, POSITIVE, json_option, ready_option, root_option
from ctl.session import Session
from fsworker.errors import Refused, UsageError


@click.command()
@click.argument("name", metavar="[HOST]", required=False, shell_complete=completion.hosts)
@click.option("--host", metavar="HOST", help="The host, for scripts that name it so.")
@root_option
@click.option("--grace", type=DURATION, help="Time to end after TERM [default: 60s].")
@click.option(
    "--kill-after", type=POSITIVE, help="KILL what is left this long after [default: never]."
)
@ready_option
@json_option
@click.pass_obj
def command(
    session: Session,
    name: str | None,
    host: str | None,
    root: str | None,
    grace: float | None,
    kill_after: float | None,
    ready_timeout: float | None,
    as_json: bool,
) -> int:
    """Stop and start the worker of one host.

    Its shard, slots, interpreter, environment and respawn mode stay as the run's start set them.
    """
    if bool(name) == bool(host):
        raise UsageError("restart-host takes one host: ctl restart-host HOST")
    run = roots.open_run(*roots.find_root(root, session.config))
    target = _target(session, run, name or host or "")
    if root is None:
        session.say(f"restarting {target} of {run.root} (from {run.source})")
    with locks.verb_lock(run.store, "restart-host"):
        # Read again under the lock: another verb may have changed the launches meanwhile.
        run = roots.open_run(run.root)
        locks.check_room(run.store)
        grace = session.config.pick("grace", grace)
        _restart(session, run, target, grace, kill_after, ready_timeout)
    if as_json:
        render.document({"root": run.root, "host": target, "ok": True})
    return 0


def _target(session: Session, run: roots.Run, name: str) -> str:
    """The run's own spelling of the host, which must still be allowed."""
    meta = run.need_meta()
    joined = {member.lower(): member for member in (run.everybody or meta).attached}
    if name.lower() in joined:
        member = joined[name.lower()]
        raise Refused(
            f"host {member} attached by itself, and ctl does not start it: "
            f"{prospects.for_member(member, run.root)}",
            host=member,
        )
    known = {worker.host.lower(): worker.host for worker in meta.workers}
    host = launching.worker_of(meta, known.get(name.lower(), name)).host
    if meta.launcher != "local" or len(session.allowed):
        session.allowed.check(host)
    return host


def _restart(
    session: Session,
    run: roots.Run,
    host: str,
    grace: float,
    kill_after: float | None,
    ready_timeout: float | None,
) -> None:
    before = run.need_meta()
    # The number first: a watcher then sees a host that starts, and leaves it alone.
    meta = launching.relaunch(before, host)
    launching.publish(run.store, meta, [host])
    with launching.opened(meta, [host]) as launcher:
        width = session.config.get("width")
        report = stopping.stop_hosts(run.store, before, [host], launcher, grace, kill_after, width)
        if report.failed:
            locks.record(run.store, "restart-host", event="restart failed", host=host)
            raise Refused("; ".join(report.problems), host=host)
        rundir.clear_intents(run.store, [host], watcher=False)
        crew = bringup.Crew(run.store, meta, [host], launcher, width, session.say, complain)
        try:
            bringup.bring_up(crew, ready_timeout or meta.ready_timeout)
        except BaseException:
            # Stopped for now, not for good: a watcher may try again.
            rundir.clear_intents(run.store, [host], watcher=False)
            locks.record(run.store, "restart-host", event="restart failed", host=host)
            raise
    locks.record(
        run.store, "restart-host", event="restarted", host=host, launch=meta.launches[host]
    )


def complain(sentence: str) -> None:
    """One line on stderr."""
    print(sentence, file=sys.stderr, flush=True)
