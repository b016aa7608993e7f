"""`ctl cleanup`: delete a run that has ended, and prove first that it is one."""

from __future__ import annotations

import os

import click

from ctl import cleaning, current, render, roots
from ctl.params import json_option
from ctl.session import Session


@click.command()
@click.option(
    "--root",
    metavar="DIR",
    help="Run root to delete [default: FLEET_ROOT if it is one, else the current run].",
)
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, and delete nothing.")
@json_option
@click.pass_obj
def command(session: Session, root: str | None, dry_run: bool, as_json: bool) -> int:
    """Delete the root of a run that has ended.

    Only a folder below the configured prefix (FLEET_ROOT), or the prefix where it is a run root
    itself, is deleted, and only if it holds a manifest or marker of ours and no fresh heartbeat.
    Links in it are removed, never followed.
    """
    config = session.config
    named, source = roots.find_root(root, config)
    real = cleaning.check(named, config.get("root"))
    if real is None:
        session.say(f"missing {named}")
        _answer(as_json, named, None, False)
        return 0
    origin = "" if root is not None else f" (from {source})"
    session.say(f"{'would remove' if dry_run else 'removing'} {real}{origin}")
    if not dry_run:
        cleaning.clean(named, real)
        current.forget(config.get("workspace"), named)
        session.say(f"removed {named}")
    _answer(as_json, named, real, not dry_run)
    return 0


def _answer(as_json: bool, root: str, real: str | None, removed: bool) -> None:
    if as_json:
        fields = {"root": root, "real": real, "missing": real is None, "removed": removed}
        render.document(fields | {"exists": os.path.lexists(root)})
