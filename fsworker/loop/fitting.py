"""Results that are too large for where they must go: which of them are answered as errors instead.

One result that cannot be stored must not keep its batch, its neighbours' results and its worker
waiting for ever. So the largest results give way, as few as it takes: each becomes a small record
that says what happened to the value. Pure decisions; whoever writes says what the limit is.
"""

from __future__ import annotations

from collections.abc import Sequence

from fsworker import outcomes
from fsworker.protocol import segment
from fsworker.slots.backlog import Work
from fsworker.slots.memory import Entry

_HEAD = 1 << 16
"""Bytes of a data file that are neither records nor their table of lengths, at most."""
_SMALL = 1024
"""A record that is no larger is never replaced: its replacement would not be smaller."""
PART_BYTES = 64 << 20
"""A part takes no more records once it holds that many bytes."""


def room(count: int, limit: int) -> int:
    """The bytes that `count` records may have together in a data file of `limit` bytes."""
    return max(0, limit - _HEAD - 4 * count)


def results(work: Work, limit: int = segment.MAX_BYTES) -> list[bytes]:
    """The result records of a batch, in order, as they fit into a data file of any size."""
    records = work.results.records()
    allowed = room(len(records), limit)
    if sum(map(len, records)) <= allowed:
        return records
    why = f"the results of its batch do not fit into one file of {limit} bytes"
    return shrink(work, room(len(work.records), limit), "ResultTooLarge", why)


def shrink(work: Work, allowed: int, kind: str, why: str) -> list[bytes]:
    """A result record for each task, the largest replaced until all together have at most
    `allowed` bytes.

    If that cannot be had, all that could be replaced are.
    """
    found = work.results.apart()
    total = sum(map(len, found.values()))
    for index in sorted(found, key=lambda i: len(found[i]), reverse=True):
        size = len(found[index])
        if total <= allowed or size <= _SMALL:
            break
        told = outcomes.cause(kind, f"its result of {size} bytes was not stored: {why}")
        small = outcomes.record(index, work.task_id(index), outcomes.INVALID, told, 0.0)
        if len(small) < size:
            found[index] = small
            total += len(small) - size
    return list(found.values())


def portion(entries: Sequence[Entry]) -> int:
    """How many of these results, from the first on, go into one part: at least one."""
    total = 0
    for count, entry in enumerate(entries):
        total += len(entry.data)
        if count and total > PART_BYTES:
            return count
    return len(entries)
