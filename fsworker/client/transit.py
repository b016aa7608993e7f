"""What a client is owed: the tasks that are not answered yet, and the batches on their way.

The one place where the threads of a client meet. Its lock is held for bookkeeping only, never while
somebody's disk, callback or patience is involved.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from fsworker.client.receivers import Receiver


class Transit:
    """Counts tasks from submission to answer; `limit` is how many may be unanswered."""

    def __init__(self, limit: int) -> None:
        self.on_their_way = 0
        """Tasks that were sent and are not answered."""
        self.needy: Counter[str] = Counter()
        """Those of them that need something, by their needs as lanes name them."""
        self._needs: dict[str, str] = {}
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

    def away(self, needs: str) -> int:
        """How many tasks are on their way that need this; without needs: that need nothing."""
        with self._lock:
            return self.needy[needs] if needs else self.on_their_way - self.needy.total()

    def register(self, batch: str, receiver: Receiver, needs: str = "") -> None:
        """A batch is about to be sent."""
        self._pending[batch] = receiver
        with self._lock:
            self.on_their_way += receiver.count
            if needs:
                self._needs[batch] = needs
                self.needy[needs] += receiver.count

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
            if self._needs and (needs := self._needs.pop(batch, "")):
                self.needy[needs] -= receiver.count
                if not self.needy[needs]:
                    del self.needy[needs]
        answer(receiver)
        self.answered(receiver.count)

    def fail(self, error: BaseException, meant: Callable[[str], bool]) -> None:
        """Answer every batch with `error` whose needs (as lanes name them) are `meant`."""
        for batch in list(self._pending):
            if not meant(self._needs.get(batch, "")):
                continue
            self.finish(batch, lambda receiver: receiver.fail(error))
