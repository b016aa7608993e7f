"""`fedavg reopen`: a round that was closed with uploads that are lost since."""

from __future__ import annotations

import click

from fsworker.errors import NotRunning, Refused


@click.command()
@click.argument("group")
@click.option("--root", metavar="DIR", help="Run root [default: FLEET_ROOT].")
def command(group: str, root: str | None) -> int:
    """Take back the plan of a round that cannot be merged, so that it is closed anew.

    Only a round that is closed and not merged is reopened, and only while no aggregator is at work:
    stop it first. The plan is kept under a hidden name. Uploads that are damaged are refused then.
    """
    from fedavg import closing  # lazily: this imports torch
    from fedavg.aggregator import leadership
    from fedavg.roots import open_root
    from fsworker.protocol.groupview import GroupEye

    store = open_root(root)
    with leadership(store):
        view = GroupEye(store, group).look()
        if view.plan is None:
            if view.finished:
                raise Refused(f"group {group!r} has had its last round")
            raise NotRunning(f"round {view.round} of group {group!r} is open: nothing to take back")
        kept = closing.reopen(store, group, view.round)
    print(f"round {view.round} of {group} is open again; its plan is kept as {kept}")
    return 0
