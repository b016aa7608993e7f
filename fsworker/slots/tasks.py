"""The executor of tasks: batches in, ranges to slots, results together again."""

from __future__ import annotations

import logging
import selectors
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from fsworker import outcomes
from fsworker.executors import Setting
from fsworker.slots import wire as slot_wire
from fsworker.slots.backlog import LONG, Backlog, Work, tail
from fsworker.slots.memory import Entry
from fsworker.slots.pool import LOOK_EVERY, SlotPool
from fsworker.slots.repeats import Repeats, final
from fsworker.slots.slot import Blame, Loss, Slot

log = logging.getLogger("fsworker.slots.tasks")

MAX_LOSSES = 5
"""How often a task may lose its slot without proof against it: then it is held to be the cause."""


@dataclass(slots=True)
class _Handed:
    """A range that a slot has; `cancelled`: tasks of it that must not run any more."""

    work: Work
    slot: Slot
    cancelled: set[int] = field(default_factory=set)


class TaskExecutor:
    """Executes batches of function calls on `concurrency` slots."""

    def __init__(self, setting: Setting, selector: selectors.BaseSelector) -> None:
        self.refused: str | None = None
        self._setting = setting
        self._backlog = Backlog()
        self._handed: dict[int, _Handed] = {}
        self._number = 0
        self._touched: dict[str, Work] = {}
        self.held_up = False
        self._judged = 0.0
        self._repeats = Repeats()
        self._alone: int | None = None
        self._losses: Counter[tuple[str, int]] = Counter()
        self.pool = SlotPool(setting, self, selector, setting.spared)

    @property
    def ready(self) -> bool:
        """Whether a slot has loaded the functions and waits or works."""
        return self.pool.count("idle", "busy") > 0

    def room(self) -> int:
        """How many more tasks it can serve soon."""
        return 0 if self.held_up else self._backlog.wanted(self.total())

    def add(self, work: Work) -> None:
        """Take a batch; what it does not hand out yet is let go by `release`."""
        self._backlog.add(work)
        if work.finished:
            self._touch(work)

    def release(self, work: Work, index: int) -> None:
        """Let one task of a batch run."""
        work.pending.append((index, index + 1))

    def drop(self, key: str) -> None:
        """Forget a batch and end what runs of it."""
        self._backlog.works.pop(key, None)
        self._touched.pop(key, None)
        self._repeats.forget(key)
        for number in [n for n, h in self._handed.items() if h.work.key == key]:
            self.pool.cancel(self._handed.pop(number).slot)

    def cancel(self, work: Work, indexes: Iterable[int]) -> None:
        """Answer tasks as cancelled and end what runs of them; their neighbours go on."""
        new = {i for i in indexes if i not in work.results and i < len(work.records)}
        if not new or work.key not in self._backlog.works:
            return
        value = outcomes.cause("Cancelled", "cancelled on request")
        for index in sorted(new):
            self._answer(work, Blame(index, outcomes.CANCELLED, value, 0.0))
        missing = work.results.missing
        work.pending = deque(s for first, end in work.pending for s in missing(first, end))
        for handed in list(self._handed.values()):
            if handed.work is work:
                self._take_away(handed, new)

    def step(self, now: float) -> list[Work]:
        """Do what is due; the batches that have new results."""
        for handed in self._handed.values():
            if handed.cancelled:
                self._end_cancelled(handed)
        self.pool.step(now)
        if self._repeats or self._alone in self._handed:
            self._repeat()
        else:
            for slot in self.pool.idle():
                if not self._hand_out(slot) and not self._take_over(slot, now):
                    break
        if now >= self._judged + LOOK_EVERY:
            self._judged, self.held_up = now, self._is_held_up(now)
        touched = list(self._touched.values())
        self._touched.clear()
        for work in touched:
            if work.finished:
                self._forget(work)
        return touched

    def busy(self) -> int:
        """Slots that execute."""
        return self.pool.count("busy")

    def total(self) -> int:
        """All slots that can be used: not those whose process was killed and does not end."""
        return len(self.pool.slots) - self.pool.count("stuck")

    def close(self) -> None:
        """End every process."""
        self.pool.close()

    # -- what the slots tell

    def on_entries(self, number: int, entries: list[Entry]) -> None:
        """Tasks of a range are finished."""
        handed = self._handed.get(number)
        if handed is not None and handed.work.keep(entries):
            self._backlog.observe(entries)
            self._touch(handed.work)

    def on_finished(self, slot: Slot, number: int) -> None:
        """A slot is through with its range."""
        self._handed.pop(number, None)

    def on_lost(self, loss: Loss) -> None:
        """A slot is gone: answer for the task that it died of, hand out the others again."""
        handed = self._handed.pop(loss.number, None)
        if handed is None:
            return
        work, index = handed.work, loss.task
        again = False
        if loss.blame is not None:
            again = loss.doubtful and self._repeats.ask(work, loss.blame.task)
            if not again:
                self._answer(work, final(loss.blame) if loss.doubtful else loss.blame)
        elif index is not None and index not in work.results:
            self._losses[work.key, index] += 1
            if self._losses[work.key, index] >= MAX_LOSSES:
                why = f"its slot was lost {MAX_LOSSES} times while it was its turn"
                value = outcomes.cause("Crashed", why)
                self._answer(work, Blame(index, outcomes.CRASHED, value, 0.0))
        alone = [(i, i + 1) for i in range(loss.first, loss.end)] if loss.apart else []
        left = alone or [(loss.first, loss.end)]
        if again and index is not None:
            left = [(loss.first, index), (index + 1, loss.end)]
        for first, end in reversed(left):
            self._backlog.put_back(work, first, end)

    def on_refused(self, why: str) -> None:
        """The functions cannot be loaded."""
        self.refused = why

    # -- handing out

    def _hand_out(self, slot: Slot) -> bool:
        taken = self._backlog.take(len(self.pool.slots))
        if taken is None:
            return False
        self._assign(slot, *taken)
        return True

    def _assign(self, slot: Slot, work: Work, first: int, end: int) -> None:
        self._number += 1
        self._handed[self._number] = _Handed(work, slot)
        records = work.records.cut(first, end)
        self.pool.assign(slot, slot_wire.Range(self._number, first, work.meta, records))

    def _repeat(self) -> None:
        """Let a task that lost its slot run alone; until it is over nothing else begins."""
        if self._handed or not (idle := self.pool.idle()):
            return
        repeat = self._repeats.take()
        if repeat is not None:
            self._assign(idle[0], repeat.work, repeat.task, repeat.task + 1)
            self._alone = self._number

    def _take_over(self, slot: Slot, now: float) -> bool:
        """Give an idle slot the tail of the busy slot that has most left."""
        longest = max(self._handed.items(), key=lambda item: _left(item[1].slot), default=None)
        if longest is None:
            return False
        victim = longest[1].slot
        state = victim.region.state()
        if state.number != longest[0] or state.task < victim.first:
            return False
        cut = tail(state.task, victim.end, now - state.started, self._backlog.mean)
        if cut is None:
            return False
        end = victim.end
        victim.trim(cut)
        self._backlog.put_back(longest[1].work, cut, end)
        return self._hand_out(slot)

    def _is_held_up(self, now: float) -> bool:
        """Whether every slot is at a task that takes long, or has to leave room for one."""
        alone = self._handed.get(self._alone or 0)
        if alone is not None:
            return _at_length(alone.slot, now)
        return bool(self._handed) and all(_at_length(slot, now) for slot in self.pool.slots)

    def _take_away(self, handed: _Handed, gone: set[int]) -> None:
        """End a slot that is at a task of `gone`, or cut its range before the next of them."""
        slot = handed.slot
        handed.cancelled |= {i for i in gone if slot.first <= i < slot.end}
        if not handed.cancelled or self._end_cancelled(handed):
            return
        ahead = [i for i in handed.cancelled if i > max(_running(slot), slot.first)]
        if ahead:
            cut, end = min(ahead), slot.end
            slot.trim(cut)
            self._backlog.put_back(handed.work, cut, end)

    def _end_cancelled(self, handed: _Handed) -> bool:
        """End the slot if it is at a task that is cancelled; what else it had is handed out anew.

        Asked at every step: a slot may begin the task behind its range when that is cut.
        """
        slot = handed.slot
        if _running(slot) not in handed.cancelled:
            return False
        if slot.condemned is None:
            self.pool.cancel(slot, _running(slot))
        return True

    def _answer(self, work: Work, blame: Blame) -> None:
        if work.answer(*blame):
            self._touch(work)

    def _touch(self, work: Work) -> None:
        if work.key in self._backlog.works:
            self._touched[work.key] = work

    def _forget(self, work: Work) -> None:
        self._backlog.works.pop(work.key, None)
        self._repeats.forget(work.key)
        for index in [k for k in self._losses if k[0] == work.key]:
            del self._losses[index]


def _running(slot: Slot) -> int:
    """The task that a busy slot is at: the first of its range while it has not begun."""
    state = slot.region.state()
    return state.task if state.number == slot.range and state.task >= 0 else slot.first


def _at_length(slot: Slot, now: float) -> bool:
    """Whether a slot has been at one task for long, or is no use at all."""
    state = slot.region.state()
    at_it = slot.state == "busy" and state.number == slot.range and state.task >= 0
    return slot.state == "stuck" or (at_it and now - state.started > LONG)


def _left(slot: Slot) -> int:
    """How many tasks of its range a busy slot has not begun."""
    return slot.end - max(slot.region.state().task, slot.first) - 1
