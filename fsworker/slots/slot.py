"""One slot from the worker's side: its process, its socket, its region, and what these say.

Nothing here decides what is handed out or when a process is replaced; that is `slots`. What belongs
together is kept together: how bytes come and go, how a state in shared memory is read so that it
can be believed, and which task is to blame when the process is gone.
"""

from __future__ import annotations

import select
import selectors
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

from fsworker import outcomes
from fsworker.protocol.segment import Records
from fsworker.slots import wire as slot_wire
from fsworker.slots.memory import IDLE, Entry, Region, State

_CHUNK = 1 << 18

CANCELLED, SILENT, GARBLED = IDLE, -2, -3
"""Why a slot is condemned, if not for the timeout of a task: what it did is not wanted any more;
it does not do what it should; its socket carried what no slot sends."""

SEND_PATIENCE = 0.002
"""Seconds to wait for a slot to take its range in, which it is about to: what its worker does next
may take longer, and a range that is there in part is of no use."""

KILLED = (("signal", 9), ("signal", 15))
"""How a process ends that the kernel, a person or a program has killed without giving a reason: by
KILL; or by TERM, which a batch system sends to all processes of a job that it preempts."""


class Blame(NamedTuple):
    """The task that a lost slot was executing: its index, and what to answer for it."""

    task: int
    status: str
    value: dict[str, str]
    elapsed: float


class Loss(NamedTuple):
    """A range whose slot is gone; what has no result in it has to be handed out again.

    `task` is the index of the one that was running, or the first when that is not known; None when
    the range was taken away on purpose. `blame` is None when nobody is to blame for sure. `apart`:
    any task of the range may be to blame, so each has to be tried alone. `doubtful`: the blame may
    be unjust, since somebody else may have ended the process.
    """

    number: int
    first: int
    end: int
    task: int | None
    blame: Blame | None
    apart: bool = False
    doubtful: bool = False


