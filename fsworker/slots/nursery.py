"""Where slots come from: one zygote at a time, started, heard, and replaced when it is gone.

The pool decides which slots there must be; this knows what became of the process that makes them.
"""

from __future__ import annotations

import logging
import selectors
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from fsworker import outcomes
from fsworker.slots.link import ZygoteLink

log = logging.getLogger("fsworker.slots.nursery")

RETRY = (0.0, 0.1, 0.5, 2.0, 5.0)
"""Seconds until the next try to start what has not started."""
_TRIES = 5


class Parent(Protocol):
    """Who wants slots."""

    def on_message(self, message: dict[str, Any]) -> None:
        """The zygote said something about a slot."""

    def on_sources(self, sources: Mapping[str, str | None]) -> None:
        """The functions are imported; these are the digests of their sources."""

    def on_zygote_lost(self) -> None:
        """It ended, and its slots with it."""

    def on_refused(self, why: str) -> None:
        """The functions cannot be loaded."""


class Nursery:
    """The zygote. `make` starts one; `serves` names its functions."""

    def __init__(
        self,
        make: Callable[[], ZygoteLink],
        parent: Parent,
        selector: selectors.BaseSelector,
        *,
        forks: bool,
        serves: str,
    ) -> None:
        self._make, self._parent, self._selector = make, parent, selector
        self._forks, self._serves = forks, serves
        self.link: ZygoteLink | None = None
        self.loaded = False
        """Whether it can make slots now."""
        self._failures = 0
        self._due = 0.0

    def step(self, now: float) -> None:
        """Start one when there is none and it is time."""
        if self.link is None and now >= self._due:
            self.loaded = False
            self.link = self._make()
            self._selector.register(self.link, selectors.EVENT_READ, self._hear)

    def start(self, number: int, env: Mapping[str, str], socks: Sequence[socket.socket]) -> bool:
        """Order a process with a place for each of `socks`; False when that cannot be now."""
        return self.link is not None and self.link.order_start(number, env, socks)

    def kill(self, pid: int, number: int) -> None:
        """Order the end of a slot; who takes no orders is ended itself, and its slots with it."""
        if self.link is not None and not (pid and self.link.order_kill(pid)):
            log.warning("slot %d: the zygote does not take orders, ending it", number)
            self.link.kill()

    def close(self) -> None:
        """End it and every slot of it."""
        if self.link is not None:
            self._selector.unregister(self.link)
            self.link.close()
            self.link = None

    def _hear(self, _: int) -> None:
        link = self.link
        if link is None:
            return
        messages, there = link.receive()
        for message in messages:
            self._on_message(message)
        if not there:
            self._lost(link)

    def _on_message(self, message: dict[str, Any]) -> None:
        if message["is"] == "loaded":
            self.loaded = True
            if message["sources"] is not None:
                self._parent.on_sources(message["sources"])
            if message["threads"] > 1 and self._forks:
                log.warning(
                    "importing the functions started %d threads, which no forked slot has; if "
                    "tasks hang, start the run with --slot-start spawn",
                    message["threads"] - 1,
                )
        elif message["is"] == "refused":
            self._parent.on_refused(message["why"])
        else:
            self._parent.on_message(message)

    def _lost(self, link: ZygoteLink) -> None:
        self._selector.unregister(link)
        how = outcomes.exit_words(*link.ended_how())
        was_loaded, self.loaded, self.link = self.loaded, False, None
        log.warning("the zygote (pid %d) ended: %s", link.pid, how)
        self._parent.on_zygote_lost()
        link.close()
        self._failures = 0 if was_loaded else self._failures + 1
        self._due = time.monotonic() + RETRY[min(self._failures, len(RETRY) - 1)]
        if self._failures >= _TRIES:
            self._parent.on_refused(f"importing {self._serves} ended in {how}")
