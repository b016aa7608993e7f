"""What a slot and its worker share without a message: which task runs since when, what is finished.

One page-aligned region a slot in an anonymous file that both map. Before each task the slot writes
the task's index, start and timeout, so that the worker can enforce the timeout of a slot that spins
in C with the interpreter lock held, and can say which task a vanished slot died of. Finished
results are appended here before they are sent, so that neither a crash nor a slow neighbour takes
back what was done. The worker writes one value, `limit`: the slot begins no task at or beyond it,
which lets an idle slot take over the tail of a range.

There is no lock. Only the slot writes its fields, and only between tasks; a reader that sees the
same (task, started) before and after has read a stable state, since no task starts twice.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import NamedTuple

REGION = 64 * 1024
IDLE = -1

_STATE = struct.Struct("<QqddQQ")  # range, index, started, timeout, written, generation
_FILL = struct.Struct("<QQ")  # the last two of these, which also change without a new task
_FILL_AT = _STATE.size - _FILL.size
_LIMIT_AT = 64
LOOP_AT = 72
"""Where the state of an event loop lies in the region of its first place: up to _DATA_AT."""
_DATA_AT = 128
_ENTRY = struct.Struct("<IIBd")  # index, length, status code, elapsed
ROOM = REGION - _DATA_AT


class State(NamedTuple):
    """What a slot says about itself. `timeout` 0 means none; `started` is monotonic.

    `task` is its index in the batch (IDLE: none), `number` that of the range to which it and the
    finished tasks belong.
    """

    number: int
    task: int
    started: float
    timeout: float
    written: int
    generation: int


class Entry(NamedTuple):
    """One finished task: `data` is the packed result record."""

    task: int
    status: int
    elapsed: float
    data: bytes


def create(slots: int) -> tuple[int, mmap.mmap]:
    """An anonymous shared file with a region for each slot, and its mapping."""
    fd = os.memfd_create("shardfleet-slots", os.MFD_CLOEXEC)
    os.ftruncate(fd, max(slots, 1) * REGION)
    return fd, mmap.mmap(fd, max(slots, 1) * REGION)


def pack_entry(task: int, status: int, elapsed: float, data: bytes) -> bytes:
    """A finished task, an `Entry`, as it lies in a region and in a results frame."""
    return _ENTRY.pack(task, len(data), status, elapsed) + data


def unpack_entries(data: bytes) -> list[Entry]:
    """The finished tasks in a region's data or a frame; what is cut at the end is left out."""
    entries: list[Entry] = []
    head, unpack, new, keep = _ENTRY.size, _ENTRY.unpack_from, tuple.__new__, entries.append
    at, last = 0, len(data) - head
    while at <= last:
        index, length, status, elapsed = unpack(data, at)
        at += head + length
        if at > len(data):
            break
        keep(new(Entry, (index, status, elapsed, data[at - length : at])))  # the short way
    return entries


class Region:
    """One slot's region, from either side."""

    def __init__(self, memory: mmap.mmap, slot: int) -> None:
        self._memory = memory
        self._at = slot * REGION
        limit = self._at + _LIMIT_AT
        self._limit = memoryview(memory)[limit : limit + 8].cast("q")
        self._number = 0
        self._written = 0
        self._generation = 0

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
        )

    def append(self, entry: bytes) -> bool:
        """Keep a finished task, unless there is no room. `begin` makes it count."""
        start = self._at + _DATA_AT + self._written
        if self._written + len(entry) > ROOM:
            return False
        self._memory[start : start + len(entry)] = entry
        self._written += len(entry)
        return True

    def unsent(self) -> bytes:
        """All that was appended since `clear`."""
        start = self._at + _DATA_AT
        return self._memory[start : start + self._written]

    def clear(self) -> None:
        """Start anew; what was here has been sent."""
        self._written = 0
        self._generation += 1
        _FILL.pack_into(self._memory, self._at + _FILL_AT, 0, self._generation)

    def limit(self) -> int:
        """The index that the slot must not reach."""
        limit: int = self._limit[0]
        return limit

    # -- the worker's side

    def reset(self) -> None:
        """Prepare the region for a new process."""
        self._number = self._written = self._generation = 0
        self.begin(IDLE, 0.0, 0.0)

    def set_limit(self, index: int) -> None:
        """Forbid the slot to begin a task at or beyond `index`."""
        self._limit[0] = index

    def state(self) -> State:
        """What the slot says now; believe it only when seen twice."""
        return State(*_STATE.unpack_from(self._memory, self._at))

    def finished(self, state: State) -> list[Entry]:
        """What the slot had finished and not yet sent at `state`."""
        start = self._at + _DATA_AT
        return unpack_entries(self._memory[start : start + min(state.written, ROOM)])
