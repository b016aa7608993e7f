"""`ctl restart --rolling`: every worker anew, a few at a time, and the run is served throughout."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import click

from ctl import beats, bringup, draining, launching, locks, render, roots, rundir
from ctl.bundle import onroot
from ctl.commands.drain import allow
from ctl.commands.restart_host import complain
from ctl.draining import Drain
from ctl.launchers.base import Launcher
from ctl.params import (
    COUNT,
    GIVEN_BACK,
    json_option,
    patience_option,
    ready_option,
    root_option,
)
from ctl.session import Session
from fsworker.errors import FleetError, Refused, UsageError
from fsworker.protocol import layout
from fsworker.protocol.records.run import LaunchMeta


@dataclass(frozen=True)
class Manner:
    """How to restart; times in seconds. `ready` None: the run's own."""

    patience: float
    ready: float | None
    width: int
    bundle: str | None = None
    """The bundle to start from, where it is not the one of before."""


@click.command()
@root_option
@click.option("--rolling", is_flag=True, help="One after the other; there is no other way.")
@click.option("--batch", type=COUNT, default=1, show_default=True, help="Hosts at once.")
@click.option("--bundle", is_flag=True, help="Go on from a bundle of this release.")
@patience_option(GIVEN_BACK)
@ready_option
@json_option
@click.pass_obj
def command(
    session: Session,
    root: str | None,
    rolling: bool,
    batch: int,
    bundle: bool,
    timeout: float,
    ready_timeout: float | None,
    as_json: bool,
) -> int:
    """Restart all workers of a run, one host after the other, without a gap.

    For new code of the functions: each worker finishes what runs, gives back the rest, and the next
    host follows when it is ready again. Ends at the first failure; the hosts after it go on as they
    are. Hosts that were drained stay down; workers that attached are passed over.
    """
    if not rolling:
        raise UsageError(
            "give --rolling, which restarts one host after the other; "
            "for one host there is ctl restart-host"
        )
    run = roots.open_run(*roots.find_root(root, session.config))
    todo, down, joined = _hosts(run)
    allow(session, run, todo)
    for host in down:
        session.note(f"host {host} is stopped on purpose and stays down")
    for host in joined:
        session.note(
            f"host {host} attached by itself and is passed over: "
            "drain it, and attach it again on its machine"
        )
    renewed = onroot.renew(run.store, run.need_meta()) if bundle else None
    manner = Manner(timeout, ready_timeout, session.config.get("width"), renewed)
    done: list[str] = []
    with launching.opened(_from(run.need_meta(), manner)) as launcher:
        for at in range(0, len(todo), batch):
            part = todo[at : at + batch]
            try:
                _restart(session, run, part, launcher, manner)
            except (FleetError, OSError) as error:
                raise _ended(error, part, done, todo[at + batch :]) from error
            done += part
    if as_json:
        told = {"restarted": done, "down": down, "attached": joined}
        render.document({"root": run.root, **told, "ok": True})
    else:
        session.say(f"restarted {len(done)} hosts")
    return 0


def _from(meta: LaunchMeta, manner: Manner) -> LaunchMeta:
    return meta if manner.bundle is None else replace(meta, bundle=manner.bundle)


def _hosts(run: roots.Run) -> tuple[list[str], list[str], list[str]]:
    """(the hosts to restart, those that are down on purpose, those that only attach)."""
    attached = (run.everybody or run.need_meta()).attached
    down = [h for h in draining.kept_down(run) if h not in attached]
    todo = [h for h in run.hosts if h not in (*down, *attached)]
    if not todo and not down:
        raise Refused("every worker of the run attached by itself: attach them again instead")
    if not todo:
        raise Refused("every host of the run is stopped on purpose: start it with ctl start")
    return todo, down, list(attached)


def _ended(
    error: Exception, part: Sequence[str], done: Sequence[str], rest: Sequence[str]
) -> FleetError:
    """The failure, and who runs what after it."""
    text = f"the restart ends at {', '.join(part)}: {render.clean(error)}; "
    text += f"restarted before: {', '.join(done) or 'none'}; "
    text += f"not touched: {', '.join(rest) or 'none'}"
    told = FleetError(text, host=part[0])
    told.exit_code = getattr(error, "exit_code", FleetError.exit_code)
    return told


def _restart(
    session: Session, run: roots.Run, hosts: list[str], launcher: Launcher, manner: Manner
) -> None:
    """Restart these hosts while others serve."""
    store = run.store
    with locks.verb_lock(store, "restart"):
        locks.check_room(store)
        before = roots.open_run(run.root).need_meta()
        _await_others(session, run, before, hosts, manner.ready)
        # The number first: a watcher then sees hosts that start, and leaves them alone.
        launches = {host: before.launches.get(host, 0) + 1 for host in hosts}
        meta = _from(replace(before, launches={**before.launches, **launches}), manner)
        launching.publish(store, meta, hosts)
        drain = Drain(store, before, hosts, manner.patience, manner.width)
        draining.announce(drain)
        report = draining.finish(drain, launcher)
        if report.failed:
            locks.record(store, "restart", event="restart failed", hosts=hosts)
            raise Refused("; ".join(report.problems), host=report.failed[0])
        rundir.clear_intents(store, hosts, watcher=False)
        crew = bringup.Crew(store, meta, hosts, launcher, manner.width, session.say, complain)
        try:
            bringup.bring_up(crew, manner.ready or meta.ready_timeout)
        except BaseException:
            # Stopped for now, not for good: a watcher may try again.
            rundir.clear_intents(store, hosts, watcher=False)
            locks.record(store, "restart", event="restart failed", hosts=hosts)
            raise
        locks.record(store, "restart", event="restarted", hosts=hosts, launches=launches)


def _await_others(
    session: Session,
    run: roots.Run,
    meta: LaunchMeta,
    hosts: Sequence[str],
    patience: float | None,
) -> None:
    """Wait until somebody else serves the run. Refused if nobody does: there would be a gap."""
    others = [worker.host for worker in meta.workers if worker.host not in hosts]
    if not others:
        session.note("no other host is in the run: it is not served while these restart")
        return
    end = time.monotonic() + (meta.ready_timeout if patience is None else patience)
    while not _some_ready(run, meta, others):
        if time.monotonic() >= end:
            raise Refused(
                "no other host is ready, so nobody would serve the run meanwhile: "
                "see ctl status, or use ctl restart-host"
            )
        time.sleep(bringup.POLL)


def _some_ready(run: roots.Run, meta: LaunchMeta, hosts: Sequence[str]) -> bool:
    names = run.store.scan(layout.STATUS)
    fresh = set(beats.beating(run.store, meta.heartbeat_stale))
    for host in fresh.intersection(hosts):
        beat = beats.read_beat(run.store, host, names)[0]
        if beat and beat.ready and not beat.draining and not beat.refused:
            return True
    return False
