"""The slots as the worker sees them: start, feed, listen, time out, replace.

`SlotPool` owns the processes and nothing else: which tasks are handed out, and what becomes of
their results, is the business of its listener. It never waits: `step` does what is due, and the
worker's selector wakes it when a slot or the zygote has said something. A process is one slot, or
several that share its event loop (`mates`): then they start and end together.
"""

from __future__ import annotations

import logging
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Protocol

from fsworker.executors import Setting
from fsworker.slots import memory as slot_memory
from fsworker.slots import wire as slot_wire
from fsworker.slots.conditions import memory_of
from fsworker.slots.inspection import Inspection
from fsworker.slots.link import ZygoteLink, end_inherited, is_gone, lives
from fsworker.slots.memory import Entry, Region
from fsworker.slots.nursery import RETRY, Nursery
from fsworker.slots.slot import CANCELLED, GARBLED, Loss, Slot, how_words

log = logging.getLogger("fsworker.slots.pool")

LOOK_EVERY = 0.05
"""Seconds between two looks at what busy slots do."""
STUCK_AFTER = 5.0
"""Seconds after which a slot that was killed and is not gone counts as stuck."""


class Listener(Protocol):
    """Who is told what the slots do."""

    def on_entries(self, number: int, entries: list[Entry]) -> None:
        """Tasks of a range are finished."""

    def on_finished(self, slot: Slot, number: int) -> None:
        """A slot is through with its range."""

    def on_lost(self, loss: Loss) -> None:
        """A slot is gone in the middle of a range."""

    def on_refused(self, why: str) -> None:
        """The functions cannot be loaded."""


