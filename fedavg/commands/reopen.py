"""`fedavg reopen`: a round that was closed with uploads that are lost since."""

from __future__ import annotations

import click

from fsworker.errors import Busy, NotRunning, Refused
from fsworker.protocol import federation
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.layout import groups
from fsworker.protocol.records.round import AggregatorBeat


@click.command()
@click.argument("group")
@click.option("--root", metavar="DIR", help="Run root [default: FLEET_ROOT].")
def command(group: str, root: str | None) -> int:
    """Take back the plan of a round that cannot be merged, so that it is closed anew.

    Only a round that is closed and not merged is reopened, and only while no aggregator is at work:
    stop it first. On a filesystem without locks, one that beat lately counts as at work (exit code
    10). The plan is kept under a hidden name. Uploads that are damaged are refused then.
    """
    from fedavg import closing  # lazily: this imports torch
    from fedavg.aggregator import leadership
    from fedavg.roots import open_root
    from fsworker.protocol.groupview import GroupEye

    store = open_root(root)
    with leadership(store) as alone:
        if not alone:
            _refuse_beside_another(store)
        view = GroupEye(store, group).look()
        if view.plan is None:
            if view.finished:
                raise Refused(f"group {group!r} has had its last round")
            raise NotRunning(f"round {view.round} of group {group!r} is open: nothing to take back")
        kept = closing.reopen(store, group, view.round)
    print(f"round {view.round} of {group} is open again; its plan is kept as {kept}")
    return 0


def _refuse_beside_another(store: Store) -> None:
    """Busy where no lock can tell and an aggregator's sign of life says that it is at work.

    It may be merging the very plan, and would publish a model whose plan is none any more.
    """
    path = store.path(groups.AGGREGATOR_BEAT)
    try:
        data, changed = store.read_with_mtime(groups.AGGREGATOR_BEAT, federation.RECORD_LIMIT)
        beat = AggregatorBeat.from_json(data, path)
        age = max(0.0, store.server_time(groups.FEDERATION) - changed)
    except FileNotFoundError:
        return
    except OSError as error:
        raise storage_error(error, "read", path) from None
    left = federation.patience(beat) - age
    if not beat.stopped and left >= 0:
        raise Busy(
            f"an aggregator on {beat.host} (pid {beat.pid}) beat {age:.0f} s ago, and "
            f"{store.root} has no locks: stop it first; one that was killed counts as gone in "
            f"{left:.0f} s",
            path=path,
            host=beat.host,
        )
