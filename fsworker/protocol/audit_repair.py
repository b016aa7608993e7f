"""Answering a batch that cannot be read, by the moves that every owner has and no others.

Whoever finds a damaged file in an inbox must not just take it away: its client waits. So the
repairer becomes an owner for a moment, claims the batch, keeps a copy of the file with the reason,
and commits a result that says what happened. If it dies amid that, its claim is revoked like any
other's.
"""

from __future__ import annotations

import json

from fsworker.protocol import audit, layout, ledger, packing, segment
from fsworker.protocol.audit import Finding
from fsworker.protocol.layout import Owner, Token
from fsworker.protocol.ledger import Move
from fsworker.protocol.ops import Put, Read, Verb
from fsworker.protocol.segment import Segment

HOST = "(fsck)"
"""The host that repairers serve: no machine has this name."""

_TRIES = 5


def repairer() -> Owner:
    """A new owner for one repair."""
    return Owner(HOST, layout.new_incarnation())


def answer_damaged(me: Owner, token: Token) -> Verb[tuple[bool, str]]:
    """Set a damaged pending batch aside and commit an answer; whether that was done, and words.

    `me` must have a claims folder. Raises OSError when the storage refuses; the batch is pending
    again then, or among the claims of `me`.
    """
    mine = yield from ledger.claim(me, token)
    if mine is None:
        return False, "somebody else has claimed it: its worker sets it aside"
    path = layout.claim_path(me, mine)
    try:
        found = yield from audit.read_data(path, segment.BATCH)
        if not (isinstance(found, Finding) and found.kind == "damaged"):
            yield from ledger.give_back(me, mine)
            return False, "it could be read after all"
        kept = yield from _quarantine(me, mine, path, found.words)
        yield from ledger.prepare_result(me, mine, _result(me, mine, found.words))
    except OSError:
        yield from ledger.give_back(me, mine)
        raise
    for _ in range(_TRIES):
        if (yield from ledger.commit(me, mine)) in (Move.DONE, Move.GONE):
            return True, f"its file is kept as {kept}, its client is told"
    return False, "the storage does not settle its commit: repair again"


def _quarantine(me: Owner, token: Token, path: str, why: str) -> Verb[str]:
    target = f"{layout.QUARANTINE}/{token.batch}.{token.attempt}"
    yield Put(target, (yield Read(path)))
    told = {"batch": token.batch, "host": me.host, "from": path, "why": why}
    yield Put(f"{target}.reason.json", json.dumps(told).encode() + b"\n")
    return target


def _result(me: Owner, token: Token, why: str) -> bytes:
    short = f"DamagedBatch: {why.splitlines()[0][:200]}"
    cause = {"type": "DamagedBatch", "message": why, "short": short, "traceback": ""}
    meta = {
        "batch": token.batch,
        "attempt": token.attempt,
        "host": me.host,
        "incarnation": me.incarnation,
        "elapsed": 0.0,
        "damaged": why,
    }
    record = packing.pack([-1, None, "invalid", cause, 0.0])
    return segment.encode(Segment(segment.RESULT, meta, [record]))