class Slot:
    """One of the worker's places, and the process that fills it now.

    `state`: absent, starting, idle, busy, or stuck (killed, and it does not die). `condemned`: the
    task for which it was killed (or one of the reasons above) and when. `due`: when it must start
    if absent, else since when it has done nothing that shows. `garbled`: what its socket carried
    that no slot sends. `memory`: bytes that it may use at its range, None for any number.
    `verdict`: status and value for the task for which it was killed, if not those of a timeout.
    `shared`: it was lost while others were at tasks in its process. `cancelling`: the task that it
    was asked to end (None: all) and when.
    """

    def __init__(self, number: int, region: Region) -> None:
        self.number = number
        self.region = region
        self.failures = 0
        self.sock: socket.socket | None = None
        self.clear()

    def clear(self) -> None:
        """No process."""
        self.state = "absent"
        self.pid = 0
        self.range = self.first = self.end = 0
        self.condemned: tuple[int, float] | None = None
        self.closed_at: float | None = None
        self.garbled: str | None = None
        self.memory: int | None = None
        self.shared = False
        self.cancelling: tuple[int | None, float] | None = None
        self.verdict: tuple[str, dict[str, str]] | None = None
        self.due = 0.0
        self._received = bytearray()
        self._unsent = memoryview(b"")
        self._looked: State | None = None
        self._rescued = (-1, -1, -1)

    def connect(
        self, selector: selectors.BaseSelector, serve: Callable[[Slot, int], None]
    ) -> socket.socket:
        """A new socket to a process that is about to start; gives the process's end of it."""
        self.clear()
        self.region.reset()
        self.sock, theirs = socket.socketpair()
        self.sock.setblocking(False)
        selector.register(self.sock, selectors.EVENT_READ, lambda mask: serve(self, mask))
        self.state, self.due = "starting", time.monotonic()
        return theirs

    def disconnect(self, selector: selectors.BaseSelector) -> None:
        """Close the socket."""
        if self.sock is not None:
            selector.unregister(self.sock)
            self.sock.close()
            self.sock = None

    def assign(self, work: slot_wire.Range, selector: selectors.BaseSelector) -> None:
        """Send an idle slot a range."""
        self.range, self.first, self.end = work.number, work.first, work.first + len(work.records)
        self.region.set_limit(self.end)
        self.state, self._looked, self._rescued, self.cancelling = "busy", None, (-1, -1, -1), None
        self.due = time.monotonic()
        self._unsent = memoryview(slot_wire.pack_range(work))
        self.send(selector)

    def ask_to_cancel(
        self, index: int | None, now: float, selector: selectors.BaseSelector
    ) -> None:
        """Ask a place to end one task of its range, or all of it."""
        self.cancelling = (index, now)
        asked = slot_wire.pack_range(
            slot_wire.Range(self.range, 0, {"cancel": index}, Records.of(()))
        )
        self._unsent = memoryview(bytes(self._unsent) + asked)
        self.send(selector)

    def running(self) -> bool:
        """Whether it is at a task of its range."""
        state = self.region.state()
        return self.state == "busy" and state.number == self.range and state.task >= self.first

    def trim(self, end: int) -> None:
        """Take the tail of its range away; a task at `end` may begin all the same."""
        self.end = end
        self.region.set_limit(end)

    def send(self, selector: selectors.BaseSelector) -> None:
        """Send what the socket takes within a moment; the selector tells when it takes more."""
        if self.sock is None:
            return
        end = time.monotonic() + SEND_PATIENCE
        while self._unsent:
            try:
                self._unsent = self._unsent[self.sock.send(self._unsent) :]
            except BlockingIOError:
                if not _takes_more(self.sock, end - time.monotonic()):
                    break
            except OSError:
                self._unsent = memoryview(b"")  # it is gone; reading says so too
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        key = selector.get_key(self.sock)
        if key.events != events:
            selector.modify(self.sock, events, key.data)

    def receive(self) -> tuple[list[slot_wire.Frame], bool]:
        """(what the slot has said, whether it may say more). Sets `garbled`, after which none."""
        there = True
        while self.sock is not None:
            try:
                data = self.sock.recv(_CHUNK)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self._received += data
            there = bool(data)
            if not data:
                break
        frames: list[slot_wire.Frame] = []
        number = None if self.state == "starting" else self.range
        try:
            frames.extend(slot_wire.take_frames(self._received, number))
        except slot_wire.Garbled as error:
            self._received.clear()
            self.garbled, there = str(error), False
        return frames, there

    def settled(self) -> State | None:
        """The state of a busy slot that has been at one task since the last call; else None.

        Only what was seen twice is believed, since states are written without a lock; and a task
        that is over within two calls is of no interest here.
        """
        state, last = self.region.state(), self._looked
        if self.cancelling is not None and self.cancelling[0] not in (None, state.task):
            self.cancelling = None  # it is over
        self._looked = state
        if last is None or state[:3] != last[:3] or state.number != self.range or state.task < 0:
            return None
        return state

    def dawdles(self, now: float, patience: float) -> bool:
        """Whether a busy slot has been between tasks for that long."""
        state = self.region.state()
        if state.number == self.range and state.task >= 0:
            self.due = now
        return now > self.due + patience

    def rescue(self, state: State) -> list[Entry]:
        """What it had finished before the task it is at, unless that was taken before."""
        mark = (state.generation, state.written, state.size)
        if not (state.written or state.size) or mark == self._rescued:
            return []
        self._rescued = mark
        entries = self.region.finished(state)
        return entries if self.region.state() == state else []

    def remains(self) -> list[Entry]:
        """What a process that is gone had finished and not sent."""
        state = self.region.state()
        return self.region.finished(state) if state.number == self.range else []

    def loss(self, how: str, code: int) -> Loss:
        """What is lost with the process of a busy slot; `how` it ended as `how_words` takes it."""
        state = self.region.state()
        begun = state.number == self.range and state.task >= self.first
        index: int | None = state.task if begun else self.first
        blame, apart = self._blame(state, how, code), False
        if self.condemned is not None:
            if self.condemned[0] == CANCELLED:
                index = None
            elif self.condemned[0] in (SILENT, GARBLED):
                index, apart = self.first, blame is None
        unsure = self.condemned is None or self.verdict is not None
        killed = self.condemned is None and (how, code) in KILLED
        doubtful = blame is not None and (killed or (unsure and self.shared))
        return Loss(self.range, self.first, self.end, index, blame, apart, doubtful)

    def _blame(self, state: State, how: str, code: int) -> Blame | None:
        if self.condemned is not None and self.condemned[0] == GARBLED:
            return self._blame_garbled(state)
        running = state.number == self.range and self.first <= state.task < self.end
        if not running or (how == "zygote" and self.condemned is None):
            return None
        elapsed = time.monotonic() - state.started
        if self.condemned is None:
            why = f"the slot's process ended with {outcomes.exit_words(how, code)}"
            if (how, code) in KILLED:
                why += ", which the fleet did not send"
                why += " (out of memory?)" if code == 9 else ""
            return Blame(state.task, outcomes.CRASHED, outcomes.cause("Crashed", why), elapsed)
        if self.condemned[0] != state.task:
            return None
        if self.verdict is not None:
            return Blame(state.task, *self.verdict, elapsed)
        why = f"no result after {state.timeout:g} s"
        if how == "stuck":
            why += f"; its process {self.pid} was killed and does not end"
        return Blame(state.task, outcomes.TIMEOUT, outcomes.cause("Timeout", why), elapsed)

    def _blame_garbled(self, state: State) -> Blame | None:
        """The writer is known for sure only if no other task of the range can have been it."""
        began_first = state.number == self.range and state.task == self.first
        if not began_first and self.end - self.first != 1:
            return None
        why = f"it wrote to the socket of its slot, which is not its own ({self.garbled})"
        return Blame(self.first, outcomes.CRASHED, outcomes.cause("Crashed", why), 0.0)


def _takes_more(sock: socket.socket, seconds: float) -> bool:
    """Whether a socket takes bytes again, within so many seconds."""
    poll = select.poll()
    poll.register(sock, select.POLLOUT)
    return bool(poll.poll(max(0.0, 1e3 * seconds)))


def how_words(how: str, code: int) -> str:
    """How a slot ended, for the log: `how` is signal, exit, zygote or stuck."""
    if how == "zygote":
        return "with its zygote"
    return "not at all" if how == "stuck" else outcomes.exit_words(how, code)
