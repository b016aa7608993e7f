"""What a slot and its worker share without a message: which task runs since when, what is finished.

One page-aligned region a slot in an anonymous file that both map. Before each task the slot writes
the task's index and start, so that the worker can enforce the timeout of a slot that spins in C
with the interpreter lock held, and can say which task a vanished slot died of. Finished results are
put here before they are sent, so that neither a crash nor a slow neighbour takes back what was
done: as entries, or value by value as an open run of calls in a row, which becomes an entry where
it lies. The worker writes one value, `limit`: the slot begins no task at
or beyond it, which lets an idle slot take over the tail of a range.

There is no lock. Only the slot writes its fields, and only between tasks; a reader that sees the
same (task, started) before and after has read a stable state, since no task starts twice.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable
from typing import NamedTuple

from fsworker import outcomes
from fsworker.protocol import packing

REGION = 64 * 1024
IDLE = -1

_STATE = struct.Struct("<QqddQQqq")  # the fields of State
_FILL = struct.Struct("<QQqq")  # the last four of these, which also change without a new task
_INDEX_AT, _STARTED_AT, _FILL_AT, _SIZE_AT = 8, 16, 32, 56
_LIMIT_AT = 64
LOOP_AT = 72
"""Where the state of an event loop lies in the region of its first place: up to _DATA_AT."""
_DATA_AT = 128
_ENTRY = struct.Struct("<IIIBd")  # index, tasks, length, status code, elapsed
_RUN_AT = _ENTRY.size + outcomes.RUN_HEAD
"""Bytes that are left before the values of an open run, for what makes it an entry."""
ROOM = REGION - _DATA_AT


class State(NamedTuple):
    """What a slot says about itself. `timeout` 0 means none; `started` is monotonic.

    `task` is its index in the batch (IDLE: none), `number` that of the range to which it and the
    finished tasks belong. Behind the `written` bytes of entries there are `size` bytes of packed
    values, of the tasks from `first` on.
    """

    number: int
    task: int
    started: float
    timeout: float
    written: int
    generation: int
    first: int
    size: int


class Entry(NamedTuple):
    """Finished tasks: `size` in a row from `task` on that ended alike, and took `elapsed` seconds
    together. `data` is the packed result record of them all."""

    task: int
    size: int
    status: int
    elapsed: float
    data: bytes


def create(slots: int) -> tuple[int, mmap.mmap]:
    """An anonymous shared file with a region for each slot, and its mapping."""
    fd = os.memfd_create("shardfleet-slots", os.MFD_CLOEXEC)
    os.ftruncate(fd, max(slots, 1) * REGION)
    return fd, mmap.mmap(fd, max(slots, 1) * REGION)


def pack_entry(entry: Entry) -> bytes:
    """Finished tasks as they lie in a region and in a results frame."""
    task, size, status, elapsed, data = entry
    return _ENTRY.pack(task, size, len(data), status, elapsed) + data


def unpack_entries(data: bytes) -> list[Entry]:
    """The finished tasks in a region's data or a frame; what is cut at the end is left out."""
    entries: list[Entry] = []
    at = 0
    while at + _ENTRY.size <= len(data):
        task, size, length, status, elapsed = _ENTRY.unpack_from(data, at)
        at += _ENTRY.size + length
        if at > len(data):
            break
        entries.append(Entry(task, size, status, elapsed, data[at - length : at]))
    return entries


