"""Doing one thing on many hosts: bounded threads, bounded time, one outcome per host always.

A fleet of a hundred has a sick host every day. What is asked of all must not take as long as the
sickest, and must not forget to mention it: a host whose thread never comes back has an outcome too,
and the others' turns do not wait behind it.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from fsworker.errors import DeadlineExceeded, FleetError

log = logging.getLogger(__name__)
T = TypeVar("T")
WIDTH = 16


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What came of it on one host: a value, or the error; and how long it took."""

    host: str
    value: T | None = None
    error: BaseException | None = None
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether it went well."""
        return self.error is None


def fan_out(
    hosts: Iterable[str],
    fn: Callable[[str], T],
    *,
    width: int = WIDTH,
    deadline: float | None = None,
    each: float | None = None,
) -> list[Outcome[T]]:
    """`fn(host)` for every host, at most `width` at once; the outcomes in the order of `hosts`.

    Returns after `deadline` seconds at the latest. A host that takes longer than `each` seconds is
    given up and its place passed on. The outcome of a host that was given up, or whose turn never
    came, is a DeadlineExceeded that names it; its thread is a daemon and may still end later.
    """
    names = list(hosts)
    board: _Board[T] = _Board(names, fn, min(width, len(names)), each)
    end = None if deadline is None else time.monotonic() + deadline
    with board.changed:
        try:
            board.staff()
            while not board.finished() and (end is None or time.monotonic() < end):
                board.changed.wait(board.next_look(end))
                board.give_up_late()
                board.staff()
        finally:  # also when we are interrupted: no thread takes up another host
            outcomes = board.close(deadline or 0.0)
        return outcomes


class _Threads:
    """Threads that wait a moment for more work: to start one costs as much as a command over a
    connection that is kept."""

    LINGER = 1.0

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._idle: list[queue.SimpleQueue[Callable[[], None]]] = []

    def lend(self, work: Callable[[], None]) -> None:
        """Have it done by a thread. RuntimeError when the system has no more of them."""
        with self._guard:
            waiting = self._idle.pop() if self._idle else None
        if waiting is not None:
            waiting.put(work)
        else:
            threading.Thread(target=self._live, args=(work,), name="fan-out", daemon=True).start()

    def _live(self, work: Callable[[], None]) -> None:
        mine: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        while True:
            work()
            del work  # what it holds must not be kept while we wait
            with self._guard:
                self._idle.append(mine)
            try:
                work = mine.get(timeout=self.LINGER)
            except queue.Empty:
                with self._guard:
                    if mine in self._idle:
                        self._idle.remove(mine)
                        return
                work = mine.get()  # it came just now


_threads = _Threads()


class _Board(Generic[T]):
    """Who is asked, since when, and what came of it. All under `changed`."""

    def __init__(
        self, names: list[str], fn: Callable[[str], T], width: int, each: float | None
    ) -> None:
        self.changed = threading.Condition()
        self._names = names
        self._fn = fn
        self._width = max(1, width)
        self._each = each
        self._next = 0
        self._outcomes: dict[int, Outcome[T]] = {}
        self._since: dict[int, float] = {}
        self._threads = 0
        self._closed = False

    def finished(self) -> bool:
        return len(self._outcomes) == len(self._names)

    def staff(self) -> None:
        """Have as many threads as there are places and hosts left."""
        while self._threads < self._width and self._next + self._idle() < len(self._names):
            try:
                _threads.lend(self._serve)
            except RuntimeError as error:  # the system has no more threads: those we have will do
                if self._threads == 0:
                    raise FleetError(f"no thread can be started to ask hosts: {error}") from error
                log.warning("only %d threads can be started: %s", self._threads, error)
                self._width = self._threads
                return
            self._threads += 1

    def _idle(self) -> int:
        return self._threads - len(self._since)

    def next_look(self, end: float | None) -> float | None:
        """Seconds until something is due, None when only a thread can bring news."""
        due = [] if end is None else [end]
        if self._each is not None and self._since:
            due.append(min(self._since.values()) + self._each)
        return max(0.0, min(due) - time.monotonic()) if due else None

    def give_up_late(self) -> None:
        """Let go of the hosts that take longer than `each`."""
        if self._each is None:
            return
        now = time.monotonic()
        for index, since in list(self._since.items()):
            if now - since >= self._each:
                self._abandon(index, f"no answer within {self._each:g} s")

    def close(self, deadline: float) -> list[Outcome[T]]:
        """One outcome for each host; what comes after this is not looked at."""
        self._closed = True
        for index in list(self._since):
            self._abandon(index, f"no answer within {deadline:g} s")
        for index, host in enumerate(self._names):
            if index not in self._outcomes:
                text = f"host {host}: its turn did not come within {deadline:g} s"
                self._outcomes[index] = Outcome(host, error=DeadlineExceeded(text, host=host))
        return [self._outcomes[index] for index in range(len(self._names))]

    def _abandon(self, index: int, why: str) -> None:
        host, since = self._names[index], self._since.pop(index)
        self._threads -= 1
        error = DeadlineExceeded(f"host {host}: {why}", host=host)
        self._outcomes[index] = Outcome(host, error=error, seconds=time.monotonic() - since)

    def _serve(self) -> None:
        while (index := self._take()) is not None:
            host, begun = self._names[index], time.monotonic()
            try:
                outcome = Outcome(host, self._fn(host), None, time.monotonic() - begun)
            except BaseException as error:  # one outcome per host, whatever it is
                if not isinstance(error, FleetError):
                    log.exception("asking host %s failed unexpectedly", host)
                outcome = Outcome(host, None, error, time.monotonic() - begun)
            if not self._put(index, outcome):
                return

    def _take(self) -> int | None:
        with self.changed:
            if self._closed or self._next >= len(self._names) or self._threads > self._width:
                self._threads -= 1
                return None
            index, self._next = self._next, self._next + 1
            self._since[index] = time.monotonic()
            if self._each is not None:
                self.changed.notify_all()  # there is a new time to look at
            return index

    def _put(self, index: int, outcome: Outcome[T]) -> bool:
        with self.changed:
            if index not in self._since:
                log.info("host %s answered after it was given up", outcome.host)
                return False  # another thread has this one's place
            del self._since[index]
            self._outcomes[index] = outcome
            if self.finished():  # threads take the next host by themselves: nobody else has to know
                self.changed.notify_all()
            return True
