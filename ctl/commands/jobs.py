"""`ctl jobs`: all training jobs of a run, and how far each is."""

from __future__ import annotations

import time

import click

from ctl import render, roots, units
from ctl.jobs import board
from ctl.jobs.board import Row
from ctl.params import POSITIVE, json_option, root_option
from ctl.session import Session
from fsworker.protocol.records.job import STATUSES

CLEAR = "\x1b[H\x1b[J"
STATUS = click.Choice((board.PENDING, board.RUNNING, *STATUSES, board.LOST))


@click.command()
@root_option
@click.option("--status", "only", type=STATUS, metavar="STATUS", help="Only those with it.")
@click.option("--group", metavar="ID", help="Only those of this group.")
@click.option("--watch", "watching", is_flag=True, help="Show it again and again, until Ctrl-C.")
@click.option("--interval", type=POSITIVE, default=2.0, help="With --watch [default: 2s].")
@json_option
@click.pass_obj
def command(
    session: Session,
    root: str | None,
    only: str | None,
    group: str | None,
    watching: bool,
    interval: float,
    as_json: bool,
) -> int:
    """List the training jobs of a run, oldest first.

    Statuses: pending, running, success, failed, timeout, cancelled; lost, when no token of a job
    is to be seen.
    """
    run = roots.open_run(*roots.find_root(root, session.config))
    while True:
        found = [
            r
            for r in board.rows(run)
            if (only is None or r.status == only)
            and (group is None or (r.job and r.job.federation_group_id == group))
        ]
        _show(session, run, found, as_json, watching)
        if not watching:
            return 0
        time.sleep(interval)


def _show(
    session: Session, run: roots.Run, found: list[Row], as_json: bool, watching: bool
) -> None:
    if as_json:
        render.document({"root": run.root, "jobs": [r.fields() for r in found]})
        return
    if watching and render.on_terminal():
        print(CLEAR, end="")
    if not found:
        session.say(f"there are no jobs in {run.root}")
        return
    rows = [
        (
            r.job_id,
            r.status,
            r.host or "-",
            f"{r.episode}/{r.episodes or '?'}",
            _reward(r.result.total_reward if r.result else None),
            _reward(r.result.final_reward if r.result else None),
            units.human(r.age),
            r.fields()["error"] or "",
        )
        for r in found
    ]
    headers = ("Job ID", "Status", "Host", "Episodes", "Total Reward", "Final Reward", "Age", "")
    render.table(headers, rows)


def _reward(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
