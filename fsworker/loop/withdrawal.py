"""Answering what was cancelled while it waited for a worker that never came.

A batch that nobody can serve is claimed by nobody, so nobody would ever answer that it is
cancelled. A worker that sees it lie, with requests that mean all of its tasks, claims it and
commits the answer in one go; it executes nothing of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from fsworker import outcomes
from fsworker.errors import FormatError
from fsworker.protocol import layout, ledger, packing, segment
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Owner, Token
from fsworker.protocol.ledger import Move
from fsworker.protocol.records.cancel import CancelRequest
from fsworker.protocol.segment import Segment

log = logging.getLogger("fsworker.loop.withdrawal")

MOST = 16
"""Batches that are answered in one turn."""
_LIMIT = 1 << 20
WHY = "cancelled while it waited for a worker that offers what it needs"


def withdraw(store: Store, host: str, waiting: Iterable[Token]) -> int:
    """Answer those of the waiting batches that were cancelled whole; how many those were.

    Raises OSError; what was claimed by then is returned like the claim of a life that is over.
    """
    by_target = _requests(store)
    done = 0
    for token in waiting:
        names = [n for t in (token.batch, token.stream) for n in by_target.get(t, ())]
        if names and done < MOST and not token.is_job:  # jobs are cancelled by who asks
            done += _withdraw(store, host, token, names)
    return done


def _requests(store: Store) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    try:
        names = store.scan(layout.CANCEL)
    except FileNotFoundError:
        return found
    for name in names:
        target = layout.parse_cancel_name(name)
        if target is not None:
            found.setdefault(target, []).append(f"{layout.CANCEL}/{name}")
    return found


def _withdraw(store: Store, host: str, token: Token, names: Iterable[str]) -> bool:
    path = layout.inbox_path(token)
    try:
        batch = segment.decode(store.read(path), segment.BATCH, path).widened()
        requests = [CancelRequest.from_json(store.read(name, _LIMIT), name) for name in names]
        ids = [packing.unpack(record)[0] for record in batch.records]
    except (FileNotFoundError, FormatError, packing.NotPacked, IndexError, TypeError) as error:
        log.info("batch %s is left as it waits: %s", token.batch, error)
        return False
    meant = {i for request in requests for i in request.indexes(token.batch, len(ids))}
    if len(meant) < len(ids):
        return False
    me = Owner(host, layout.new_incarnation())
    store.run(ledger.enlist(me))
    claimed = store.run(ledger.claim(me, token))
    answered = False
    if claimed is not None:
        try:
            answered = _answer(store, me, claimed, ids)
        finally:
            if not answered:
                store.run(ledger.give_back(me, claimed))
    store.rmdir(me.folder)
    return answered


def _answer(store: Store, me: Owner, token: Token, ids: list[object]) -> bool:
    cause = outcomes.cause("Cancelled", WHY)
    rows = [outcomes.record(i, t, outcomes.CANCELLED, cause, 0.0) for i, t in enumerate(ids)]
    meta = {"batch": token.batch, "attempt": token.attempt, "host": me.host, "elapsed": 0.0}
    meta |= {"incarnation": me.incarnation, "tasks": len(ids)}
    store.run(ledger.prepare_result(me, token, segment.encode(Segment(segment.RESULT, meta, rows))))
    for _ in range(3):
        if store.run(ledger.commit(me, token)) in (Move.DONE, Move.GONE):
            log.info("batch %s is %s", token.batch, WHY)
            return True
    return False
