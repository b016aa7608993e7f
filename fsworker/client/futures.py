"""A future that costs a third: what a client makes for every task that is submitted.

The one of the standard library owns a lock, a condition and eleven objects that the garbage
collector walks along; with a hundred thousand of them that is most of the time of `submit`. Ours
share one condition, which guards a few assignments at a time. Nobody waits on it, since it would
wake all who wait for any of them: who waits is told by a callback. So the futures of a batch begin
and are answered in one step.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, PENDING, RUNNING
from typing import Any, TypeVar

F = TypeVar("F", bound="TaskFuture")


class TaskFuture(Future[Any]):
    """A future; `shared` is the condition of all futures of one client in one process."""

    def __init__(self, shared: threading.Condition) -> None:
        # What Future.__init__ sets, which would make a condition. A test compares the two.
        self._condition = shared
        self._state = PENDING
        self._result = None
        self._exception = None
        self._waiters = []
        self._done_callbacks: list[Any] = []

    def result(self, timeout: float | None = None) -> Any:
        """What the call returned, or raise what it ended with. TimeoutError, CancelledError."""
        if self._state == FINISHED and self._exception is None:
            return self._result  # set before the state is, so no lock is needed to read it
        self._settle(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the call ended with; None when it returned. TimeoutError, CancelledError."""
        self._settle(timeout)
        return super().exception(0)

    def _settle(self, timeout: float | None) -> None:
        """Wait until it is done, at most so long."""
        if self.done():
            return
        over = threading.Event()

        def tell(_: object) -> None:
            over.set()

        self.add_done_callback(tell)
        if not over.wait(timeout):
            with self._condition:
                if tell in self._done_callbacks:
                    self._done_callbacks.remove(tell)


def begin(futures: Sequence[F]) -> list[F]:
    """What `set_running_or_notify_cancel` does for each, of one client: those that shall run."""
    running, cancelled = [], []
    with futures[0]._condition:
        for future in futures:
            if future._state == PENDING:
                future._state = RUNNING
                running.append(future)
            else:
                cancelled.append(future)
    for future in cancelled:
        future.set_running_or_notify_cancel()
    return running


def answer(condition: threading.Condition, futures: Iterable[Any], values: Iterable[Any]) -> None:
    """What `set_result` does for each, of one client; None, and what is not running, is left."""
    watched = []
    with condition:
        for future, value in zip(futures, values, strict=True):
            if future is None or future._state != RUNNING:
                continue  # it has its answer, or somebody gave up on it
            future._result = value
            future._state = FINISHED
            if future._waiters or future._done_callbacks:
                watched.append(future)
                for waiter in future._waiters:
                    waiter.add_result(future)
    for future in watched:
        future._invoke_callbacks()
