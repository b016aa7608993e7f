"""`ctl scale`: hosts into a live run, and out of it."""

from __future__ import annotations

from dataclasses import replace

import click

from ctl import bringup, draining, launching, locks, render, roots, rundir, scaling
from ctl.commands.drain import allow, tell
from ctl.commands.restart_host import complain
from ctl.draining import Drain
from ctl.hosts import names_of
from ctl.params import COUNT, WHOLE, json_option, patience_option, ready_option, root_option
from ctl.scaling import Scale
from ctl.session import Session
from ctl.stopping import Report, as_error
from fsworker.errors import UsageError


@click.command()
@root_option
@click.option("--hosts", metavar="SET", help="The hosts that the run is to have, all of them.")
@click.option("--add", multiple=True, metavar="HOST[:SHARD]", help="Hosts that join.")
@click.option("--remove", multiple=True, metavar="HOST", help="Hosts that leave.")
@click.option("--nodes", type=WHOLE, help="Slurm: how many workers the run is to have.")
@click.option("--auto", metavar="MIN:MAX", help="Slurm: as many as the backlog asks for.")
@click.option("--step", is_flag=True, hidden=True, help="What a watcher has done now and then.")
@click.option("--concurrency", type=COUNT, help="Slots of new workers [default: as the others].")
@ready_option
@patience_option("tasks get that run on hosts that leave")
@click.option("--force", is_flag=True, help="Let hosts go that are not proven stopped.")
@json_option
@click.pass_obj
def command(
    session: Session,
    root: str | None,
    hosts: str | None,
    add: tuple[str, ...],
    remove: tuple[str, ...],
    nodes: int | None,
    auto: str | None,
    step: bool,
    concurrency: int | None,
    ready_timeout: float | None,
    timeout: float,
    force: bool,
    as_json: bool,
) -> int:
    """Add hosts to a live run, and remove hosts from it.

    Those that join are started first, and if one fails, none joins. Those that leave are drained.
    The number of shards stays; what nobody calls home any more is served by the others. A host
    that leaves and cannot be proven stopped stays in the run, down, unless --force is given.
    """
    if nodes is not None or auto or step:
        if hosts or add or remove or (nodes is not None and auto):
            raise UsageError("scale takes one of --nodes, --auto, and hosts")
        return _scale_jobs(session, root, nodes, parse_auto(auto) if auto else None, as_json)
    if bool(hosts) == bool(add or remove):
        raise UsageError("scale takes either --hosts, or --add and --remove: ctl scale --help")
    run = roots.open_run(*roots.find_root(root, session.config))
    with locks.verb_lock(run.store, "scale"):
        run = roots.open_run(run.root)
        change = _plan(session, run, hosts, add, remove, concurrency)
        if not force:
            allow(session, run, change.leaving)
        locks.check_room(run.store)
        if change.joining:
            _join(session, run, change, ready_timeout)
        drain = Drain(run.store, change.meta, change.leaving, timeout, session.config.get("width"))
        draining.announce(drain)
    report = _leave(session, drain, force) if change.leaving else Report()
    return _told(session, run, change, report, as_json=as_json)


def _plan(
    session: Session,
    run: roots.Run,
    hosts: str | None,
    add: tuple[str, ...],
    remove: tuple[str, ...],
    concurrency: int | None,
) -> Scale:
    """What the options ask for, of the run as it is under the lock."""
    return scaling.plan(
        run.need_meta(),
        draining.kept_down(run),
        exactly=[_spelled(session, run, name) for name in names_of(hosts)] if hosts else None,
        add={_spelled(session, run, h): s for h, s in scaling.parse_additions(add).items()},
        remove=[name for text in remove for name in names_of(text, "--remove")],
        concurrency=concurrency,
    )


def _told(session: Session, run: roots.Run, change: Scale, report: Report, *, as_json: bool) -> int:
    """Say what came of it; the exit code."""
    if as_json:
        code = int(bool(report.failed))
        fields = {"joined": change.joining, "left": report.stopped, "failed": report.failed}
        render.document({"root": run.root, **fields, "exit_code": code})
        return code
    tell(session, report)
    if not change.joining and not change.leaving:
        session.say("nothing to change")
    if report.failed:
        raise as_error(report, len(change.leaving))
    return 0


def _scale_jobs(
    session: Session, root: str | None, nodes: int | None, auto: tuple[int, int] | None, json: bool
) -> int:
    """Another number of jobs; without one, what is due now and then."""
    from ctl.slurm import running  # lazily: other runs have no use for it

    run = roots.open_run(*roots.find_root(root, session.config))
    with locks.verb_lock(run.store, "scale"):
        run = roots.open_run(run.root)
        if nodes is None and auto is None:
            more, fewer = running.step(run)
        else:
            more, fewer = running.resize(run, nodes, auto)
        if more or fewer:
            locks.record(run.store, "scale", event="jobs", submitted=more, cancelled=fewer)
    if json:
        render.document({"root": run.root, "submitted": more, "cancelled": fewer, "exit_code": 0})
    else:
        session.say(f"submitted {more} jobs, cancelled {fewer}")
    return 0


def parse_auto(text: str) -> tuple[int, int]:
    """MIN:MAX. UsageError."""
    least, colon, most = text.partition(":")
    if not (colon and least.isdigit() and most.isdigit() and 0 <= int(least) <= int(most) > 0):
        raise UsageError(f"--auto takes MIN:MAX, as 0:16, not {text!r}")
    return int(least), int(most)


def _spelled(session: Session, run: roots.Run, name: str) -> str:
    """The name under which a host is allowed, if any list says so. Refused when it is not."""
    if run.need_meta().launcher == "local" and not len(session.allowed):
        return name
    return session.allowed.check(name).name


def _join(session: Session, run: roots.Run, change: Scale, ready_timeout: float | None) -> None:
    """Start those that join; on any failure the run has the hosts that it had before."""
    before, store, meta = run.need_meta(), run.store, change.meta
    launching.publish(store, meta, change.joining)
    rundir.clear_intents(store, change.joining, watcher=False)
    with launching.opened(meta) as launcher:
        width = session.config.get("width")
        crew = bringup.Crew(store, meta, change.joining, launcher, width, session.say, complain)
        try:
            bringup.bring_up(crew, ready_timeout or meta.ready_timeout)
        except BaseException as error:
            # The numbers stay used: a launch number means one start only.
            launching.publish(store, replace(before, launches=meta.launches))
            locks.record(store, "scale", event="scale failed", reason=str(error))
            raise
    locks.record(store, "scale", event="joined", hosts=change.joining)


def _leave(session: Session, drain: Drain, force: bool) -> Report:
    """Drain those that leave, and let those go that are proven stopped."""
    store = drain.store
    with launching.opened(drain.meta) as launcher:
        report = draining.finish(drain, launcher)
    gone = [*report.stopped, *report.failed] if force else report.stopped
    with locks.verb_lock(store, "scale"):
        meta = roots.open_run(store.root).need_meta()
        # Not one that somebody started anew meanwhile.
        same = {h for h in gone if meta.launches.get(h) == drain.meta.launches.get(h)}
        launching.publish(store, scaling.without(meta, same))
        for host in same.intersection(report.stopped):
            draining.forget_host(store, host)
        locks.record(store, "scale", event="left", hosts=sorted(same), failed=report.failed)
    return report
