"""What a client is owed: the tasks that are not answered yet, and the batches on their way.

The one place where the threads of a client meet. Its lock is held for bookkeeping only, never while
somebody's disk, callback or patience is involved.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from fsworker.client.receivers import Receiver


class Transit:
    """Counts tasks from submission to answer; `limit` is how many may be unanswered."""

    def __init__(self, limit: int) -> None:
        self.on_their_way = 0
        """Tasks that were sent and are not answered."""
        self._limit = limit
        self._pending: dict[str, Receiver] = {}
        self._unanswered = 0
        self._lock = threading.Lock()  # entered by itself, at a third of its condition's cost
        self._room = threading.Condition(self._lock)

    def __contains__(self, batch: object) -> bool:
        return batch in self._pending

    def __bool__(self) -> bool:
        return bool(self._pending)

    def admit_one(self) -> bool:
        """Count a task in unless there are too many."""
        with self._lock:
            free = self._unanswered < self._limit
            self._unanswered += free
        return free

    def admit(self, count: int, over: Callable[[], bool] | None = None) -> None:
        """Count tasks in. With `over`: wait while there are too many, until `over()` holds."""
        with self._lock:
            if over is not None and self._unanswered >= self._limit:
                self._room.wait_for(lambda: self._unanswered < self._limit or over())
            self._unanswered += count

    def answered(self, count: int) -> None:
        """Count tasks out."""
        with self._room:
            self._unanswered -= count
            self._room.notify_all()

    def wake(self) -> None:
        """Let those who wait for room ask whether it is over."""
        with self._room:
            self._room.notify_all()

    def register(self, batch: str, receiver: Receiver) -> None:
        """A batch is about to be sent."""
        self._pending[batch] = receiver
        with self._lock:
            self.on_their_way += receiver.count

    def receiver(self, batch: str) -> Receiver | None:
        """Who waits for a batch."""
        return self._pending.get(batch)

    def batches(self) -> list[tuple[str, Receiver]]:
        """Every batch that is on its way, and who waits for it."""
        return list(self._pending.items())

    def finish(self, batch: str, answer: Callable[[Receiver], None]) -> None:
        """Answer a batch, unless somebody did, and count its tasks out."""
        receiver = self._pending.pop(batch, None)
        if receiver is None:
            return
        with self._lock:
            self.on_their_way -= receiver.count
        answer(receiver)
        self.answered(receiver.count)

    def fail_all(self, error: BaseException) -> None:
        """Answer every batch with `error`."""
        for batch in list(self._pending):
            self.finish(batch, lambda receiver: receiver.fail(error))
