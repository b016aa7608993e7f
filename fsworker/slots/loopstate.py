"""How the event loop of a process that serves several places is doing, seen from the worker.

Two values in shared memory beside the places' own: when the loop last turned, and which place keeps
it from turning, if that is known. As with the places' states there is no lock: one writes, and what
is read may be a moment old.
"""

from __future__ import annotations

import mmap
import struct

from fsworker.slots.memory import LOOP_AT, REGION

LATE = 1.0
"""Seconds without a turn after which a loop counts as blocked."""
NOBODY = -1
_STATE = struct.Struct("<dq")  # when it turned (monotonic; 0: it does not run yet), who blocks it


class LoopState:
    """That of the process whose first place has the number `first`."""

    def __init__(self, memory: mmap.mmap, first: int) -> None:
        self._memory, self._at = memory, first * REGION + LOOP_AT

    def turned(self, now: float) -> None:
        """The loop runs, and nobody blocks it."""
        _STATE.pack_into(self._memory, self._at, now, NOBODY)

    def blocked(self, by: int) -> None:
        """Place `by` of this process (counted from 0) keeps the loop from turning."""
        turned, _ = _STATE.unpack_from(self._memory, self._at)
        _STATE.pack_into(self._memory, self._at, turned, by)

    def reset(self) -> None:
        """No loop runs."""
        _STATE.pack_into(self._memory, self._at, 0.0, NOBODY)

    def look(self, now: float) -> tuple[bool, int]:
        """(whether the loop is blocked, by which place or NOBODY)."""
        turned, by = _STATE.unpack_from(self._memory, self._at)
        return bool(turned) and now - turned > LATE, by
