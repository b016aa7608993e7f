"""`ctl explain`: why something is where it is, what happened to it, and what happens next."""

from __future__ import annotations

import click

from ctl import completion, render, roots
from ctl.explain import batches, hosts, jobs
from ctl.explain.story import Story
from ctl.params import json_option, root_option
from ctl.roots import Run
from ctl.session import Session
from fsworker.errors import NotRunning


@click.command()
@click.argument("name", metavar="HOST|BATCH|TASK|JOB", shell_complete=completion.hosts)
@root_option
@json_option
@click.pass_obj
def command(session: Session, name: str, root: str | None, as_json: bool) -> int:
    """Explain a host, a batch, a task, or a training job.

    Says where it is and why, what happened to it, the last words of its worker, and what happens
    next. A task is BATCH:INDEX, or its id while it waits or runs. Contacts no host and changes
    nothing. Exit code 3: the run knows nothing of that name.
    """
    run = roots.open_run(*roots.find_root(root, session.config))
    stories = _stories(run, name)
    if not stories:
        raise NotRunning(
            f"{name!r} is no host of this run and no job, and no batch or task of that name waits, "
            f"runs or is kept in {run.root}: see ctl status for hosts, ctl fsck for streams"
        )
    if as_json:
        render.document({"root": run.root, "stories": [s.fields() for s in stories]})
    else:
        for story in stories:
            _tell(story)
    return 0


def _stories(run: Run, name: str) -> list[Story]:
    look = hosts.view(run)
    if name in run.hosts:
        return [hosts.explain(run, look, name)]
    if of_jobs := jobs.explain(run, look, name):
        return of_jobs
    told = (batches.explain(run, look, batch, index) for batch, index in batches.named(run, name))
    return [story for story in told if story is not None]


def _tell(story: Story) -> None:
    print(render.clean(f"{story.kind} {story.name}: {story.state}"))
    _section("now", story.now)
    _section("history", [f"{e.at or '-'}  {e.words}" for e in story.history])
    _section("last words", story.last_words)
    _section("next", story.next)


def _section(title: str, lines: list[str]) -> None:
    if lines:
        print(f"{title}:")
    for line in lines:
        print(f"  {render.clean(line)}")
