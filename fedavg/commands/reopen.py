"""`fedavg reopen`: a round that was closed with uploads that are lost since."""

from __future__ import annotations

import secrets

import click

from fsworker.errors import NotRunning, Refused
from fsworker.protocol.fsops import storage_error


@click.command()
@click.argument("group")
@click.option("--root", metavar="DIR", help="Run root [default: FLEET_ROOT].")
def command(group: str, root: str | None) -> int:
    """Take back the plan of a round that cannot be merged, so that it is closed anew.

    Only a round that is closed and not merged is reopened, and only while no aggregator is at work:
    stop it first. The plan is kept under a hidden name. Uploads that are damaged are refused then.
    """
    from fedavg.aggregator import leadership  # lazily: this imports torch
    from fedavg.roots import open_root
    from fsworker.protocol.groupview import GroupEye
    from fsworker.protocol.layout import groups

    store = open_root(root)
    with leadership(store):
        view = GroupEye(store, group).look()
        if view.plan is None:
            if view.finished:
                raise Refused(f"group {group!r} has had its last round")
            raise NotRunning(f"round {view.round} of group {group!r} is open: nothing to take back")
        path = groups.round_dir(group, view.round)
        folder, _, name = path.rpartition("/")
        kept = f"{folder}/.void~{secrets.token_hex(4)}~{name}"
        try:
            store.rename(path, kept)
            store.sync_folder(folder)
        except OSError as error:
            raise storage_error(error, "rename", store.path(path)) from None
    print(f"round {view.round} of {group} is open again; its plan is kept as {kept}")
    return 0
