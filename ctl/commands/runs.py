"""`ctl runs`: what lies below the prefix, for whoever finds a full disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import click

from ctl import render, roots, statusview
from ctl.params import json_option
from ctl.session import Session
from fsworker.errors import FleetError, UsageError

DEPTH = 4
"""Folders below the prefix that are searched: EXPERIMENT/TRIAL/RUN_ID, and one to spare."""


@click.command()
@click.option("--root", metavar="DIR", help="Search here [default: FLEET_ROOT].")
@json_option
@click.pass_obj
def command(session: Session, root: str | None, as_json: bool) -> int:
    """List all runs below the prefix, with their state."""
    prefix = root if root is not None else session.config.get("root")
    if not prefix:
        raise UsageError("no prefix is set: give --root, or set FLEET_ROOT")
    top = roots.check_root_text(prefix)
    if not os.path.isdir(top):
        raise UsageError(f"there is no folder {top}", path=top)
    found = [_describe(path) for path in find(top)]
    if as_json:
        render.document({"prefix": top, "runs": found})
    elif found:
        print(f"runs below {top}:")
        _table(top, found)
    else:
        session.say(f"no runs below {top}")
    return 0


def _table(top: str, found: list[dict[str, Any]]) -> None:
    """Roots as below the prefix, times without year and seconds: a terminal is narrow."""
    rows = []
    for run in found:
        root = os.path.relpath(run["root"], top)
        told = run["run_id"] is None or os.path.basename(run["root"]) == run["run_id"]
        created = (run["created_at"] or "-")[5:16].replace("T", " ") or "-"
        name = "" if told else run["run_id"]
        rows.append([root, name, run["state"], created, run["hosts"], run["note"]])
    heads = ["root", "run", "state", "created", "hosts", "note"]
    for column in (5, 1):
        if not any(row[column] for row in rows):  # the roots say it already, or nothing is said
            for row in (heads, *rows):
                del row[column]
    render.table(heads, rows)


def find(top: str, depth: int = DEPTH) -> Iterator[str]:
    """The run roots at and below `top`, without following links or looking into a run."""
    if roots.is_ours(top):
        yield top
        return
    if depth == 0:
        return
    try:
        with os.scandir(top) as entries:
            folders = sorted(e.path for e in entries if e.is_dir(follow_symlinks=False))
    except OSError:
        return  # a folder of somebody else below a shared prefix
    for folder in folders:
        yield from find(folder, depth - 1)


def _describe(path: str) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "root": path,
        "run_id": None,
        "state": "unfinished",
        "created_at": None,
        "hosts": 0,
        "note": "",
    }
    try:
        run = roots.open_run(path)
    except FleetError as error:
        fields["note"] = str(error)
        return fields
    fields |= {"run_id": run.manifest.run_id, "created_at": run.manifest.created_at}
    fields["hosts"] = len(run.hosts)
    try:
        fields["state"] = statusview.look(run, run.meta.heartbeat_stale if run.meta else 15.0).state
    except FleetError as error:
        fields |= {"state": statusview.UNKNOWN, "note": str(error)}
    return fields
