"""What a look at a slot finds wrong with it: silence, a time that is over, memory, a blocked loop.

It decides which slots must end and why; the pool ends them. Several slots may share a process and
its event loop (`mates`). Then the loop itself ends coroutines whose time is over, and the worker
steps in where it cannot: when a coroutine goes on all the same, or when something keeps the loop
from turning, so that others are late who are not to blame.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence

from fsworker import outcomes
from fsworker.slots import watching
from fsworker.slots.conditions import too_much
from fsworker.slots.loopstate import NOBODY, LoopState
from fsworker.slots.memory import State
from fsworker.slots.slot import CANCELLED, SILENT, Slot

SILENT_EXIT = 0.5
"""Seconds that a slot may take to end after it closed its socket."""
START_PATIENCE = 60.0
"""Seconds in which a slot must be ready; importing the functions anew may take long."""
BEGIN_PATIENCE = 30.0
"""Seconds in which a slot must begin what it was given; somebody may have stopped it."""
LOOP_PATIENCE = 1.0
"""Seconds beyond its time, or after it was cancelled, in which a coroutine must have ended."""
_BLOCKED = "it kept the event loop of its slot from turning, so that other tasks ran out of time"

Finding = tuple[Slot, int]
"""A slot that must end, and its `condemned`: the task, or another reason."""


class Inspection:
    """Looks at the slots of one worker; `places` of them share a process."""

    def __init__(self, memory: mmap.mmap, places: int, count: int) -> None:
        self._loops: list[LoopState] = []
        if places > 1:
            self._loops = [LoopState(memory, first) for first in range(0, count, places)]
        self._places = places
        self._weigh_due: dict[int, float] = {}

    def starts(self, slot: Slot) -> None:
        """The process of a slot is about to start."""
        if self._loops:
            self._loops[slot.number // self._places].reset()

    def judge(
        self, slot: Slot, state: State | None, mates: Sequence[Slot], now: float
    ) -> Iterable[Finding]:
        """What is wrong. `state`: what a busy slot has been at since the last look."""
        silent = slot.closed_at is not None and now > slot.closed_at + SILENT_EXIT
        if silent or (slot.state == "starting" and now > slot.due + START_PATIENCE):
            return [(slot, SILENT)]
        if slot.state != "busy":
            return ()
        if slot.dawdles(now, BEGIN_PATIENCE) and not any(mate.running() for mate in mates):
            return [(slot, SILENT)]
        if slot.memory and (over := self._weigh(slot, slot.memory, mates, now)):
            return over
        if slot.cancelling is not None and now > slot.cancelling[1] + LOOP_PATIENCE:
            return [(slot, CANCELLED)]
        return self._late(slot, state, mates, now) if state is not None else ()

    def _weigh(
        self, slot: Slot, limit: int, mates: Sequence[Slot], now: float
    ) -> Sequence[Finding]:
        """Who uses more memory than it may, with all that it started: whoever runs there."""
        if not slot.pid or now < self._weigh_due.get(slot.pid, 0.0):
            return ()
        self._weigh_due = {p: due for p, due in self._weigh_due.items() if due > now}
        self._weigh_due[slot.pid] = now + watching.EVERY
        if watching.used(slot.pid, limit) <= limit:
            return ()
        value = too_much(limit, "a slot with all that it started")
        return _together(mates, outcomes.OUT_OF_MEMORY, value)

    def _late(
        self, slot: Slot, state: State, mates: Sequence[Slot], now: float
    ) -> Sequence[Finding]:
        patience = LOOP_PATIENCE if self._loops else 0.0
        if not state.timeout or now - state.started <= state.timeout + patience:
            return ()
        if self._loops:
            blocked, by = self._loops[slot.number // self._places].look(now)
            if blocked and mates[by] is not slot:
                guilty = mates if by == NOBODY else [mates[by]]
                value = outcomes.cause("Blocked", _BLOCKED)
                return _together(guilty, outcomes.CRASHED, value) or [(slot, state.task)]
        return [(slot, state.task)]


def _together(slots: Sequence[Slot], status: str, value: dict[str, str]) -> Sequence[Finding]:
    """All of these that run must end for what one of them did."""
    running = [slot for slot in slots if slot.running()]
    for slot in running:
        slot.verdict = (status, value)
    return [(slot, slot.region.state().task) for slot in running]
