"""What an agent and a peer have in common: a life that is started and stopped once, and waiting."""

from __future__ import annotations

import logging
import os
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from fsworker.agent import place
from fsworker.agent.line import Line
from fsworker.agent.link import Link, News
from fsworker.agent.mail import Mailbox
from fsworker.agent.party import Party, Terms
from fsworker.agent.task import CallStateError
from fsworker.protocol.fsops import Store

log = logging.getLogger(__name__)

T = TypeVar("T")

LONGEST_WAIT = 60.0
"""Seconds that a thread waits in one go, so that an endless timeout is one too."""


class Side(Party):
    """One of the two; `_changed` guards the state of both threads and tells of its changes."""

    def __init__(self, side: str, agent_id: str, root: str, terms: Terms) -> None:
        place.seconds("connection_timeout", terms.limits.connection)
        place.seconds("heartbeat_timeout", terms.limits.heartbeat, optional=True)
        place.seconds("resend_interval", terms.again)
        self.agent_id = place.checked_id(agent_id)
        self.root = root
        self._name = f"{side} {agent_id}"
        mailbox = Mailbox(Store(root), agent_id, side)
        self._terms = terms
        self._changed = threading.Condition()
        self._link = Link(looked=0.0)
        self._pid = 0
        self._stopped = False
        self._line = Line(mailbox, self, terms, self._name)

    @property
    def connected(self) -> bool:
        """Whether the other side was heard of within `connection_timeout`."""
        return self._link.connected and not self._stopped

    def start(self) -> None:
        """Begin. NotRunning where there is no run, StorageError; CallStateError after `stop`."""
        with self._changed:
            if self._stopped:
                raise CallStateError(f"{self._name} cannot be started: it was stopped")
            if self._pid:
                return log.warning("%s is started already", self._name)
            self._line.start()
            self._pid = os.getpid()
        return None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._stopped:
            self._leave()

    def _end(self, wait: float, *, silent: bool = False, alone: bool = False) -> None:
        """End the line (see `Line.end`); a warning when there is nothing to end."""
        with self._changed:
            if not self._pid or self._stopped:
                state = "is stopped already" if self._stopped else "was not started"
                return log.warning("%s %s: there is nothing to stop", self._name, state)
            self._stopped = True
            self._close("it was stopped")
        if self._pid == os.getpid():
            self._line.end(wait, silent=silent, alone=alone)
        return None

    def _check_begun(self, method: str) -> None:
        if not self._pid:
            raise CallStateError(f"{method} was called before start: call start first")
        if self._pid != os.getpid():
            raise CallStateError(f"{method} was called in a fork of the process that started it")

    def _wait(self, ask: Callable[[], T | None], timeout: float | None) -> T | None:
        """The first answer of `ask` that is not None; None after `timeout` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while (answer := ask()) is None:
                left = LONGEST_WAIT if end is None else end - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(min(left, LONGEST_WAIT))
            return answer

    # -- what the line tells

    def looked(self, link: Link, news: News) -> None:
        """There was a look at the other side; what changed is said once."""
        with self._changed:
            self._link = link
            if news.replaced:
                log.warning("%s: the other side was started anew", self._name)
            if news.connected:
                log.info("%s: connected", self._name)
            if news.disconnected:
                seconds = self._terms.limits.connection
                log.error("%s: disconnected: no message for %g s", self._name, seconds)
            if news.dead:
                self._close(f"the other side is dead: no message for {link.silence:.0f} s")
            if news.gone:
                self._said_goodbye()
        if news.dead:
            self._line.end(0.0)

    def closed(self, why: str) -> None:
        """The line has ended by itself."""
        with self._changed:
            self._close(why)

    @abstractmethod
    def _leave(self) -> None:
        """The end of a `with`."""

    @abstractmethod
    def _close(self, why: str) -> None:
        """There is no more to come. Called with the state guarded, as the next."""

    @abstractmethod
    def _said_goodbye(self) -> None:
        """The other side has ended for good."""
