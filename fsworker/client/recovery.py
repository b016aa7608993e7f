"""What an earlier client of a stream left behind: its results, handed out once more.

A result is kept by whoever asks for the next one: only then is it removed from the root. So a
process that dies while it recovers finds the last result again, and none is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fsworker import outcomes
from fsworker.client.delivery import Delivered, Delivery, Want
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store, storage_error
from fsworker.remote import TaskError, lost, task_error

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recovered:
    """One result of an earlier client. `error` is None when the task returned `value`.

    `batch` and `index` name the task; both are the same however often it is recovered. For a batch
    whose results cannot be had at all there is one, with `index` None.
    """

    batch: str
    index: int | None
    id: Any
    value: Any
    error: TaskError | None


def recover(
    store: Store,
    stream: str,
    is_mine: Callable[[str], bool],
    taken: Callable[[str], None] = lambda batch: None,
) -> Iterator[Recovered]:
    """The committed results of a stream but those of batches that are `is_mine`. `taken` is told
    of each batch whose tasks have ids, before it is removed."""

    def judge(batch: str) -> Want:
        return Want.LEAVE if is_mine(batch) else Want.TAKE

    delivery = Delivery(store, layout.encode(stream), judge)
    try:
        _close_accounts(store, layout.outbox_dir(layout.encode(stream)), is_mine)
        for delivered in delivery.poll(early=False):
            yield from _each(delivered)
            if any(
                isinstance(row, list) and row[1:2] not in ([], [None])
                for row in delivered.singles()
            ):
                taken(delivered.batch)
            delivery.forget(delivered)
        delivery.sweep()
    except OSError as error:
        path = layout.outbox_dir(layout.encode(stream))
        raise storage_error(error, "read", store.path(path)) from None


def _close_accounts(store: Store, folder: str, is_mine: Callable[[str], bool]) -> None:
    """Remove the counters of earlier clients: they say nothing true once others read."""
    try:
        names = store.scan(folder)
    except FileNotFoundError:
        return
    for name in names:
        life = layout.parse_counters_name(name)
        if life is not None and not is_mine(f"-{life}-0"):
            store.remove(f"{folder}/{name}")


def _each(delivered: Delivered) -> Iterator[Recovered]:
    batch = delivered.batch
    if delivered.lost is not None:
        yield Recovered(batch, None, None, None, lost(delivered.lost))
    for row in delivered.singles():
        try:
            index, task_id, status, value = row[:4]
        except (TypeError, ValueError):
            log.warning("a result row of %s is not one: %.100r", batch, row)
            continue
        if status == outcomes.OK:
            yield Recovered(batch, index, task_id, value, None)
        else:
            yield Recovered(batch, index, task_id, None, task_error(status, value))
