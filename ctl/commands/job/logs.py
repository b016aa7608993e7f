"""`ctl job logs`: what the processes of a job wrote, read from the root."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterable

import click

from ctl import roots
from ctl.jobs import naming
from ctl.jobs.board import Board, row
from ctl.jobs.logs import JobLog
from ctl.params import COUNT, root_option
from ctl.session import Session

POLL = 0.5


@click.command()
@click.argument("job")
@root_option
@click.option("-f", "--follow", is_flag=True, help="Go on as the log grows, until the job ends.")
@click.option("-n", "--lines", type=COUNT, help="Lines from the end [default: all].")
@click.pass_obj
def command(session: Session, job: str, root: str | None, follow: bool, lines: int | None) -> int:
    """Show the log of a job, all its attempts in order."""
    run = roots.open_run(*roots.find_root(root, session.config))
    (job,) = naming.jobs_of(run, [job])[:1]
    log = JobLog(run.store, job)
    if lines is None:
        _write(log.more())
    else:
        kept: deque[bytes] = deque(maxlen=lines)
        kept.extend(b"".join(log.more()).splitlines(keepends=True))
        _write(kept)
    while follow:
        over = row(run, Board.look(run), job).over  # before the last look at the log
        _write(log.more())
        if over:
            break
        time.sleep(POLL)
    return 0


def _write(pieces: Iterable[bytes]) -> None:
    for data in pieces:
        sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
