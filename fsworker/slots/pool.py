"""The slots as the worker sees them: start, feed, listen, time out, replace.

`SlotPool` owns the processes and nothing else: which tasks are handed out, and what becomes of
their results, is the business of its listener. It never waits: `step` does what is due, and the
worker's selector wakes it when a slot or the zygote has said something.
"""

from __future__ import annotations

import logging
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from fsworker import outcomes
from fsworker.slots import memory as slot_memory
from fsworker.slots import wire as slot_wire
from fsworker.slots.link import ZygoteLink, end_inherited, is_gone, lives
from fsworker.slots.memory import Entry, Region
from fsworker.slots.slot import CANCELLED, GARBLED, SILENT, Loss, Slot, how_words

log = logging.getLogger("fsworker.slots.pool")

LOOK_EVERY = 0.05
"""Seconds between two looks at what busy slots do."""
STUCK_AFTER = 5.0
"""Seconds after which a slot that was killed and is not gone counts as stuck."""
SILENT_EXIT = 0.5
"""Seconds that a slot may take to end after it closed its socket."""
START_PATIENCE = 60.0
"""Seconds in which a slot must be ready; importing the functions anew may take long."""
BEGIN_PATIENCE = 30.0
"""Seconds in which a slot must begin what it was given; somebody may have stopped it."""
_RETRY = (0.0, 0.1, 0.5, 2.0, 5.0)
_ZYGOTE_TRIES = 5


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
    """`count` slots below one zygote at a time.

    `inherits`: this process is the subreaper of its descendants and has no other children than
    `spared` names, so what a dead zygote leaves may be ended.
    """

    def __init__(
        self,
        count: int,
        names: Sequence[str],
        listener: Listener,
        selector: selectors.BaseSelector,
        *,
        start: str = "fork",
        env: Mapping[str, str] | None = None,
        inherits: bool = False,
        spared: Callable[[], set[int]] = set,
        allow: Sequence[str] = (),
        slot_env: Sequence[Mapping[str, str]] = (),
    ) -> None:
        self._slot_env = slot_env
        self._names, self._listener, self._selector = names, listener, selector
        self._allow = allow
        self._start, self._env = start, dict(env or {})
        self._inherits, self._spared = inherits, spared
        self._memory_fd, memory = slot_memory.create(count)
        self.slots = [Slot(n, Region(memory, n)) for n in range(count)]
        self._link: ZygoteLink | None = None
        self._loaded = False
        self._zygote_failures = 0
        self._zygote_due = 0.0
        self._look_due = 0.0

    # -- what the listener asks for

    @property
    def zygote_pid(self) -> int | None:
        """The pid of the zygote, while there is one."""
        return self._link.pid if self._link else None

    def count(self, *states: str) -> int:
        """How many slots are in one of these states."""
        return sum(slot.state in states for slot in self.slots)

    def idle(self) -> list[Slot]:
        """The slots that wait for work."""
        return [slot for slot in self.slots if slot.state == "idle" and slot.condemned is None]

    def assign(self, slot: Slot, work: slot_wire.Range) -> None:
        """Give an idle slot a range."""
        slot.assign(work, self._selector)

    def cancel(self, slot: Slot) -> None:
        """End a slot's process; what it was doing is nobody's fault."""
        self._condemn(slot, CANCELLED, time.monotonic())

    def step(self, now: float) -> None:
        """Do what is due: start processes, enforce timeouts, replace what is lost."""
        if self._link is None and now >= self._zygote_due:
            self._start_zygote()
        if now >= self._look_due:
            self._look_due = now + LOOK_EVERY
            for slot in self.slots:
                self._look(slot, now)
        if self._loaded:
            for slot in self.slots:
                if slot.state == "absent" and now >= slot.due:
                    self._start_slot(slot)

    def close(self) -> None:
        """End every process and wait until they are gone."""
        if self._link is not None:
            self._selector.unregister(self._link)
            self._link.close()
            self._link = None
        for slot in self.slots:
            slot.disconnect(self._selector)
            slot.clear()
        self._end_inherited()

    # -- the zygote

    def _start_zygote(self) -> None:
        self._loaded = False
        self._link = ZygoteLink(self._names, self._start, self._memory_fd, self._env, self._allow)
        self._selector.register(self._link, selectors.EVENT_READ, self._hear)

    def _hear(self, _: int) -> None:
        link = self._link
        if link is None:
            return
        messages, there = link.receive()
        for message in messages:
            self._on_message(message)
        if not there:
            self._zygote_lost(link)

    def _on_message(self, message: dict[str, Any]) -> None:
        what = message["is"]
        if what == "loaded":
            self._loaded = True
            if message["threads"] > 1 and self._start == "fork":
                log.warning(
                    "importing the functions started %d threads, which no forked slot has; if "
                    "tasks hang, start the run with --slot-start spawn",
                    message["threads"] - 1,
                )
        elif what == "refused":
            self._listener.on_refused(message["why"])
        else:
            slot = self.slots[message["slot"]]
            if what == "started":
                slot.pid = message["pid"]
                if slot.condemned is not None:
                    self._condemn(slot, *slot.condemned)
            elif what == "failed":
                log.warning("slot %d: %s", slot.number, message["why"])
                self._lost(slot, "exit", 1)
            elif what == "ended" and slot.pid == message["pid"]:
                self._lost(slot, message["how"], message["code"])

    def _zygote_lost(self, link: ZygoteLink) -> None:
        self._selector.unregister(link)
        how = outcomes.exit_words(*link.ended_how())
        was_loaded, self._loaded, self._link = self._loaded, False, None
        log.warning("the zygote (pid %d) ended: %s", link.pid, how)
        for slot in self.slots:
            if slot.state != "absent" and (slot.state != "stuck" or not slot.pid):
                self._lost(slot, "zygote", 0)
        self._end_inherited()
        link.close()
        self._zygote_failures = 0 if was_loaded else self._zygote_failures + 1
        self._zygote_due = time.monotonic() + _RETRY[min(self._zygote_failures, len(_RETRY) - 1)]
        if self._zygote_failures >= _ZYGOTE_TRIES:
            self._listener.on_refused(f"importing {', '.join(self._names)} ended in {how}")

    def _end_inherited(self) -> None:
        if self._inherits:
            end_inherited({slot.pid for slot in self.slots if slot.pid}, self._spared())

    # -- one slot

    def _start_slot(self, slot: Slot) -> None:
        with slot.connect(self._selector, self._serve) as theirs:
            env = self._slot_env[slot.number] if self._slot_env else {}
            if self._link is None or not self._link.order_start(slot.number, env, theirs):
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
            slot.state, slot.failures, slot.pid = "idle", 0, frame.number
        elif frame.kind == slot_wire.FAILED:
            self._listener.on_refused(frame.data.decode("utf-8", "replace"))
        elif frame.number == slot.range and slot.state == "busy":
            self._listener.on_entries(frame.number, slot_memory.unpack_entries(frame.data))
            if frame.kind == slot_wire.FINISHED:
                slot.state = "idle"
                self._listener.on_finished(slot, frame.number)

    def _look(self, slot: Slot, now: float) -> None:
        """See whether a slot does what it should, and take over what it has finished."""
        silent = slot.closed_at is not None and now > slot.closed_at + SILENT_EXIT
        late = slot.state == "starting" and now > slot.due + START_PATIENCE
        late = late or (slot.state == "busy" and slot.dawdles(now, BEGIN_PATIENCE))
        if slot.condemned is not None:
            if slot.state == "stuck" and slot.pid and is_gone(slot.pid):
                self._lost(slot, "stuck", 0)
            elif slot.state != "stuck" and now > slot.condemned[1] + STUCK_AFTER:
                self._overdue(slot, now)
        elif silent or late:
            self._condemn(slot, SILENT, now)
        elif slot.state == "busy" and (state := slot.settled()) is not None:
            entries = slot.rescue(state)
            if entries:
                self._listener.on_entries(slot.range, entries)
            if state.timeout and now - state.started > state.timeout:
                self._condemn(slot, state.task, now)

    def _condemn(self, slot: Slot, index: int, now: float) -> None:
        slot.condemned = (index, now)
        if self._link is None:
            return
        if not slot.pid or not self._link.order_kill(slot.pid):  # no pid: it never started one
            log.warning("slot %d: the zygote does not take orders, ending it", slot.number)
            self._link.kill()

    def _overdue(self, slot: Slot, now: float) -> None:
        """Nobody said that a killed slot ended: either it does not, or the zygote is at fault."""
        link = self._link
        if link is None or (answers := link.answers(now)) is None:
            return
        if link.killed or (answers and lives(slot.pid, link.pid)):
            self._give_up(slot)
        else:
            log.error("the zygote (pid %d) does not do its work, ending it", link.pid)
            link.kill()

    def _give_up(self, slot: Slot) -> None:
        log.error("slot %d (pid %d) was killed and does not end", slot.number, slot.pid)
        if slot.state == "busy":
            self._report(slot, "stuck", 0)
        slot.state = "stuck"

    def _lost(self, slot: Slot, how: str, code: int) -> None:
        self._receive(slot)
        if slot.state == "starting":
            slot.failures += 1
            log.warning("slot %d ended while starting: %s", slot.number, how_words(how, code))
        elif slot.state == "busy":
            self._report(slot, how, code)
        slot.disconnect(self._selector)
        slot.clear()
        if self._loaded and not slot.failures:
            self._start_slot(slot)
        else:
            slot.due = time.monotonic() + _RETRY[min(slot.failures, len(_RETRY) - 1)]

    def _report(self, slot: Slot, how: str, code: int) -> None:
        self._listener.on_entries(slot.range, slot.remains())
        loss = slot.loss(how, code)
        why = f", task {loss.blame.task}: {loss.blame.value['short']}" if loss.blame else ""
        words = how_words(how, code)
        log.warning("slot %d (pid %d) ended: %s%s", slot.number, slot.pid, words, why)
        self._listener.on_lost(loss)
