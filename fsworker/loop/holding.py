"""One batch that this worker holds, from its claim to its commit.

`Holding` knows the files of an attempt: it reads the batch, writes early results, the result and
the commit, and is asked again after any of these failed. A commit that was tried is never followed
by another write of the result, since it may have been executed and a reader may be reading.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from typing import Any

from fsworker import outcomes
from fsworker.errors import FormatError
from fsworker.loop import fitting, setaside, withdrawal
from fsworker.loop.early import Early
from fsworker.protocol import layout, ledger, segment
from fsworker.protocol.fsops import NO_ROOM, Store
from fsworker.protocol.layout import Owner, Token
from fsworker.protocol.ledger import Move
from fsworker.protocol.segment import Segment
from fsworker.slots.backlog import Work

log = logging.getLogger("fsworker.loop.holding")

_RETRY_FIRST, _RETRY_LONGEST = 0.1, 5.0
NO_FILE = {errno.EISDIR: "it is a folder", errno.ENXIO: "it is a pipe, a socket or a device"}
"""What reading says of a name that is no file, and what people are told."""
NO_ROOM_TRIES = 7
"""How often a result that is larger than the filesystem may find no room before it gives way."""
ROOM_PATIENCE = 300.0
"""Seconds without room after which others give way too: of a quota nobody can tell how large it is,
and one value that never fits must not keep its batch and its worker for ever."""


class Holding:
    """A claimed batch. `work` is None until it was read, `over` once it is ours no more."""

    def __init__(self, store: Store, owner: Owner, token: Token, now: float) -> None:
        self.store, self.owner, self.token = store, owner, token
        self.outcome = layout.outcome(owner, token)
        self.path = layout.claim_path(owner, token)
        self.work: Work | None = None
        self.extra: dict[str, Any] = {}
        self.over = self.committed = False
        self.counted = 0
        self.missed = 0
        self.claimed_at = now
        self.due = 0.0
        self.trouble = False
        self._retry = _RETRY_FIRST
        self._written = self._commit_tried = False
        self._no_room, self._no_room_since = 0, 0.0
        self._parts = 0
        self._early = Early(now)

    @property
    def key(self) -> str:
        """The claim's name: never used twice."""
        return os.path.basename(self.path)

    @property
    def suspect(self) -> bool:
        """Whether a worker is proven to have died while it held this batch of tasks.

        A job is not: it is alone in its batch, and what it died of is its runner's business.
        """
        return self.token.deaths > 0 and not self.token.is_job

    @property
    def committing(self) -> bool:
        """Whether a commit was tried, so that the claim may have moved by our own hand."""
        return self._commit_tried

    def read(self, default: str, timeout: float | None) -> bool:
        """Read the batch; False when that failed for now. What is damaged is set aside."""
        try:
            found = self._read()
        except FileNotFoundError:
            log.warning("batch %s was revoked before it was read", self.token.batch)
            self.over = True
            return False
        except OSError as error:
            if error.errno in NO_FILE:
                self.over = self._set_aside(NO_FILE[error.errno], folder=True)
                return False
            self.failed("read the batch", error)
            return False
        except FormatError as error:
            if not self._set_aside(str(error)):
                return False
            self.extra = {"damaged": str(error)}
            found = Segment(segment.BATCH)
        self.recovered()
        records = segment.Records.of(found.records)
        self.work = Work(self.key, self._meta(found.meta, default, timeout), records)
        return True

    def too_late(self) -> str | None:
        """Why the batch must not be executed any more: it waited longer than it allows.

        By the file server's clock alone, which dates the batch and a file that is written now; no
        host's clock is asked. Raises OSError.
        """
        limit = withdrawal.limit_of(self.work.meta) if self.work else None
        if limit is None:
            return None
        _, submitted = self.store.read_with_mtime(self.path)
        waited = self.store.server_time(self.owner.folder) - submitted
        return withdrawal.overdue(waited, limit)

    def commit(self) -> Move | None:
        """Write the result if it is not written, and commit. None: it failed for now."""
        try:
            if not self._written:
                self._prepare()
                self._written = True
            self._commit_tried = True
            move = self.store.run(ledger.commit(self.owner, self.token))
        except OSError as error:
            self.failed("commit", error)
            return None
        if move in (Move.HELD, Move.UNSETTLED):
            self.failed("commit", move.value)
            return None
        self.over = True
        self.committed = move is Move.DONE
        self.recovered()
        if move is Move.GONE:
            log.warning(
                "batch %s: its claim is gone, somebody else has it; the late result is set aside",
                self.token.batch,
            )
        return move

    def give_back(self) -> bool:
        """Return the batch to its inbox, blaming nobody; False when that failed."""
        if self._commit_tried:
            return self.commit() is not None
        try:
            move = self.store.run(ledger.give_back(self.owner, self.token))
        except OSError as error:
            self.failed("give back", error)
            return False
        self.over = move in (Move.DONE, Move.GONE)
        return self.over

    def hurry(self) -> None:
        """Publish what has finished at the next chance: somebody waits for it."""
        self._early.hurry()

    def publish_early(self, now: float) -> None:
        """Publish what has finished since the last time, if the batch takes long."""
        work = self.work
        if work is None or work.finished:
            return
        entries = work.results.entries
        if not self._early.is_due(now, len(entries)):
            return
        waiting = entries[self._early.published :]
        new = [entry.data for entry in waiting[: fitting.portion(waiting)]]
        if new and self.put_part(new, durable=False):
            self._early.did(len(new))

    def put_part(self, records: list[bytes], *, durable: bool) -> bool:
        """Publish a part of this attempt; False when that failed."""
        data = self._encode(segment.PART, records, {"part": self._parts})
        try:
            try:
                self.store.publish(self.outcome.part(self._parts), data, durable=durable)
            except FileNotFoundError:  # the stream's folder went with its client
                self.store.mkdir(layout.outbox_dir(self.token.stream))
                self.store.publish(self.outcome.part(self._parts), data, durable=durable)
        except OSError as error:
            self.failed("publish early results", error)
            return False
        self._parts += 1
        self.recovered()
        return True

    def bury(self, index: int, why: str) -> None:
        """Keep a copy of the batch for people, with the reason and the task given up."""
        setaside.bury(self.store, self.owner, self.token, index, why)

    def failed(self, what: str, why: object) -> None:
        """Something did not work; try again later, and say so once."""
        if not self.trouble:
            log.error("batch %s: cannot %s: %s; trying again", self.token.batch, what, why)
        self.trouble = True
        self.due = time.monotonic() + self._retry
        self._retry = min(self._retry * 2, _RETRY_LONGEST)

    def recovered(self) -> None:
        """It works again."""
        self.trouble, self.due, self._retry = False, 0.0, _RETRY_FIRST

    def _read(self) -> Segment:
        for last in (False, True):
            try:
                return segment.decode(self.store.read(self.path), segment.BATCH, self.path)
            except FormatError:
                if last:
                    raise
        raise AssertionError("unreachable")

    def _set_aside(self, why: str, *, folder: bool = False) -> bool:
        """Keep what is damaged, and why; False when that failed for now."""
        try:
            aside = setaside.move_away if folder else setaside.quarantine
            aside(self.store, self.owner, self.token, why)
        except OSError as error:
            self.failed("set aside", error)
            return False
        return True

    def _meta(self, meta: dict[str, Any], default: str, timeout: float | None) -> dict[str, Any]:
        asked = meta.get("timeout")
        if isinstance(asked, (int, float)) and not isinstance(asked, bool) and asked > 0:
            timeout = float(asked)
        return {
            "kind": meta.get("kind"),
            "fn": meta["fn"] if isinstance(meta.get("fn"), str) else default,
            "timeout": timeout,
            "batch": self.token.batch,
            "attempt": self.token.attempt,
            "owner": self.owner.name if self.token.is_job else None,
            "retries": meta.get("retries"),
            "env": meta.get("env"),
            "memory": meta.get("memory"),
            "queue_limit": meta.get("queue_limit"),
            "form": meta.get("form"),
        }

    def _prepare(self) -> None:
        """Write the result; what has no room for too long, without its largest values."""
        try:
            self._write(self._results())
            return
        except OSError as error:
            if error.errno not in NO_ROOM or not self._hopeless(error.errno == errno.EFBIG):
                raise
            problem, why = error, f"{error.strerror} on the root's filesystem"
        work = self.work
        allowed = self._size() // 2
        while work and work.records and allowed:
            records = fitting.shrink(work, allowed, "NotStored", why)
            try:
                self._write(records)
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                allowed //= 2
                continue
            log.error("batch %s: the largest results are not stored: %s", self.token.batch, why)
            return
        raise problem

    def _size(self) -> int:
        """The bytes of all results."""
        return sum(len(e.data) for e in self.work.results.entries) if self.work else 0

    def _hopeless(self, never: bool) -> bool:
        """Whether results that find no room again need not wait for it any longer."""
        if not self._no_room:
            self._no_room_since = time.monotonic()
        self._no_room += 1
        if time.monotonic() - self._no_room_since > ROOM_PATIENCE:
            return True
        if self._no_room < NO_ROOM_TRIES:
            return False
        return never or self._size() > self.store.capacity()

    def _write(self, records: list[bytes]) -> None:
        tasks = 1 if self.work is None or self.extra else len(self.work.records)
        data = self._encode(segment.RESULT, records, {"tasks": tasks, **self.extra})
        self.store.run(ledger.prepare_result(self.owner, self.token, data))

    def _results(self) -> list[bytes]:
        if self.work is None:
            return []
        if "damaged" in self.extra:
            why = outcomes.cause("DamagedBatch", self.extra["damaged"])
            return [outcomes.record(-1, None, outcomes.INVALID, why, 0.0)]
        return fitting.results(self.work)

    def _encode(self, kind: bytes, records: list[bytes], extra: dict[str, Any]) -> bytes:
        meta = {
            "batch": self.token.batch,
            "attempt": self.token.attempt,
            "host": self.owner.host,
            "incarnation": self.owner.incarnation,
            "elapsed": time.monotonic() - self.claimed_at,
            **extra,
        }
        return segment.encode(Segment(kind, meta, records))
