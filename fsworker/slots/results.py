"""The results of a batch as they come in: which tasks have one, and the records as they are.

Slots answer tasks in runs, so what is kept are entries of one or many tasks, none of which overlap:
the first result of a task counts, and an entry that comes too late in part is taken apart. Nothing
is decoded but then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fsworker import outcomes
from fsworker.outcomes import CODES, OK, TIMEOUT
from fsworker.protocol import packing
from fsworker.slots.memory import Entry

_OK, _TIMEOUT = CODES[OK], CODES[TIMEOUT]


class Results(Mapping[int, bytes]):
    """The results of `count` tasks: a mapping from index to a record of that task alone."""

    def __init__(self, count: int) -> None:
        self.entries: list[Entry] = []
        """What was kept, in the order in which it came."""
        self.failed = self.timeouts = 0
        self._known = bytearray(count)
        self._left = count

    @property
    def complete(self) -> bool:
        """Whether every task has its result."""
        return not self._left

    def keep(self, entry: Entry) -> int:
        """Take an entry in; the first result of a task counts. Gives how many were new."""
        first, end = entry.task, entry.task + entry.size
        if end > len(self._known):
            return 0
        if self._known.find(1, first, end) >= 0:
            return 0 if entry.size == 1 else sum(map(self.keep, _apart(entry)))
        self._known[first:end] = b"\1" * entry.size
        self._left -= entry.size
        self.entries.append(entry)
        if entry.status != _OK:
            self.failed += entry.size
            self.timeouts += entry.size if entry.status == _TIMEOUT else 0
        return entry.size

    def missing(self, first: int, end: int) -> list[tuple[int, int]]:
        """The stretches of `first` to `end` that have no results."""
        stretches: list[tuple[int, int]] = []
        while (start := self._known.find(0, first, end)) >= 0:
            first = self._known.find(1, start, end)
            stretches.append((start, end if first < 0 else first))
            if first < 0:
                break
        return stretches

    def records(self) -> list[bytes]:
        """All records, in the order of the tasks."""
        return [entry.data for entry in sorted(self.entries)]

    def apart(self) -> dict[int, bytes]:
        """A record for each task, in their order."""
        return {e.task: e.data for entry in sorted(self.entries) for e in _apart(entry)}

    def __contains__(self, index: object) -> bool:
        known = self._known
        return isinstance(index, int) and 0 <= index < len(known) and known[index] == 1

    def __getitem__(self, index: int) -> bytes:
        for entry in reversed(self.entries):
            if entry.task <= index < entry.task + entry.size:
                return _apart(entry)[index - entry.task].data
        raise KeyError(index)

    def __iter__(self) -> Iterator[int]:
        return (i for i, known in enumerate(self._known) if known)

    def __len__(self) -> int:
        return len(self._known) - self._left


def _apart(entry: Entry) -> list[Entry]:
    """An entry as one for each of its tasks."""
    if entry.size == 1 and not outcomes.is_run(_decoded(entry)):
        return [entry]
    rows: list[Any] = list(outcomes.singles([_decoded(entry)]))
    share = entry.elapsed / entry.size
    return [Entry(row[0], 1, entry.status, share, packing.pack(row)) for row in rows]


def _decoded(entry: Entry) -> Any:
    return packing.unpack(entry.data)
