"""`ctl cancel`: end tasks that wait or run, by the names under which people know them."""

from __future__ import annotations

import time

import click

from ctl import cancelling, render, roots, statusview
from ctl.cancelling import Asked
from ctl.params import json_option, root_option, wait_options
from ctl.session import Session
from fsworker.errors import DeadlineExceeded, FleetError

POLL = 0.2


@click.command()
@click.argument("names", metavar="ID…", nargs=-1, required=True)
@root_option
@wait_options("nothing of it waits or runs any more")
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
    """Cancel tasks that wait or run.

    ID is a stream, a batch, one task of a batch (BATCH:INDEX), or a task's id. It means what waits
    and runs now, not what is sent later. Each task that is cancelled has the result "cancelled";
    what is done already keeps its result. Exit code 1: nothing of an ID waits or runs; 6: not all
    was over in time.
    """
    run = roots.open_run(*roots.find_root(root, session.config))
    board = cancelling.look(run.store)
    cancelling.prune(run.store, board)
    found = cancelling.resolve(run.store, board, names)
    asked = cancelling.publish(run.store, (one for each in found.values() for one in each))
    missing = [name for name, each in found.items() if not each]
    if not as_json:
        _tell(session, found)
    if asked and wait:
        _wait(run, asked, timeout)
    elif asked and not statusview.alive_hosts(run, 15.0):
        session.note("no worker is alive: it is cancelled when one is")
    if as_json:
        rows = {name: [_fields(one) for one in each] for name, each in found.items()}
        render.document({"root": run.root, "cancelled": rows, "exit_code": int(bool(missing))})
        return int(bool(missing))
    if missing:
        raise FleetError(
            f"nothing of {', '.join(map(repr, missing[:5]))} waits or runs: "
            "it is done, or was never sent to this run"
        )
    return 0


def _tell(session: Session, found: dict[str, list[Asked]]) -> None:
    for name, each in found.items():
        for one in each:
            request = one.request
            if request.upto:
                session.say(f"cancelling {name}: stream {one.target}")
            elif request.tasks:
                tasks = ",".join(map(str, request.tasks))
                session.say(f"cancelling {name}: batch {one.target}, task {tasks}")
            else:
                session.say(f"cancelling {name}: batch {one.target}")


def _fields(one: Asked) -> dict[str, object]:
    request = one.request
    return {"target": one.target, "tasks": list(request.tasks), "upto": request.upto}


def _wait(run: roots.Run, asked: list[Asked], timeout: float) -> None:
    """Until the batches are committed; then their requests are of no use."""
    end = time.monotonic() + timeout
    while True:
        board = cancelling.look(run.store)
        for one in list(asked):
            if cancelling.settled(board, one.request):
                cancelling.withdraw(run.store, one.path)
                asked.remove(one)
        if not asked:
            return
        if time.monotonic() >= end:
            raise DeadlineExceeded(
                f"{len(asked)} requests are not answered within {timeout:g} s, the first about "
                f"{asked[0].request.id!r}: they stand; see ctl status",
            )
        time.sleep(POLL)
