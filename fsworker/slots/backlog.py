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

from fsworker import outcomes
from fsworker.protocol.segment import ARG, Records
from fsworker.slots.memory import Entry
from fsworker.slots.results import Results

RANGE_SECONDS = 0.05
"""A range is meant to take at most this long, and at least a fiftieth of it."""
AHEAD_SECONDS = 0.1
"""Work for this long is kept at hand, but at least two tasks a slot while tasks are short."""
LONG = 0.5
"""Tasks that take longer are not queued behind others here: an idle worker may take them."""
_MOST_AHEAD = 8192
"""Tasks a slot, at most: two of the usual batches, one that is executed and one for its end."""
MOST_BATCHES = 64
"""Batches at hand, at most, or two a slot: each costs a claim and a commit, which take longer than
short tasks, and somebody else may be free for it."""
_OVERHEAD = 2e-6
"""Seconds that a task costs besides its own time."""
RANGE_BYTES = 1 << 20
MAX_RANGE = 4096
_FORGET = 0.2
"""How much the latest report counts in the mean task time."""


@dataclass(slots=True, eq=False)
class Work:
    """A batch at hand: its tasks as packed records, and what has become of them."""

    key: str
    meta: dict[str, Any]
    records: Records
    results: Results = field(init=False)
    pending: deque[tuple[int, int]] = field(default_factory=deque)
    started: bool = False
    returned: str | None = None
    """Why it shall go back to its inbox, in a word; None while it shall not."""

    def __post_init__(self) -> None:
        self.results = Results(len(self.records))

    @property
    def finished(self) -> bool:
        """Whether every task has its result."""
        return self.results.complete

    def open_all(self) -> None:
        """Hand out every task that has no result yet."""
        self.pending = deque(self.results.missing(0, len(self.records)))

    def answer_all(self, status: str, why: dict[str, str]) -> None:
        """Answer every task: the batch is not executed."""
        for index in range(len(self.records)):
            self.answer(index, status, why)

    def keep(self, entries: Iterable[Entry]) -> int:
        """Take results in; the first of a task counts. Gives how many were new."""
        return sum(map(self.results.keep, entries))

    def task_id(self, index: int) -> Any:
        """The id that a task was given, if it was."""
        return None if self.meta.get("form") == ARG else outcomes.task_id(self.records[index])

    def answer(self, index: int, status: str, value: Any, elapsed: float = 0.0) -> bool:
        """Answer a task that no slot answers; False when it has its result already."""
        data = outcomes.record(index, self.task_id(index), status, value, elapsed)
        return bool(self.keep([Entry(index, 1, outcomes.CODES[status], elapsed, data)]))


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
        if len(self.works) >= max(MOST_BATCHES, 2 * slots):
            return 0
        ahead = 1.0  # long tasks, or nothing known about them yet
        if self.mean is not None and self.mean < LONG:
            ahead = min(max(2.0, AHEAD_SECONDS / (self.mean + _OVERHEAD)), _MOST_AHEAD)
        return int(ahead * slots) - self.unfinished()

    def observe(self, entries: Sequence[Entry]) -> None:
        """Learn how long tasks take."""
        if entries:
            mean = sum(e.elapsed for e in entries) / sum(e.size for e in entries)
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
            work.pending.extendleft(reversed(work.results.missing(first, end)))

    def _size(self, work: Work, first: int, end: int, slots: int) -> int:
        size = -(-(self.waiting() + end - first) // max(slots, 1))
        if self.mean is not None:
            fit = RANGE_SECONDS / (self.mean + _OVERHEAD)
            size = min(max(size, int(fit / 50)), int(fit))
        size = min(size, MAX_RANGE, end - first, work.records.fitting(first, RANGE_BYTES))
        return max(1, size)


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
