"""What the processes do when nothing goes wrong any more: one fair continuation, step by step.

Every process runs on, in turn, with honest storage and fresh looks; requests that might still come
late never come. Whoever has a verb under way ends it first; past owners are reclaimed.
"""

from __future__ import annotations

from fsworker.protocol import layout
from tests.model.disk import Disk
from tests.model.programs import OUTBOX, Client, Local, Programs, Reclaimer, Worker


def next_verb(programs: Programs, disk: Disk, everyone: list[Local]) -> tuple[int, Local] | None:
    """Who goes on, by position, and with its verb under way; None when all have come to rest."""
    for position, me in enumerate(everyone):
        begun = me if me.call else fair_start(programs, me, disk, everyone)
        if begun is not None:
            return position, begun
    return None


def fair_start(programs: Programs, me: Local, disk: Disk, everyone: list[Local]) -> Local | None:
    """What an idle process does next when nothing goes wrong; None when it has nothing to do."""
    if isinstance(me, Reclaimer):
        live = {x.owner for x in everyone if isinstance(x, Worker)}
        starts = [s.local for s in programs.starts(me, disk)]
        reclaims = [s for s in starts if s.call and s.call.verb == "reclaim"]
        return next((s for s in reclaims if s.call and s.call.args[0] not in live), None)
    if isinstance(me, Client):
        committed = any(n.endswith(".done") for n in disk.names(OUTBOX))
        if not committed and all(s in ("sent", "lost") for s in me.submissions):
            return None
        return programs.starts(me, disk)[0 if committed else -1].local
    return _fair_worker(programs, me, disk)


def _fair_worker(programs: Programs, me: Worker, disk: Disk) -> Local | None:
    starts = [s.local for s in programs.starts(me, disk) if not s.cost]
    listed = {layout.parse_claim_name(n) for n in disk.names(me.owner.folder)}
    unknown = listed - {t for t, _ in me.held} - me.let_go
    expelled = me.enlisted and me.owner.folder not in disk.folders
    wanted = {"claim", "commit", "prepare_result", "enlist"}
    if unknown or expelled:
        wanted = {"adopt"}
    return next((s for s in starts if s.call and s.call.verb in wanted), None)
