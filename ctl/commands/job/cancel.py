"""`ctl job cancel`: end jobs that wait or run."""

from __future__ import annotations

import time

import click

from ctl import render, roots, statusview
from ctl.cancelling import withdraw
from ctl.jobs import board, ending, naming
from ctl.jobs.ending import Cancelled
from ctl.params import json_option, root_option, wait_options
from ctl.session import Session
from fsworker.errors import DeadlineExceeded

POLL = 0.2


@click.command()
@click.argument("names", metavar="JOB|GROUP…", nargs=-1, required=True)
@root_option
@wait_options("all have ended")
@json_option
@click.pass_obj
def command(
    session: Session,
    names: tuple[str, ...],
    root: str | None,
    wait: bool,
    timeout: float,
    as_json: bool,
) -> int:
    """Cancel jobs that wait or run.

    One that runs is ended with all its processes; its log and its finished episodes stay. Exit
    code 1: one of them was over already; 6: not all ended in time.
    """
    run = roots.open_run(*roots.find_root(root, session.config))
    jobs = naming.jobs_of(run, names)
    done = [ending.cancel(run, job) for job in jobs]
    if wait:
        _wait(run, done, timeout)
    elif any(d.how == "asked" for d in done) and not statusview.alive_hosts(run, 15.0):
        session.note("no worker is alive: it is cancelled when one is")
    code = int(any(d.how == "over" for d in done))
    if as_json:
        fields = [{"job_id": d.job, "how": d.how} for d in done]
        render.document({"root": run.root, "cancelled": fields, "exit_code": code})
    else:
        for d in done:
            words = {"at once": "cancelled", "asked": "is being cancelled", "over": "was over"}
            session.say(f"{d.job} {words[d.how]}")
    return code


def _wait(run: roots.Run, done: list[Cancelled], timeout: float) -> None:
    end = time.monotonic() + timeout
    waiting = [d for d in done if d.how == "asked"]
    while waiting:
        rows = {r.job_id: r for r in board.rows(run, [d.job for d in waiting])}
        for d in list(waiting):
            if rows[d.job].over:
                withdraw(run.store, d.request)
                waiting.remove(d)
        if waiting and time.monotonic() >= end:
            raise DeadlineExceeded(
                f"{len(waiting)} jobs did not end within {timeout:g} s, the first "
                f"{waiting[0].job}: the requests stand; see ctl jobs"
            )
        if waiting:
            time.sleep(POLL)
