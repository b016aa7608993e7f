"""Which tasks go to which slot: ranges of the batches at hand, sized by what is left and how long.

Many short tasks in one range cost little; long tasks must not wait behind each other. So the first
ranges are a share of what is left (guided self-scheduling), later ones as many tasks as fit into
`RANGE_SECONDS` by what was observed, and an idle slot may take over the tail of a busy one's range.
Pure bookkeeping: no process, no clock, no disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fsworker.outcomes import CODES, OK, TIMEOUT, record, task_id
from fsworker.slots.memory import Entry

RANGE_SECONDS = 0.05
"""A range is meant to take at most this long, and at least a fiftieth of it."""
AHEAD_SECONDS = 0.1
"""Work for this long is kept at hand, but at least two tasks a slot while tasks are short."""
LONG = 0.5
"""Tasks that take longer are not queued behind others here: an idle worker may take them."""
_MOST_AHEAD = 256
_OVERHEAD = 1e-5
"""Seconds that a task costs besides its own time."""
RANGE_BYTES = 1 << 20
MAX_RANGE = 1024
_OK = CODES[OK]
_FORGET = 0.2
"""How much the latest report counts in the mean task time."""


@dataclass(slots=True, eq=False)
class Work:
    """A batch at hand: its tasks as packed records, and what has become of them."""

    key: str
    meta: dict[str, Any]
    records: Sequence[bytes]
    results: dict[int, bytes] = field(default_factory=dict)
    pending: deque[tuple[int, int]] = field(default_factory=deque)
    failed: int = 0
    timeouts: int = 0
    started: bool = False
    returned: str | None = None
    """Why it shall go back to its inbox, in a word; None while it shall not."""

    @property
    def finished(self) -> bool:
        """Whether every task has its result."""
        return len(self.results) >= len(self.records)

    def open_all(self) -> None:
        """Hand out every task that has no result yet."""
        everything = [(0, len(self.records))] if self.records else []
        self.pending = deque(self.missing(0, len(self.records)) if self.results else everything)

    def answer_all(self, status: str, why: dict[str, str]) -> None:
        """Answer every task: the batch is not executed."""
        for index, task in enumerate(self.records):
            self.results[index] = record(index, task_id(task), status, why, 0.0)
        self.failed = len(self.records)

    def missing(self, first: int, end: int) -> list[tuple[int, int]]:
        """The stretches of `first` to `end` that have no results."""
        stretches: list[tuple[int, int]] = []
        for i in range(first, end):
            if i in self.results:
                continue
            if stretches and stretches[-1][1] == i:
                stretches[-1] = (stretches[-1][0], i + 1)
            else:
                stretches.append((i, i + 1))
        return stretches

    def keep(self, entries: Iterable[Entry]) -> int:
        """Take results in; the first of a task counts. Gives how many were new."""
        results, count, before = self.results, len(self.records), len(self.results)
        for task, status, _, data in entries:
            if task in results or task >= count:
                continue
            results[task] = data
            if status != _OK:
                self.failed += 1
                self.timeouts += status == CODES[TIMEOUT]
        return len(results) - before


class Backlog:
    """The batches at hand, oldest first."""

    def __init__(self) -> None:
        self.works: dict[str, Work] = {}
        self.mean: float | None = None

    def add(self, work: Work) -> None:
        """Take a batch in."""
        self.works[work.key] = work

    def waiting(self) -> int:
        """How many tasks no slot has."""
        return sum(end - first for w in self.works.values() for first, end in w.pending)

    def unfinished(self) -> int:
        """How many tasks have no result."""
        return sum(len(w.records) - len(w.results) for w in self.works.values())

    def wanted(self, slots: int) -> int:
        """How many more tasks to have at hand, so that no slot waits for the disk."""
        ahead = 1.0  # long tasks, or nothing known about them yet
        if self.mean is not None and self.mean < LONG:
            ahead = min(max(2.0, AHEAD_SECONDS / (self.mean + _OVERHEAD)), _MOST_AHEAD)
        return int(ahead * slots) - self.unfinished()

    def observe(self, entries: Sequence[Entry]) -> None:
        """Learn how long tasks take."""
        if entries:
            mean = sum(e.elapsed for e in entries) / len(entries)
            known = mean if self.mean is None else self.mean
            self.mean = known + _FORGET * (mean - known)

    def take(self, slots: int) -> tuple[Work, int, int] | None:
        """The next range for an idle slot: (batch, first, end)."""
        for work in self.works.values():
            while work.pending:
                first, end = work.pending.popleft()
                cut = min(end, first + self._size(work, first, end, slots))
                if cut < end:
                    work.pending.appendleft((cut, end))
                work.started = True
                return work, first, cut
        return None

    def put_back(self, work: Work, first: int, end: int) -> None:
        """Hand out again what has no result in a range; it goes first."""
        if work.key in self.works:
            work.pending.extendleft(reversed(work.missing(first, end)))

    def _size(self, work: Work, first: int, end: int, slots: int) -> int:
        size = -(-(self.waiting() + end - first) // max(slots, 1))
        if self.mean is not None:
            fit = RANGE_SECONDS / (self.mean + _OVERHEAD)
            size = min(max(size, int(fit / 50)), int(fit))
        size = max(1, min(size, MAX_RANGE, end - first))
        room = RANGE_BYTES
        for i in range(first, first + size):
            room -= len(work.records[i])
            if room < 0:
                return max(1, i - first)
        return size


def tail(index: int, end: int, running: float, mean: float | None) -> int | None:
    """Where to cut a busy slot's range for an idle one; None when that would not help.

    The slot has been at task `index` for `running` seconds. Half of what follows is taken; all of
    it when the task takes far longer than its range was meant to.
    """
    left = end - index - 1
    if left < 1:
        return None
    if running > 10 * RANGE_SECONDS:
        return index + 1
    if running < RANGE_SECONDS and left * (mean or 0.0) < RANGE_SECONDS:
        return None
    return end - (left + 1) // 2
