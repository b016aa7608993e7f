"""`fedavg reopen`: a round that was closed with uploads that are lost since."""

from __future__ import annotations

from functools import partial

import click

from fsworker.errors import Busy, FormatError, NotRunning, Refused
from fsworker.protocol import aggregators
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import groups


@click.command()
@click.argument("group")
@click.option("--root", metavar="DIR", help="Run root [default: FLEET_ROOT].")
def command(group: str, root: str | None) -> int:
    """Take back the plan of a round that cannot be merged, so that it is closed anew.

    Or whose plan is damaged. Only a round that is closed and not merged is reopened, and only while
    no aggregator is at work, be it `fedavg run` or `fedavg once` (exit code 10): stop it first. On
    a filesystem without locks, one counts as at work that did not say that it ended and beat within
    20 s, or within 15 minutes if it was about to read or merge then. The plan is kept under a
    hidden name. Uploads that are damaged are refused then.
    """
    from fedavg import closing  # lazily: this imports torch
    from fedavg.aggregator import leadership
    from fedavg.formats.errors import shown
    from fedavg.roots import open_root

    store = open_root(root)
    with leadership(store) as alone:
        if not alone:
            _refuse_beside_another(store)
        number = _closed_round(store, group)
        kept = closing.reopen(store, group, number)
    print(shown(f"round {number} of {group} is open again; its plan is kept as {kept}"))
    return 0


def _closed_round(store: Store, group: str) -> int:
    """The round that is closed and has no model, also where its plan is damaged."""
    from fsworker.protocol.groupview import GroupEye

    eye = GroupEye(store, group)
    try:
        view = eye.look()
    except FormatError as error:
        newest = eye.newest()
        number = newest.episode if newest is not None else 1
        if error.path != store.path(f"{groups.round_dir(group, number)}/{groups.PLAN_FILE}"):
            raise
        return number
    if view.plan is None:
        if view.finished:
            raise Refused(f"group {group!r} has had its last round")
        raise NotRunning(f"round {view.round} of group {group!r} is open: nothing to take back")
    return view.round


def _refuse_beside_another(store: Store) -> None:
    """Busy where no lock can tell and a sign of life of any aggregator says that it is at work.

    It may be merging the very plan, and would publish a model whose plan is none any more.
    """
    for sign in aggregators.signs(store, partial(store.server_time, groups.FEDERATION)):
        if sign.alive:
            who = f"an aggregator on {sign.beat.host} (pid {sign.beat.pid})"
            raise Busy(
                f"{who} beat {sign.age:.0f} s ago, and {store.root} has no locks: stop it first; "
                f"one that was killed counts as gone in {sign.left:.0f} s",
                path=store.path(sign.file),
                host=sign.beat.host,
            )
