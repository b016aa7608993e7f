"""The loop of one side: looks into the mailbox, hands over what came, writes what is due, beats.

One thread does all I/O of a side, so that no call of the application hangs when the mount does. It
ends when its side is over, and never by an error: trouble with the disk is told once and waited
out. What a message means is the business of the party above; what is in the folder, of `mail`.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable

from fsworker.agent import link, messages, parcels
from fsworker.agent.link import Link
from fsworker.agent.mail import Mailbox, Sight
from fsworker.agent.messages import Invalid, Verdict
from fsworker.agent.outgoing import Outgoing
from fsworker.agent.parcels import Do, Parcel
from fsworker.agent.party import Party, Terms
from fsworker.protocol.layout import agents
from fsworker.protocol.layout.agents import Letter
from fsworker.protocol.segment import DamagedFile, Segment, WrongVersion

log = logging.getLogger(__name__)

BEAT_EVERY = 1.0
"""Seconds between two beats, or less where the limits are short."""


SURELY = 1.0
"""Seconds without our own file in the mailbox until we believe that it was taken away."""

NO_MESSAGE = (errno.EISDIR, errno.EFBIG)
"""What is said at reading something that is named like a message and cannot be one."""


def pause_after(quiet: float) -> float:
    """Seconds until the next look when nothing has happened for `quiet` seconds: 20 looks a second
    at the most, one a second after a minute."""
    longest = 0.05 if quiet < 10 else 0.25 if quiet < 60 else 1.0
    return min(max(quiet / 4, 0.001), longest)


class Line:
    """One life of one side. `start` raises NotRunning and StorageError."""

    def __init__(self, mailbox: Mailbox, party: Party, terms: Terms, name: str) -> None:
        self._mailbox, self._party, self._terms, self._name = mailbox, party, terms, name
        self.outgoing = Outgoing()
        self._wake = threading.Event()
        self._end_at: float | None = None
        self._silent = self._alone = False
        self._link = Link(looked=0.0)
        self._active = self._beaten = 0.0
        self._said_mood = agents.NEW
        self._missing, self._shown = 0, 0.0
        self._trouble = ""
        self._thread = threading.Thread(target=self._run, name=f"{name} line", daemon=True)

    def start(self) -> None:
        """Take the place in the mailbox, and begin."""
        self._mailbox.enter()
        now = time.monotonic()
        self._link = Link(looked=now)
        self._active = self._beaten = self._shown = now
        self._thread.start()

    def send(self, parcel: Parcel) -> None:
        """Bring a message to the other side, however often it takes."""
        self.outgoing.add(parcel)
        self.wake()

    def wake(self) -> None:
        """There is something to do."""
        self._wake.set()

    def end(self, wait: float, *, silent: bool = False, alone: bool = False) -> None:
        """Say goodbye and end; `wait` seconds at the most for the other side to notice. `silent`:
        say nothing, for somebody will go on in this place. `alone`: the other side is no more."""
        self._silent, self._alone = silent, alone
        self._end_at = time.monotonic() + wait
        self.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(wait + 5.0)

    def tidy(self) -> None:
        """After the end, and that of the other side: leave nothing."""
        if not self._thread.is_alive():
            self._clear()

    # -- the thread

    def _run(self) -> None:
        try:
            while True:
                over = self._try_round()
                if over:
                    return
                self._wake.wait(self._pause())
                self._wake.clear()
        except Exception as error:
            log.exception("%s: its line broke", self._name)
            self._party.closed(f"it broke: {type(error).__name__}: {error}")

    def _pause(self) -> float:
        pause = min(pause_after(time.monotonic() - self._active), self._terms.shortest / 8)
        return min(pause, self._terms.again / 4) if self.outgoing else pause

    def _try_round(self) -> bool:
        try:
            over = self._round()
        except OSError as error:
            self._tell_trouble(f"{type(error).__name__}: {error}")
            self._look_at(None)
            over = self._end_at is not None and time.monotonic() >= self._end_at
            self._wake.wait(0.2)
        else:
            self._tell_trouble("")
        return over

    def _tell_trouble(self, trouble: str) -> None:
        if trouble and not self._trouble:
            log.warning("%s: the mailbox cannot be used, trying on: %s", self._name, trouble)
        elif self._trouble and not trouble:
            log.info("%s: the mailbox can be used again", self._name)
        self._trouble = trouble

    def _round(self) -> bool:
        """One look and what follows from it; whether the line has ended."""
        sight = self._mailbox.look()
        if self._replaced(sight):
            return True
        self._look_at(sight)
        if self._ended(sight):
            return True
        self._beat(sight)
        # What cannot be read or written must not keep the rest from being so.
        errors = [self._try(self._take, letter) for letter in sight.incoming]
        errors += [self._try(self._forward, p, sight) for p in self.outgoing.all()]
        for error in filter(None, errors):
            raise error
        return False

    @staticmethod
    def _try(step: Callable[..., None], *args: object) -> OSError | None:
        try:
            step(*args)
        except OSError as error:
            return error
        return None

    def _replaced(self, sight: Sight) -> bool:
        if sight.own is not None and sight.own.life > self._mailbox.life:
            self._party.closed(f"another life of the {sight.own.life.side} has taken its place")
            return True
        now = time.monotonic()
        self._missing = 0 if sight.mine else self._missing + 1
        self._shown = now if sight.mine else self._shown
        # A folder that changes while it is listed may hide a name for a moment.
        gone = self._missing >= 2 and (self._end_at is not None or now - self._shown > SURELY)
        if gone and self._end_at is None:
            self._party.closed("its place in the mailbox was cleared")
        return gone

    def _look_at(self, sight: Sight | None) -> None:
        seen = sight.other if sight is not None else None
        self._link, news = link.look(self._link, seen, time.monotonic(), self._terms.limits)
        if news.connected:
            self._active = time.monotonic()
        self._party.looked(self._link, news)
        if seen is not None and seen.mood == agents.BYE and self._end_at is None:
            self._mailbox.wave_off(seen)

    def _beat(self, sight: Sight) -> None:
        mood, now = self._party.mood(), time.monotonic()
        every = min(BEAT_EVERY, self._terms.shortest / 4)
        if mood != self._said_mood or now - self._beaten >= every:
            self._mailbox.beat(sight, mood)
            self._said_mood, self._beaten = mood, now

    def _ended(self, sight: Sight) -> bool:
        if self._end_at is None:
            return False
        if self._silent:
            return True
        there = sight.other is not None and not self._link.gone
        if self._alone or not there:
            self._clear()
            return True
        if self._said_mood != agents.BYE:
            self._mailbox.beat(sight, agents.BYE)
            self._said_mood = agents.BYE
        return time.monotonic() >= self._end_at

    def _clear(self) -> None:
        self._mailbox.clear(self._link.beat.life if self._link.beat else None)

    # -- messages

    def _take(self, letter: Letter) -> None:
        known = self._link.beat
        if letter.kind in (agents.TASK, agents.ABORT) and known and letter.life < known.life:
            return self._mailbox.done(letter)  # whoever wrote it has a successor
        if letter.kind != agents.REPLY and not self._party.wants(letter.kind):
            return None
        self._active = time.monotonic()
        then = None
        try:
            message = self._read(letter)
            if message is None:
                return None
            if letter.kind == agents.REPLY:
                self._hear_reply(letter, messages.as_verdict(message))
            else:
                then = self._party.heard(letter, message)
                self._reply(letter, taken=True)
        except (Invalid, WrongVersion) as error:
            why = str(error) or "it is not valid"
            log.warning("%s: %s is refused: %s", self._name, letter.name, why)
            if letter.kind != agents.REPLY:
                self._reply(letter, taken=False, why=why)
        try:
            return self._mailbox.done(letter)
        finally:
            if then is not None:
                then()

    def _reply(self, letter: Letter, *, taken: bool, why: str = "") -> None:
        verdict = Verdict(letter.life.incarnation, letter.number, taken, why)
        self._mailbox.write(agents.REPLY, messages.reply_bytes(verdict), durable=False)

    def _read(self, letter: Letter) -> Segment | None:
        """A message; None when it was taken back or is damaged, and then it is set aside."""
        try:
            try:
                return messages.read(self._mailbox.read(letter), letter.name)
            except DamagedFile:
                return messages.read(self._mailbox.read(letter), letter.name)
        except FileNotFoundError:
            return None
        except DamagedFile as error:
            why = str(error)
        except OSError as error:
            if error.errno not in NO_MESSAGE:
                raise
            why = f"{letter.name} is no message: {error.strerror}"
        log.error("%s: a message is set aside: %s", self._name, why)
        self._mailbox.set_aside(letter, why)
        return None

    def _hear_reply(self, letter: Letter, verdict: Verdict) -> None:
        if verdict.to == self._mailbox.life.incarnation:
            found = self.outgoing.answered(verdict.number)
            if found is not None:
                self._party.answered(found, letter.life, verdict.taken, verdict.why)

    def _forward(self, parcel: Parcel, sight: Sight) -> None:
        if parcel.cancelled:
            return self._drop(parcel)
        now, terms = time.monotonic(), self._terms
        do = parcels.due(
            parcel,
            bool(sight.lying.intersection(parcel.numbers[-1:])),
            now,
            again=terms.again,
            patience=terms.patience,
            heard=self._link.connected,
        )
        if do is Do.WAIT:
            return None
        if do is Do.RENEW:
            self._mailbox.withdraw(parcel.kind, parcel.numbers[-1])
        parcels.noted(parcel, self._mailbox.write(parcel.kind, parcel.data), now)
        self._active = now
        return self._party.posted(parcel)

    def _drop(self, parcel: Parcel) -> None:
        if parcel.numbers:
            self._mailbox.withdraw(parcel.kind, parcel.numbers[-1])
        self.outgoing.forget(parcel)