class SlotPool:
    """The slots of a worker below one zygote at a time.

    Where its setting says that it `inherits`, this process is the subreaper of its descendants and
    has no other children than `spared` names, so what a dead zygote leaves may be ended.
    """

    def __init__(
        self,
        setting: Setting,
        listener: Listener,
        selector: selectors.BaseSelector,
        spared: Callable[[], set[int]] = set,
    ) -> None:
        self._setting, self._listener, self._selector = setting, listener, selector
        self._spared = spared
        self._places = setting.terms.coroutines
        count = setting.concurrency * self._places
        self._memory_fd, memory = slot_memory.create(count)
        self.slots = [Slot(n, Region(memory, n)) for n in range(count)]
        self._nursery = Nursery(
            self._make_zygote,
            self,
            selector,
            forks=setting.slot_start == "fork",
            serves=", ".join(setting.functions),
        )
        self._inspection = Inspection(memory, self._places, count)
        self._look_due = 0.0

    # -- what the listener asks for

    @property
    def zygote_pid(self) -> int | None:
        """The pid of the zygote, while there is one."""
        return self._nursery.link.pid if self._nursery.link else None

    def count(self, *states: str) -> int:
        """How many slots are in one of these states."""
        return sum(slot.state in states for slot in self.slots)

    def idle(self) -> list[Slot]:
        """The slots that wait for work."""
        return [slot for slot in self.slots if slot.state == "idle" and slot.condemned is None]

    def assign(self, slot: Slot, work: slot_wire.Range) -> None:
        """Give an idle slot a range."""
        limits = (self._setting.terms.memory, memory_of(work.meta))
        slot.memory = min(filter(None, limits), default=None)
        slot.assign(work, self._selector)

    def cancel(self, slot: Slot, index: int | None = None) -> None:
        """End what a slot does; it is nobody's fault. `index`: only this task, if that can be.

        Alone in its process it is killed; where others share it, it is asked first.
        """
        now = time.monotonic()
        if self._places == 1:
            self._condemn(slot, CANCELLED, now)
        elif slot.cancelling is None:
            slot.ask_to_cancel(index, now, self._selector)

    def step(self, now: float) -> None:
        """Do what is due: start processes, enforce timeouts, replace what is lost."""
        self._nursery.step(now)
        if now >= self._look_due:
            self._look_due = now + LOOK_EVERY
            for slot in self.slots:
                self._look(slot, now)
        if self._nursery.loaded:
            for slot in self.slots[:: self._places]:
                if slot.state == "absent" and now >= slot.due:
                    self._start(slot)

    def close(self) -> None:
        """End every process and wait until they are gone."""
        self._nursery.close()
        for slot in self.slots:
            slot.disconnect(self._selector)
            slot.clear()
        self._end_inherited()

    # -- the zygote

    def on_sources(self, sources: Mapping[str, str | None]) -> None:
        """The functions are imported."""
        self._setting.heard(sources)

    def _make_zygote(self) -> ZygoteLink:
        return ZygoteLink(self._setting, self._memory_fd)

    def on_refused(self, why: str) -> None:
        """The functions cannot be loaded."""
        self._listener.on_refused(why)

    def on_message(self, message: dict[str, Any]) -> None:
        """The zygote said something about a process."""
        mates = self._mates(self.slots[message["slot"] * self._places])
        if message["is"] == "started":
            for slot in mates:
                slot.pid = message["pid"]
            doomed = [slot.condemned for slot in mates if slot.condemned is not None]
            if doomed:
                self._nursery.kill(mates[0].pid, mates[0].number)
        elif message["is"] == "failed":
            log.warning("slot %d: %s", message["slot"], message["why"])
            self._lost(mates, "exit", 1)
        elif message["is"] == "ended" and mates[0].pid == message["pid"]:
            self._lost(mates, message["how"], message["code"])

    def on_zygote_lost(self) -> None:
        """It ended, and its slots with it."""
        for first in self.slots[:: self._places]:
            if first.state != "absent" and (first.state != "stuck" or not first.pid):
                self._lost(self._mates(first), "zygote", 0)
        self._end_inherited()

    def _end_inherited(self) -> None:
        if self._setting.inherits:
            end_inherited({slot.pid for slot in self.slots if slot.pid}, self._spared())

    # -- one process

    def _mates(self, slot: Slot) -> list[Slot]:
        """The slots that share the process of this one, itself among them."""
        first = slot.number - slot.number % self._places
        return self.slots[first : first + self._places]

    def _start(self, first: Slot) -> None:
        number = first.number // self._places
        parts = self._setting.slot_env
        self._inspection.starts(first)
        with ExitStack() as stack:
            theirs: list[socket.socket] = [
                stack.enter_context(slot.connect(self._selector, self._serve))
                for slot in self._mates(first)
            ]
            if not self._nursery.start(number, parts[number] if parts else {}, theirs):
                for slot in self._mates(first):
                    slot.disconnect(self._selector)
                    slot.clear()

    def _serve(self, slot: Slot, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            slot.send(self._selector)
        if mask & selectors.EVENT_READ and not self._receive(slot):
            # It is exiting, or user code closed our descriptor: the zygote will tell, or we do.
            slot.closed_at = time.monotonic()
            slot.disconnect(self._selector)
            if slot.garbled is not None and slot.condemned is None:
                log.error("slot %d: its socket was written to: %s", slot.number, slot.garbled)
                self._condemn(slot, GARBLED, slot.closed_at)

    def _receive(self, slot: Slot) -> bool:
        frames, there = slot.receive()
        for frame in frames:
            self._on_frame(slot, frame)
        return there

    def _on_frame(self, slot: Slot, frame: slot_wire.Frame) -> None:
        if frame.kind == slot_wire.READY:
            if frame.data:
                self.on_sources(slot_wire.sources_in(frame.data))
            slot.state, slot.failures, slot.pid = "idle", 0, frame.number
        elif frame.kind == slot_wire.FAILED:
            self._listener.on_refused(frame.data.decode("utf-8", "replace"))
        elif frame.number == slot.range and slot.state == "busy":
            self._listener.on_entries(frame.number, slot_memory.unpack_entries(frame.data))
            if frame.kind == slot_wire.FINISHED:
                slot.state, slot.cancelling = "idle", None
                self._listener.on_finished(slot, frame.number)

    def _look(self, slot: Slot, now: float) -> None:
        """See whether a slot does what it should, and take over what it has finished."""
        if slot.condemned is not None:
            if slot.state == "stuck" and slot.pid and is_gone(slot.pid):
                self._lost(self._mates(slot), "stuck", 0)
            elif slot.state != "stuck" and now > slot.condemned[1] + STUCK_AFTER:
                self._overdue(slot, now)
            return
        state = slot.settled() if slot.state == "busy" else None
        if state is not None and (entries := slot.rescue(state)):
            self._listener.on_entries(slot.range, entries)
        for guilty, reason in self._inspection.judge(slot, state, self._mates(slot), now):
            self._condemn(guilty, reason, now)

    def _condemn(self, slot: Slot, index: int, now: float) -> None:
        """End the process of a slot; `index` says why. Its mates go with it, unblamed."""
        for mate in self._mates(slot):
            if mate is slot or mate.condemned is None:
                mate.condemned = (index if mate is slot else CANCELLED, now)
        self._nursery.kill(slot.pid, slot.number)

    def _overdue(self, slot: Slot, now: float) -> None:
        """Nobody said that a killed slot ended: either it does not, or the zygote is at fault."""
        link = self._nursery.link
        if link is None or (answers := link.answers(now)) is None:
            return
        if link.killed or (answers and lives(slot.pid, link.pid)):
            for mate in self._mates(slot):
                self._give_up(mate)
        else:
            log.error("the zygote (pid %d) does not do its work, ending it", link.pid)
            link.kill()

    def _give_up(self, slot: Slot) -> None:
        log.error("slot %d (pid %d) was killed and does not end", slot.number, slot.pid)
        if slot.state == "busy":
            self._report(slot, "stuck", 0)
        slot.state = "stuck"

    def _lost(self, mates: list[Slot], how: str, code: int) -> None:
        for slot in mates:
            self._receive(slot)
        shared = sum(slot.running() for slot in mates) > 1
        for slot in mates:
            slot.shared = shared
        started = any(slot.state not in ("starting", "absent") for slot in mates)
        for slot in mates:
            if slot.state == "starting" and not started:
                slot.failures += 1
                log.warning("slot %d ended while starting: %s", slot.number, how_words(how, code))
            elif slot.state == "busy":
                self._report(slot, how, code)
            slot.disconnect(self._selector)
            slot.clear()
            slot.due = time.monotonic() + RETRY[min(slot.failures, len(RETRY) - 1)]
        if self._nursery.loaded and not mates[0].failures:
            self._start(mates[0])

    def _report(self, slot: Slot, how: str, code: int) -> None:
        self._listener.on_entries(slot.range, slot.remains())
        loss = slot.loss(how, code)
        why = f", task {loss.blame.task}: {loss.blame.value['short']}" if loss.blame else ""
        words = how_words(how, code)
        log.warning("slot %d (pid %d) ended: %s%s", slot.number, slot.pid, words, why)
        self._listener.on_lost(loss)
