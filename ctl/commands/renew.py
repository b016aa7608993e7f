"""`ctl renew`: a run's files count as used, for sites that purge what nobody used."""

from __future__ import annotations

import click

from ctl import render, renewal, roots
from ctl.params import json_option, root_option
from ctl.session import Session
from fsworker.protocol.fsops import storage_error


@click.command()
@root_option
@json_option
@click.pass_obj
def command(session: Session, root: str | None, as_json: bool) -> int:
    """Let a run's files count as used today, so that a purge of scratch folders spares them.

    A watcher does so once a day unless `renew = false` is set. Only the time of the last reading is
    new where that of the last change means something, so a purge by changes is not held off. Ask
    your site: some do not want this.
    """
    run = roots.open_run(*roots.find_root(root, session.config))
    try:
        done = renewal.renew(run.store)
    except OSError as error:
        raise storage_error(error, "renew the times of files in", run.root) from None
    if as_json:
        told = {"root": run.root, "seen": done.seen, "renewed": done.renewed}
        render.document({**told, "refused": len(done.refused), "exit_code": 0})
        return 0
    session.say(f"renewed {done.renewed} of {done.seen} files and folders of {run.root}")
    if done.refused:
        session.note(f"{len(done.refused)} belong to others, as {run.store.path(done.refused[0])}")
    return 0
