"""`ctl drain`: take hosts out of service without interrupting what they run."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ctl import completion, draining, launching, locks, render, roots
from ctl.draining import Drain
from ctl.hosts import names_of
from ctl.params import GIVEN_BACK, json_option, patience_option, root_option
from ctl.session import Session
from ctl.stopping import Report, as_error


@click.command()
@click.argument("names", metavar="HOST…", nargs=-1, required=True, shell_complete=completion.hosts)
@root_option
@patience_option(GIVEN_BACK)
@json_option
@click.pass_obj
def command(
    session: Session, names: tuple[str, ...], root: str | None, timeout: float, as_json: bool
) -> int:
    """Drain hosts: finish what runs, take nothing new, stop.

    HOST may be a set such as node[01-04]. What waits in the shard of a drained host is served by
    the others. The host stays in the run and stays down, also for a watcher, until
    ctl restart-host or ctl scale --add starts it again. A worker that attached leaves the run.
    """
    run = roots.open_run(*roots.find_root(root, session.config))
    hosts = [host for name in names for host in names_of(name, "HOST")]
    with locks.verb_lock(run.store, "drain"):
        run = roots.open_run(run.root)
        meta = run.everybody or run.need_meta()
        drain = Drain(
            run.store, meta, draining.chosen(meta, hosts), timeout, session.config.get("width")
        )
        allow(session, run, drain.hosts)
        draining.announce(drain)
        locks.record(run.store, "drain", event="draining", hosts=drain.hosts, timeout=timeout)
    if set(drain.hosts) == set(run.hosts):
        session.note("these are all hosts of the run: nobody is left to serve it")
    with launching.opened(meta, fence=session.config.get("fence_after")) as launcher:
        report = draining.finish(drain, launcher)
    locks.record(run.store, "drain", event="drained", hosts=report.stopped, failed=report.failed)
    if as_json:
        code = int(bool(report.failed))
        render.document({"root": run.root, **vars(report), "exit_code": code})
        return code
    tell(session, report)
    if report.failed:
        raise as_error(report, len(drain.hosts))
    return 0


def allow(session: Session, run: roots.Run, hosts: Sequence[str]) -> None:
    """Refused unless all of these may be contacted. Members are not: nobody has to allow them."""
    meta = run.everybody or run.need_meta()
    if meta.launcher != "local" or len(session.allowed):
        session.allowed.select(host for host in hosts if host not in meta.attached)


def tell(session: Session, report: Report) -> None:
    """Who is drained, what went wrong, and what was returned."""
    for host in report.stopped:
        session.say(f"drained host={host}")
    for sentence in report.problems:
        click.echo(sentence, err=True)
    if report.revoked:
        session.say(f"returned {report.revoked} batches to the inbox")
