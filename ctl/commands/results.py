"""`ctl results`: what became of the tasks of a file, as JSON lines in the order of the input."""

from __future__ import annotations

import shutil
import sys

import click

from ctl import gather, render, roots, streams
from ctl.params import DURATION, json_option, root_option
from ctl.session import Session
from ctl.streams import Submission, Taken
from fsworker.errors import UsageError
from fsworker.protocol.fsops import storage_error


@click.command()
@click.argument("name", required=False)
@root_option
@click.option("--stream", help="The stream of the tasks [default: the only one].")
@click.option("-o", "--output", metavar="FILE", help="Where the results go [default: stdout].")
@click.option("--timeout", type=DURATION, help="Wait at most this long for them.")
@click.option(
    "--no-worker-timeout",
    type=DURATION,
    default=60.0,
    help="Give up when no worker has lived for this long (0: never) [default: 60s].",
)
@json_option
@click.pass_obj
def command(
    session: Session,
    name: str | None,
    root: str | None,
    stream: str | None,
    output: str | None,
    timeout: float | None,
    no_worker_timeout: float,
    as_json: bool,
) -> int:
    """Wait for the results of tasks and write them out.

    NAME is the stream that `ctl submit` printed, as with --stream. A line a task, in the order of
    the input: {"index", "id", "status", and "value" or "error"}. What JSON cannot hold is written
    as {"__repr__": …}. Until all are there they are kept in FILE.partial: interrupted and run
    again, it goes on where it was. Without -o, or with -o -, results go to stdout once all are
    there, and are kept below the run root, so that the same command prints them again. Exit code
    1: some tasks failed; 6: not all came in time; 9: no worker serves the run.
    """
    run = roots.open_run(*roots.find_root(root, session.config))
    submission = gather.find(run, stream or name)
    return take(session, run, submission, output, timeout, no_worker_timeout, as_json)


def take(
    session: Session,
    run: roots.Run,
    submission: Submission,
    output: str | None,
    timeout: float | None,
    no_worker_timeout: float,
    as_json: bool,
) -> int:
    """Write the results of a submission to `output`, or to stdout; the exit code."""
    to_stdout = output in (None, "-")
    if to_stdout and as_json:
        raise UsageError("--json prints one value: give -o FILE for the results")
    with (
        streams.locked(run.store, submission.stream, "results.lock"),
        render.progress("results", submission.tasks) as progress,
    ):
        taken = gather.gather(
            run,
            submission,
            None if to_stdout else output,
            timeout=timeout,
            no_worker_timeout=no_worker_timeout or None,
            progress=progress,
        )
    if to_stdout:
        _print(taken)
    _tell(session, submission, taken, to_stdout, as_json)
    return 1 if taken.failed else 0


def _print(taken: Taken) -> None:
    try:
        file = open(taken.out, "rb")  # noqa: SIM115 - closed below, whatever stdout does
    except OSError as error:
        raise storage_error(error, "read", taken.out) from None
    with file:
        shutil.copyfileobj(file, sys.stdout.buffer)
    sys.stdout.buffer.flush()


def _tell(
    session: Session, submission: Submission, taken: Taken, to_stdout: bool, as_json: bool
) -> None:
    """What came of it: never among results."""
    failed, tasks = taken.failed, submission.tasks
    if as_json:
        fields = {"stream": submission.stream, "output": taken.out, "tasks": tasks}
        render.document({**fields, "failed": failed})
    elif not to_stdout:
        session.say(f"{tasks} results of stream {submission.stream} are in {taken.out}")
    if failed:
        print(f"ctl: {failed} of {tasks} tasks failed: see {taken.out}", file=sys.stderr)
