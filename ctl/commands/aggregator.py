"""`ctl aggregator`: the process that merges the rounds of a run's groups."""

from __future__ import annotations

import click

from ctl import aggregating, groupstatus, locks, render, roots
from ctl.params import json_option, root_option
from ctl.session import Session
from fsworker.errors import NotRunning


@click.group()
def command() -> None:
    """Start, stop or look at the process that merges a run's rounds.

    The run's watcher starts it again when it dies, and `ctl stop` ends it. It runs on this machine
    and needs torch. `fedavg run` does the same on any machine that mounts the root.
    """


@command.command("start")
@root_option
@click.pass_obj
def start(session: Session, root: str | None) -> int:
    """Start it on this machine, and have the watcher keep it alive."""
    run = roots.open_run(*roots.find_root(root, session.config))
    aggregating.check()
    with locks.verb_lock(run.store, "aggregator"):
        if aggregating.is_wanted(run.store):
            pid = aggregating.keep(run.store)
            if pid is None:
                session.say(f"it runs already: {groupstatus.aggregator(run.store).words}")
                return 0
        else:
            pid = aggregating.start(run.store)
    session.say(f"aggregating pid={pid} log={run.store.path(aggregating.LOG)}")
    return 0


@command.command("stop")
@root_option
@click.pass_obj
def stop(session: Session, root: str | None) -> int:
    """End it, and have nobody start it again."""
    run = roots.open_run(*roots.find_root(root, session.config))
    if not aggregating.is_wanted(run.store):
        raise NotRunning(f"{run.root} has no aggregator of its own", path=run.root)
    with locks.verb_lock(run.store, "aggregator"):
        sentence = aggregating.stop(run.store)
    if sentence:
        session.note(sentence)
        return 1
    session.say("stopped the aggregator")
    return 0


@command.command("keep")
@root_option
@click.pass_obj
def keep(session: Session, root: str | None) -> int:
    """Start it again if it has died; what a watcher calls, and cron may."""
    run = roots.open_run(*roots.find_root(root, session.config))
    with locks.verb_lock(run.store, "aggregator"):
        pid = aggregating.keep(run.store)
    if pid is not None:
        session.say(f"aggregating pid={pid} log={run.store.path(aggregating.LOG)}")
        locks.record(run.store, "aggregator", event="aggregator started", pid=pid)
    return 0


@command.command("status")
@root_option
@json_option
@click.pass_obj
def status(session: Session, root: str | None, as_json: bool) -> int:
    """Say whether one is at work. Exit code: 0 it is, 3 it is not."""
    run = roots.open_run(*roots.find_root(root, session.config))
    who = groupstatus.aggregator(run.store)
    fields = who.fields()
    code = 0 if fields is not None and fields["alive"] else NotRunning.exit_code
    if as_json:
        render.document({"root": run.root, "aggregator": fields, "exit_code": code})
    else:
        session.say(who.words)
    return code
