"""Tasks with ids of their callers: sent once, found again by whoever asks for the same id.

An id that is under way, by this client or an earlier one of its stream, is not sent: its batch is
adopted, and answers those that are asked for. The files of a batch stay until each of its ids was
asked for, so that an answer nobody wanted yet outlives this process too.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection
from concurrent.futures import Future, InvalidStateError
from typing import Any

from fsworker import outcomes
from fsworker.client.delivery import Want
from fsworker.client.idbook import IdBook, TaskId
from fsworker.client.transit import Transit
from fsworker.protocol.fsops import storage_error
from fsworker.remote import AlreadyDelivered, TaskError, lost, task_error


class Adopted:
    """Takes the results of a batch that somebody sent before; `asked`: indexes asked for."""

    def __init__(self, ids: list[TaskId], asked: set[int]) -> None:
        self.count = len(ids)
        self.asked = asked
        self.final = False
        self._futures: dict[int, Future[Any]] = {}
        self._rows: dict[int, tuple[str, Any]] = {}
        self._error: BaseException | None = None
        self._lock = threading.RLock()

    def want(self, index: int, future: Future[Any]) -> None:
        """Answer `future` with the result of a task, now or when it is there."""
        with self._lock:
            self.asked.add(index)
            self._futures[index] = future
            self._answer()

    def take(self, rows: list[Any]) -> None:
        """Keep results, and answer those that were asked for."""
        with self._lock:
            for row in outcomes.singles(rows):
                if isinstance(row, list) and len(row) > 3 and isinstance(row[0], int):
                    self._rows.setdefault(row[0], (row[2], row[3]))
            self._answer()

    def end(self) -> None:
        """All results have come: what has none will not get one."""
        with self._lock:
            self.final = True
            self._answer()

    def places(self, wanted: Collection[Future[Any]]) -> dict[Future[Any], int]:
        """The indexes of those of the wanted futures that wait here."""
        with self._lock:
            return {f: i for i, f in self._futures.items() if f in wanted}

    def fail(self, error: BaseException) -> None:
        """Answer everything that waits with `error`; other results may come all the same."""
        with self._lock:
            self._error = error
            for future in self._futures.values():
                _settle(future, error=error)
            self._futures.clear()

    def _answer(self) -> None:
        for index in list(self._futures):
            if index in self._rows:
                status, value = self._rows[index]
                error: BaseException | None
                error = None if status == outcomes.OK else task_error(status, value)
                _settle(self._futures.pop(index), value, error)
            elif self.final:
                error = self._error or lost("the batch was answered, but without this task")
                _settle(self._futures.pop(index), error=error)


class KnownIds:
    """The ids of one client. Any thread may ask; one sends, one reads."""

    def __init__(self, book: IdBook, transit: Transit, wake: Callable[[], None]) -> None:
        self._book, self._transit, self._wake = book, transit, wake
        self._open: weakref.WeakValueDictionary[TaskId, Future[Any]] = weakref.WeakValueDictionary()
        self._adopted: dict[str, Adopted] = {}
        self._spent: set[str] = set()
        self._loaded = False
        self._lock = threading.RLock()

    def ask(self, task_id: TaskId, future: Future[Any]) -> tuple[Future[Any], bool]:
        """(the future for an id, whether its task is to be sent). StorageError."""
        with self._lock:
            self._load()
            known, had = self._open.get(task_id), task_id in self._book.had
            # Answered is earlier than noted: in between, the answer is the one that there is.
            if known is not None and (had or not known.done() or _answered(known)):
                return known, False
            if had:
                _settle(future, error=AlreadyDelivered(task_id))
                return future, False
            self._open[task_id] = future
            batch = self._book.home.get(task_id)
            if batch is None:
                return future, True
            future.set_running_or_notify_cancel()
            self._adopt(batch, task_id, future)
            return future, False

    def sent(self, batch: str, ids: list[TaskId]) -> None:
        """A batch is about to be submitted. Raises OSError: then it must not be."""
        with self._lock:
            self._book.sent(batch, ids)

    def unsent(self, batch: str) -> None:
        """It was not submitted."""
        with self._lock:
            self._book.unsent(batch)

    def settled(self, batch: str) -> bool:
        """The results of a batch are here; whether its files may be removed."""
        with self._lock:
            if batch not in self._book.batches:
                return True
            adopted = self._adopted.get(batch)
            if adopted is not None:
                adopted.end()
                return self._close(batch, adopted)
            self._book.finish(batch)
            return True

    def judge(self, batch: str) -> Want | None:
        """What to do with a committed batch that nobody waits for; None: it has no ids."""
        if batch in self._spent:
            return Want.DROP
        return Want.LEAVE if batch in self._book.batches else None

    def taken(self, batch: str) -> None:
        """Somebody else was given the results of a batch."""
        with self._lock:
            self._load()
            self._book.finish(batch)

    def _load(self) -> None:
        if not self._loaded:
            try:
                self._book.load()
            except OSError as error:
                raise storage_error(error, "read the ids of", "the stream") from None
            self._loaded = True

    def _adopt(self, batch: str, task_id: TaskId, future: Future[Any]) -> None:
        ids = self._book.batches[batch]
        adopted = self._adopted.get(batch)
        if adopted is None:
            before = {i for i, task in enumerate(ids) if task in self._book.had}
            adopted = self._adopted[batch] = Adopted(ids, before)
        adopted.want(ids.index(task_id), future)
        if adopted.final:
            if self._close(batch, adopted):
                self._spent.add(batch)
        elif batch not in self._transit:
            self._transit.admit(adopted.count)
            self._transit.register(batch, adopted)
        self._wake()

    def _close(self, batch: str, adopted: Adopted) -> bool:
        if len(adopted.asked) < adopted.count:
            ids = self._book.batches[batch]
            self._book.took(ids[i] for i in adopted.asked)
            return False
        self._book.finish(batch)
        del self._adopted[batch]
        return True


def _answered(future: Future[Any]) -> bool:
    """Whether a future that is done holds its task's own answer, rather than why there is none."""
    if future.cancelled():
        return False
    error = future.exception()
    return error is None or isinstance(error, TaskError)


def _settle(future: Future[Any], value: Any = None, error: BaseException | None = None) -> None:
    try:
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
    except InvalidStateError:
        pass  # another thread gave up on it at this moment
