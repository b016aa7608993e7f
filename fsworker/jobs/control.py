"""What a job's runner hears while it works: its worker, its claim, and the reports of its process.

The worker says `cancel` or `drain` on a pipe, and its end says that nobody would take the result.
The claim is looked at before each episode and now and then: who was given up while frozen learns it
there, and ends. Everything is noticed between two waits, so nothing interrupts a step half-way.
"""

from __future__ import annotations

import logging
import os
import selectors
import time
from collections.abc import Callable
from typing import Literal

from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Owner

log = logging.getLogger("fsworker.jobs.control")

Told = Literal["cancel", "drain", "gone"]
_RANK: dict[Told, int] = {"drain": 0, "cancel": 1, "gone": 2}
CLAIM_EVERY = 30.0


class Interrupted(Exception):
    """A job that waits or works was told to end."""

    def __init__(self, told: Told) -> None:
        super().__init__(told)
        self.told = told


class Claim:
    """The token of this attempt among its owner's claims."""

    def __init__(self, store: Store, owner: Owner, name: str) -> None:
        self._store, self._owner, self._name = store, owner, name

    def held(self) -> bool:
        """Whether it is there; an absence is believed when two looks show it."""
        for _ in range(2):
            try:
                if self._name in self._store.scan(self._owner.folder):
                    return True
            except FileNotFoundError:
                continue
            except OSError as error:
                log.warning("cannot look at the own claim: %s", error)
                return True  # nothing is proven
        return False


class Control:
    """Waiting, with an ear on everything that matters meanwhile."""

    def __init__(self, fd: int, claim: Claim, rest: bytes = b"") -> None:
        self.told: Told | None = None
        self._fd, self._claim, self._rest = fd, claim, b""
        self._selector = selectors.DefaultSelector()
        os.set_blocking(fd, False)
        self._selector.register(fd, selectors.EVENT_READ, self._hear)
        self._claim_due = time.monotonic() + CLAIM_EVERY
        self._tick: Callable[[], None] = lambda: None
        self._feed(rest)

    def attach(self, fd: int, heard: Callable[[], None]) -> None:
        """Call `heard` when `fd` is readable."""
        self._selector.register(fd, selectors.EVENT_READ, heard)

    def detach(self, fd: int) -> None:
        """Listen to `fd` no longer."""
        self._selector.unregister(fd)

    def each_time(self, tick: Callable[[], None]) -> None:
        """Call `tick` after every wait."""
        self._tick = tick

    def listen(self, seconds: float) -> None:
        """Wait until something is heard, `seconds` at most."""
        for key, _ in self._selector.select(max(0.0, seconds)):
            key.data()
        self._tick()
        if time.monotonic() >= self._claim_due:
            self.look()

    def look(self) -> None:
        """Look at the claim now."""
        self._claim_due = time.monotonic() + CLAIM_EVERY
        if not self._claim.held():
            log.warning("the claim is gone: this attempt does not count any more")
            self._take("gone")

    def drain(self) -> None:
        """As if the worker had said `drain`."""
        self._take("drain")

    def check(self) -> None:
        """Raise Interrupted when this job was told to end."""
        if self.told is not None:
            raise Interrupted(self.told)

    def rest(self, seconds: float) -> None:
        """Wait `seconds`. Raises Interrupted."""
        end = time.monotonic() + seconds
        self.listen(0.0)
        self.check()
        while (left := end - time.monotonic()) > 0:
            self.listen(min(left, 2.0))
            self.check()

    def _hear(self) -> None:
        try:
            data = os.read(self._fd, 4096)
        except BlockingIOError:
            return
        if not data:
            self._selector.unregister(self._fd)
            self._take("gone")
            return
        self._feed(data)

    def _feed(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line == b"cancel":
                self._take("cancel")
            elif line == b"drain":
                self._take("drain")

    def _take(self, told: Told) -> None:
        if self.told is None or _RANK[told] > _RANK[self.told]:
            self.told = told
