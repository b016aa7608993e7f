"""`ctl dead`: batches with tasks that killed workers until they were given up."""

from __future__ import annotations

import json
from typing import Any

import click

from ctl import locks, render, resubmit, roots, shelf, units
from ctl.params import verb
from ctl.session import Session
from ctl.shelf import Item
from ctl.shelfview import View
from ctl.taskfile import to_json
from fsworker.protocol import layout, packing

_WIDTH = 100
"""Characters of a task that people are shown; --json has all of it."""

names_argument = click.argument("names", metavar="[BATCH]...", nargs=-1)
all_option = click.option("--all", "everything", is_flag=True, help="All of them.")


@click.group()
def command() -> None:
    """Show, submit again or drop batches that were given up.

    A task that ran while a worker died, as often as the run allows, gets the result "worker died",
    and a copy of its batch is kept. Nothing waits for these copies.
    """


@verb(command, "list")
def list_(session: Session, root: str | None, as_json: bool) -> None:
    """List the batches, oldest first."""
    VIEW.show(session, root, as_json)


@verb(command, "show", click.argument("batch"))
def show(session: Session, batch: str, root: str | None, as_json: bool) -> None:
    """Show the tasks of a batch; those that were given up are marked."""
    run = roots.open_run(*roots.find_root(root, session.config))
    (item,) = shelf.choose(run, layout.DEAD, [batch], False)
    found = shelf.batch_of(run, item)
    marked = set(shelf.given_up(item, found))
    tasks = [_decoded(i, record, i in marked) for i, record in enumerate(found.records)]
    if as_json:
        fields = {**item.fields(), "meta": found.meta, "tasks": tasks}
        render.document(json.loads(to_json(fields)))
        return
    session.say(f"batch {item.name}: {item.text('why')} (last on host {item.text('host')})")
    session.say(f"function {found.meta.get('fn') or run.manifest.reward_fn}")
    rows = [
        ("given up" if t["given_up"] else "", t["index"], t["id"], to_json(t["task"])[:_WIDTH])
        for t in tasks
    ]
    render.table(("", "index", "id", "task"), rows)


@verb(command, "retry", names_argument, all_option)
def retry(
    session: Session, names: tuple[str, ...], everything: bool, root: str | None, as_json: bool
) -> None:
    """Submit the given-up tasks again, and drop the copies.

    Their senders have had their answers, so the tasks go to a new stream of their own, whose
    results `ctl results STREAM -o FILE` takes. Each is executed alone on its worker.
    """
    run = roots.open_run(*roots.find_root(root, session.config))
    with locks.verb_lock(run.store, "dead retry"):
        done = resubmit.resubmit(run, shelf.choose(run, layout.DEAD, names, everything))
    if as_json:
        told = [
            {"stream": r.stream, "tasks": r.tasks, "batches": [i.name for i in r.items]}
            for r in done
        ]
        render.document({"root": run.root, "retried": told})
        return
    for r in done:
        session.say(f"submitted {r.tasks} tasks of {len(r.items)} batches, stream {r.stream}")
    if not done:
        session.say(f"no batch was given up in {run.root}")


@verb(command, "drop", names_argument, all_option)
def drop(
    session: Session, names: tuple[str, ...], everything: bool, root: str | None, as_json: bool
) -> None:
    """Remove the copies of batches, for good."""
    run = roots.open_run(*roots.find_root(root, session.config))
    with locks.verb_lock(run.store, "dead drop"):
        chosen = shelf.choose(run, layout.DEAD, names, everything)
        for item in chosen:
            shelf.drop(run, item)
            session.say(f"dropped {item.name}")
    if as_json:
        render.document({"root": run.root, "dropped": [item.name for item in chosen]})


def _row(item: Item) -> tuple[str, ...]:
    age = units.human(item.age)
    return age, item.name, _tasks(item), item.text("host"), item.text("why")


VIEW = View(
    layout.DEAD, ("age", "batch", "tasks", "host", "reason"), _row, "no batch was given up in"
)


def _tasks(item: Item) -> str:
    return ",".join(map(str, item.tasks)) or "all"


def _decoded(index: int, record: bytes, given_up: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {"index": index, "given_up": given_up, "id": None}
    try:
        task = packing.unpack(record)
    except packing.NotPacked as error:
        return {**fields, "task": f"it cannot be decoded: {error}"}
    if isinstance(task, (list, tuple)) and task:
        names = ("args", "kwargs", "options")
        fields["id"] = task[0]
        return {**fields, "task": dict(zip(names, task[1:], strict=False))}
    return {**fields, "task": task}
