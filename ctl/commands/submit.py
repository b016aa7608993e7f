"""`ctl submit`: the tasks of a file, sent to the workers of a run."""

from __future__ import annotations

import os

import click

from ctl import needing, render, roots, streams, submission
from ctl.commands import results
from ctl.params import COUNT, DURATION, POSITIVE, json_option, need_options, root_option
from ctl.session import Session
from ctl.taskfile import TaskFile


@click.command()
@click.option("--tasks", "path", required=True, metavar="FILE", help="The tasks, a JSON line each.")
@root_option
@click.option("--fn", metavar="MODULE:FUNCTION", help="Function of the run [default: its first].")
@click.option("--timeout", type=POSITIVE, help="Time that a task may take [default: the run's].")
@click.option("--stream", help="Name for these tasks [default: from the file and its content].")
@click.option("--batch-size", type=COUNT, help="Tasks in a batch [default: 256, fewer if few].")
@click.option("--kwargs", "keywords", is_flag=True, help="Each line holds keyword arguments.")
@need_options
@click.option("--wait", is_flag=True, help="Wait for the results and write them, as ctl results.")
@click.option("-o", "--output", metavar="FILE", help="With --wait [default: TASKS.results.jsonl].")
@click.option(
    "--no-worker-timeout",
    type=DURATION,
    default=60.0,
    help="With --wait: give up when no worker has lived so long (0: never) [default: 60s].",
)
@json_option
@click.pass_obj
def command(
    session: Session,
    path: str,
    root: str | None,
    fn: str | None,
    timeout: float | None,
    stream: str | None,
    batch_size: int | None,
    keywords: bool,
    need: tuple[str, ...],
    wait_for_workers: bool,
    wait: bool,
    output: str | None,
    no_worker_timeout: float,
    as_json: bool,
) -> int:
    """Submit the tasks of a file.

    A line is a task object, {"args": […], "kwargs": {…}, "id": …, "timeout": …} with at least one
    of the first two, or any other JSON value, which is then the one argument. With --kwargs each
    line is an object that holds the keyword arguments. A bad line is named, and then nothing is
    submitted. Interrupted and run again, it goes on where it was: no task is lost or doubled; to
    run the same tasks once more, give --stream another name.
    """
    run = roots.open_run(*roots.find_root(root, session.config))
    tasks = TaskFile(path, keywords=keywords)
    try:
        needs = needing.asked(need)
        asked = submission.ask(run, tasks, stream, fn, timeout, needs, waits=wait_for_workers)
        # Not under the lock, whose file would be left behind by a task that cannot be submitted.
        wanted = submission.begin(run, tasks, asked, batch_size)
        with streams.locked(run.store, asked.stream, "lock"):
            wanted = submission.settle(run, asked, wanted)
            with render.progress("submitted", wanted.tasks) as progress:
                submission.carry_out(run, tasks, wanted, progress)
    finally:
        tasks.close()
    count, batches = wanted.tasks, len(wanted.ends)
    if wait or output:
        out = output or f"{os.path.splitext(path)[0]}.results.jsonl"
        return results.take(session, run, wanted, out, None, no_worker_timeout, as_json)
    if as_json:
        told = {"stream": wanted.stream, "root": run.root, "tasks": count, "batches": batches}
        render.document(told)
    else:
        session.say(f"submitted {count} tasks in {batches} batches to stream {wanted.stream}")
    return 0
