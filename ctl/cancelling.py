"""Cancelling by the names that people see: a stream, a batch, one task of a batch, or a task's id.

What a name means is settled when it is asked for, by what waits and runs at that moment, so that a
request never reaches what is sent later under the same name. A task's id is found by reading what
waits and runs; workers then need not read ids at all.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ctl import streams
from ctl.streams import Submission
from fsworker.errors import FormatError
from fsworker.protocol import layout, packing, requests, segment, turns
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.records.cancel import CancelRequest

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Asked:
    """One request: whom it concerns, what it says, and where it lies once it is published."""

    target: str
    request: CancelRequest
    path: str = ""


@dataclass
class Board:
    """What waits and runs now: where each batch lies."""

    paths: dict[str, str] = field(default_factory=dict)

    def of_stream(self, stream: str) -> dict[str, int]:
        """Of each client of a stream (encoded name), the highest batch number there is."""
        found: dict[str, int] = {}
        for batch in self.paths:
            if layout.stream_of(batch) == stream:
                client, number = batch.rpartition("-")[0], turns.turn_of(batch)[1]
                found[client] = max(number, found.get(client, -1))
        return found


def look(store: Store) -> Board:
    """List all that waits and runs. The inboxes twice: a batch may be given back meanwhile."""
    board = Board()
    try:
        _look_inboxes(store, board)
        for owner in filter(None, map(layout.parse_owner, store.scan(layout.CLAIMS))):
            for name in _names(store, owner.folder):
                claim = layout.parse_claim_name(name)
                if claim:
                    board.paths[claim.batch] = f"{owner.folder}/{name}"
        _look_inboxes(store, board)
    except OSError as error:
        raise storage_error(error, "list", store.root) from None
    return board


def _look_inboxes(store: Store, board: Board) -> None:
    for shard in store.scan(layout.INBOX):
        if not (shard.isascii() and shard.isdigit()):
            continue
        for name in _names(store, layout.inbox_dir(int(shard))):
            token = layout.parse_inbox_name(int(shard), name)
            if token:
                board.paths[token.batch] = layout.inbox_path(token)


def _names(store: Store, folder: str) -> list[str]:
    try:
        return store.scan(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def resolve(store: Store, board: Board, names: Sequence[str]) -> dict[str, list[Asked]]:
    """What each name means now; an empty list when it means nothing that waits or runs."""
    found = {name: _by_name(store, board, name) for name in dict.fromkeys(names)}
    ids = {name for name, asked in found.items() if not asked}
    if ids:
        for name, asked in _by_task_id(store, board, ids):
            found[name].append(asked)
    return found


def _by_name(store: Store, board: Board, name: str) -> list[Asked]:
    """A batch, `BATCH:INDEX`, or a stream."""
    if name in board.paths:
        return [Asked(name, CancelRequest(name, name))]
    batch, _, index = name.rpartition(":")
    if batch in board.paths and index.isascii() and index.isdigit():
        return [Asked(batch, CancelRequest(name, batch, (int(index),)))]
    try:
        stream = layout.encode(name)
    except ValueError:
        return []
    upto = board.of_stream(stream)
    # Of a submission that is still going on it is known what is to come, and that is meant too.
    submission = streams.read(store, Submission, name)
    if submission is not None and upto:
        client = submission.token(0).batch.rpartition("-")[0]
        upto[client] = len(submission.ends) - 1
    return [Asked(stream, CancelRequest(name, upto=upto))] if upto else []


def _by_task_id(store: Store, board: Board, ids: set[str]) -> Iterable[tuple[str, Asked]]:
    """Tasks with one of these ids, found by reading every batch that waits or runs."""
    for batch, path in board.paths.items():
        places: dict[str, list[int]] = {}
        for index, task_id in enumerate(_ids_of(store, path)):
            if task_id is not None and str(task_id) in ids:
                places.setdefault(str(task_id), []).append(index)
        for name, indexes in places.items():
            yield name, Asked(batch, CancelRequest(name, batch, tuple(indexes)))


def _ids_of(store: Store, path: str) -> list[Any]:
    """The ids of a batch's tasks; none for a batch that moved on meanwhile or is damaged."""
    try:
        records = segment.decode(store.read(path), segment.BATCH, path).widened().records
    except FileNotFoundError:
        log.debug("%s has moved on", path)
        return []
    except FormatError as error:
        log.info("%s", error)
        return []
    except OSError as error:
        raise storage_error(error, "read", store.path(path)) from None
    return [_id_of(record) for record in records]


def _id_of(record: bytes) -> Any:
    try:
        return packing.unpack(record)[0]
    except (packing.NotPacked, IndexError, TypeError):
        return None


def publish(store: Store, asked: Iterable[Asked]) -> list[Asked]:
    """Write requests for the workers: all of them, or none where the root takes no more writes."""
    written: list[Asked] = []
    try:
        for one in asked:
            path = requests.ask(store, one.target, one.request)
            written.append(Asked(one.target, one.request, path))
    except OSError as error:
        for one in written:
            withdraw(store, one.path)
        raise storage_error(error, "write", store.path(layout.CANCEL)) from None
    return written


def settled(board: Board, request: CancelRequest) -> bool:
    """Whether nothing that is meant waits or runs any more."""
    return not any(map(request.covers, board.paths))


def withdraw(store: Store, path: str) -> None:
    """Remove a request. A failure is harmless: it means nothing by now."""
    try:
        store.remove(path)
    except OSError as error:
        log.info("the request %s stays: %s", store.path(path), error)


def prune(store: Store, board: Board) -> int:
    """Remove requests, of whomever, that mean nothing any more; how many those were."""
    removed = 0
    for name in _names(store, layout.CANCEL):
        if layout.parse_cancel_name(name) is None:
            continue
        path = f"{layout.CANCEL}/{name}"
        try:
            request = CancelRequest.from_json(store.read(path, 1 << 20), path)
        except FormatError as error:
            log.warning("%s", error)
            continue
        except OSError:
            continue
        if settled(board, request):
            withdraw(store, path)
            removed += 1
    return removed
