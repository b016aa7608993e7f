"""`ctl job retry`: submit again what did not succeed."""

from __future__ import annotations

import click

from ctl import locks, render, roots
from ctl.jobs import board, ending, naming
from ctl.params import json_option, root_option
from ctl.session import Session
from fsworker.errors import Refused
from fsworker.protocol.records.job import SUCCESS


@click.command()
@click.argument("names", metavar="JOB|GROUP…", nargs=-1, required=True)
@root_option
@json_option
@click.pass_obj
def command(session: Session, names: tuple[str, ...], root: str | None, as_json: bool) -> int:
    """Submit jobs again that failed or were cancelled.

    A job goes on after its last finished episode, under its id. Of several, all that did not
    succeed and neither wait nor run are submitted; which others there are is said.
    """
    run = roots.open_run(*roots.find_root(root, session.config))
    jobs = naming.jobs_of(run, names)
    done: list[str] = []
    left: dict[str, str] = {}
    with locks.verb_lock(run.store, "job retry"):
        if len(jobs) > 1:
            idle = (SUCCESS, board.PENDING, board.RUNNING)
            rows = board.rows(run, jobs)
            left = {r.job_id: r.status for r in rows if r.status in idle}
            jobs = [r.job_id for r in rows if r.job_id not in left]
            if not jobs:
                raise Refused(f"nothing of {', '.join(names)} is there to be tried again")
        for job in jobs:
            ending.retry(run, job)
            done.append(job)
    if as_json:
        kept = [{"job_id": job, "status": status} for job, status in left.items()]
        render.document({"root": run.root, "retried": done, "left": kept})
    else:
        for job in done:
            session.say(f"{job} is submitted again")
        for job, status in left.items():
            session.note(f"{job} is left as it is: {status}")
    return 0