class Region:
    """One slot's region, from either side."""

    def __init__(self, memory: mmap.mmap, slot: int) -> None:
        self._memory = memory
        self._at = slot * REGION
        self.limit_mark = self._item(_LIMIT_AT).cast("q")
        """Its one item is the index that the slot must not reach."""
        self.index_mark = self._item(_INDEX_AT).cast("q")
        """Its one item is the task that the slot is at: written alone where `begin` is too slow."""
        self.started_mark = self._item(_STARTED_AT).cast("d")
        """Likewise, since when."""
        self.size_mark = self._item(_SIZE_AT).cast("q")
        """Likewise, how many bytes of values the open run has."""
        self._number = self._written = self._generation = self._first = 0

    # -- the slot's side

    def open(self, number: int) -> None:
        """What follows belongs to this range."""
        self._number = number

    def begin(self, index: int, started: float, timeout: float) -> None:
        """Say which task starts; IDLE says that none does."""
        _STATE.pack_into(
            self._memory,
            self._at,
            self._number,
            index,
            started,
            timeout,
            self._written,
            self._generation,
            self._first,
            0,
        )

    def append(self, entry: bytes) -> bool:
        """Keep finished tasks, unless there is no room."""
        start = self._at + _DATA_AT + self._written
        if self._written + len(entry) > ROOM:
            return False
        self._memory[start : start + len(entry)] = entry
        self._written += len(entry)
        self._tell_fill()
        return True

    def open_run(self, first: int) -> tuple[Callable[[bytes], object], int]:
        """(what puts the packed values of tasks in a row where they count, room for them). The
        first is that of task `first`; how many bytes are there is for the caller to mark."""
        self._first = first
        self._tell_fill()
        self._memory.seek(self._at + _DATA_AT + self._written + _RUN_AT)
        return self._memory.write, ROOM - self._written - _RUN_AT - outcomes.RUN_TAIL

    def close_run(self, count: int, elapsed: float) -> None:
        """Make an entry of the open run, which has the values of `count` tasks."""
        if count:
            start = self._at + _DATA_AT + self._written
            size = self.size_mark[0]
            length = outcomes.RUN_HEAD + size + outcomes.RUN_TAIL
            head = _ENTRY.pack(self._first, count, length, 0, elapsed)
            self._memory[start : start + _RUN_AT] = head + outcomes.run_head(self._first, count)
            end = start + _RUN_AT + size
            self._memory[end : end + outcomes.RUN_TAIL] = outcomes.run_tail(elapsed)
            self._written += _ENTRY.size + length
        self._tell_fill()

    def crowded(self, size: int) -> bool:
        """Whether there is no room for so many bytes of values."""
        return self._written + _RUN_AT + size + outcomes.RUN_TAIL > ROOM

    def unsent(self) -> bytes:
        """All that was appended since `clear`."""
        start = self._at + _DATA_AT
        return self._memory[start : start + self._written]

    def clear(self) -> None:
        """Start anew; what was here has been sent."""
        self._written = 0
        self._generation += 1
        self._tell_fill()

    # -- the worker's side

    def reset(self) -> None:
        """Prepare the region for a new process."""
        self._number = self._written = self._generation = self._first = 0
        self.begin(IDLE, 0.0, 0.0)

    def set_limit(self, index: int) -> None:
        """Forbid the slot to begin a task at or beyond `index`."""
        self.limit_mark[0] = index

    def state(self) -> State:
        """What the slot says now; believe it only when seen twice."""
        return State(*_STATE.unpack_from(self._memory, self._at))

    def finished(self, state: State) -> list[Entry]:
        """What the slot had finished and not yet sent at `state`."""
        start = self._at + _DATA_AT
        entries = unpack_entries(self._memory[start : start + min(state.written, ROOM)])
        start += state.written + _RUN_AT
        values = self._memory[start : start + state.size] if state.size > 0 else b""
        if count := packing.count(values):
            head, tail = outcomes.run_head(state.first, count), outcomes.run_tail(0.0)
            entries.append(Entry(state.first, count, 0, 0.0, head + values + tail))
        return entries

    # -- both sides

    def _item(self, at: int) -> memoryview:
        return memoryview(self._memory)[self._at + at : self._at + at + 8]

    def _tell_fill(self) -> None:
        """What counts beside the task: entries, and an open run without values."""
        fill = (self._written, self._generation, self._first, 0)
        _FILL.pack_into(self._memory, self._at + _FILL_AT, *fill)
