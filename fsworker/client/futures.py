"""A future that costs a third: what a client makes for every task that is submitted.

The one of the standard library owns a lock, a condition and eleven objects that the garbage
collector walks along; with a hundred thousand of them that is most of the time of `submit`. Ours
share one condition, which guards a few assignments at a time. Nobody waits on it, since it would
wake all who wait for any of them: who waits is told by a callback.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, PENDING
from typing import Any


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
