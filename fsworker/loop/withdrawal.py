"""Answering what was cancelled, or waited too long, for a worker that never came.

A batch that nobody can serve is claimed by nobody, so nobody would ever answer that it is
cancelled, or has waited longer than it allows. A worker that sees it lie over its limit, or with
requests that mean all of its tasks, claims it and commits the answer in one go; it executes nothing
of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
MOST_READS = 64
"""Batches that are read for how long they may wait, in one turn."""
_FORGET = 10_000
_LIMIT = 1 << 20
WHY = "cancelled while it waited for a worker that offers what it needs"


def limit_of(meta: Mapping[str, Any]) -> float | None:
    """The seconds that a batch may wait for a worker; None: as long as it takes."""
    limit = meta.get("queue_limit")
    return None if isinstance(limit, bool) or not isinstance(limit, (int, float)) else limit


def overdue(waited: float, limit: float) -> str | None:
    """Why a batch that waited so many seconds must not be executed any more, if it must not."""
    words = f"it waited {waited:.1f} s for a worker, {limit:g} s is its limit"
    return words if waited > limit else None


class Overdue:
    """Which of the batches that wait have waited longer than they allow.

    By the file server's clock alone, as when they are claimed. What a batch allows is read once;
    our own clock only says when it is worth asking for the time again.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._limits: dict[str, tuple[float, float] | None] = {}
        self._asleep: dict[str, float] = {}

    def find(self, waiting: Sequence[Token], now: float) -> dict[str, str]:
        """Why they must not be executed any more, by their ids. Raises OSError."""
        if len(self._limits) > _FORGET:
            self._limits.clear()
            self._asleep.clear()
        new = [t for t in waiting if t.batch not in self._limits and not t.is_job]
        for token in new[:MOST_READS]:
            self._read(token)
        found = {}
        known = {t.batch: self._limits.get(t.batch) for t in waiting}
        limits = {batch: limit for batch, limit in known.items() if limit is not None}
        if any(self._asleep.get(batch, now) <= now for batch in limits):
            time = self._store.server_time(layout.STATUS)
            for batch, (submitted, limit) in limits.items():
                self._asleep[batch] = now + limit - (time - submitted)
                if why := overdue(time - submitted, limit):
                    found[batch] = why
        return found

    def _read(self, token: Token) -> None:
        path = layout.inbox_path(token)
        try:
            data, submitted = self._store.read_with_mtime(path)
            limit = limit_of(segment.decode(data, segment.BATCH, path).meta)
        except FormatError:  # whoever executes it will say so
            limit = None
        except OSError:  # most likely somebody has it now
            return
        self._limits[token.batch] = None if limit is None else (submitted, limit)


def withdraw(
    store: Store, host: str, waiting: Iterable[Token], late: Mapping[str, str] | None = None
) -> int:
    """Answer those of the waiting batches that were cancelled whole, and those that are too `late`
    (why, by their ids); how many those were.

    Raises OSError; what was claimed by then is returned like the claim of a life that is over.
    """
    late = late or {}
    by_target = _requests(store)
    done = 0
    for token in waiting:
        names = [n for t in (token.batch, token.stream) for n in by_target.get(t, ())]
        why = late.get(token.batch)
        if (names or why) and done < MOST and not token.is_job:  # jobs are cancelled by who asks
            done += _withdraw(store, host, token, names, why)
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


def _withdraw(
    store: Store, host: str, token: Token, names: Iterable[str], late: str | None
) -> bool:
    path = layout.inbox_path(token)
    try:
        batch = segment.decode(store.read(path), segment.BATCH, path).widened()
        requests = [CancelRequest.from_json(store.read(name, _LIMIT), name) for name in names]
        ids = [packing.unpack(record)[0] for record in batch.records]
    except (FileNotFoundError, FormatError, packing.NotPacked, IndexError, TypeError) as error:
        log.info("batch %s is left as it waits: %s", token.batch, error)
        return False
    meant = {i for request in requests for i in request.indexes(token.batch, len(ids))}
    if late is None and len(meant) < len(ids):
        return False
    me = Owner(host, layout.new_incarnation())
    store.run(ledger.enlist(me))
    claimed = store.run(ledger.claim(me, token))
    answered = False
    if claimed is not None:
        try:
            answered = _answer(store, me, claimed, ids, late)
        finally:
            if not answered:
                store.run(ledger.give_back(me, claimed))
    store.rmdir(me.folder)
    return answered


def _answer(store: Store, me: Owner, token: Token, ids: list[object], late: str | None) -> bool:
    status, cause = outcomes.CANCELLED, outcomes.cause("Cancelled", WHY)
    if late is not None:
        status, cause = outcomes.EXPIRED, outcomes.cause("Expired", late)
    rows = [outcomes.record(i, t, status, cause, 0.0) for i, t in enumerate(ids)]
    meta = {"batch": token.batch, "attempt": token.attempt, "host": me.host, "elapsed": 0.0}
    meta |= {"incarnation": me.incarnation, "tasks": len(ids)}
    store.run(ledger.prepare_result(me, token, segment.encode(Segment(segment.RESULT, meta, rows))))
    for _ in range(3):
        if store.run(ledger.commit(me, token)) in (Move.DONE, Move.GONE):
            log.info("batch %s is answered as it waits: %s", token.batch, late or WHY)
            return True
    return False
