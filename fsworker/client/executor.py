"""Sends tasks to a run and reads their results: an Executor for whoever trains.

    with fsworker.Client(root) as client:
        future = client.submit("rewards:grade", answer, solution=solution)
        for score in client.map("rewards:grade", answers, solutions):
            ...

What a client promises: each task has exactly one answer, a value or an exception that says what
happened. Once its process is dead nobody holds its futures, but what was sent finishes, and its
results stay in its stream: `recover` hands them out, and so does `submit_as` for ids.

A client may be used from many threads, forked and pickled: the child, or whoever unpickles it,
begins anew with threads and an incarnation of its own. Futures stay with the process that made
them. Nothing is started before the first task is submitted.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from typing import Any

from fsworker import blob
from fsworker.blob import Shelf
from fsworker.client import lifetimes
from fsworker.client.allowed import AllowedFunctions
from fsworker.client.engine import Engine
from fsworker.client.idbook import TaskId, checked_id, note_taken
from fsworker.client.mapping import MapCall
from fsworker.client.outbound import Call
from fsworker.client.recovery import Recovered, recover
from fsworker.client.settings import Settings, read_manifest
from fsworker.client.terms import Terms, make_options
from fsworker.client.variant import Fn, Variant
from fsworker.errors import UsageError
from fsworker.protocol.fsops import Store
from fsworker.protocol.records.needs import Needs
from fsworker.remote import (
    AlreadyDelivered,
    NotSent,
    TaskCancelled,
    TaskCrashed,
    TaskError,
    TaskExpired,
    TaskTimeout,
    WorkerDied,
)
from fsworker.taskpack import TaskPacker

__all__ = [
    "AlreadyDelivered",
    "Client",
    "NotSent",
    "Recovered",
    "TaskCancelled",
    "TaskCrashed",
    "TaskError",
    "TaskExpired",
    "TaskTimeout",
    "WorkerDied",
    "read_manifest",
]


class Client(Executor):
    """Sends tasks to the run at `root`.

    `stream` names the stream for results, so that it can be resumed; without it the client has one
    of its own and removes it at the end. `fn` is the function that `submit(None, …)` and
    `map(None, …)` mean (default: the run's first). `timeout` is for each task, in seconds (default:
    the run's). `batch_size` is the largest number of tasks in a batch; smaller ones are chosen by
    how long tasks take. After `no_worker_timeout` seconds without a living worker everything fails
    with NoWorkers (None: never). `submit` waits while `outstanding` tasks are not answered. `needs`
    and `wait_for_workers` are options of tasks that have none of their own (`with_options`).

    Raises NotRunning when there is no run, FormatError for a run of another version.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        stream: str | None = None,
        fn: Fn = None,
        timeout: float | None = None,
        batch_size: int = 8192,
        no_worker_timeout: float | None = 60.0,
        outstanding: int = 65_536,
        needs: Needs | Mapping[str, Any] | None = None,
        wait_for_workers: bool = False,
    ) -> None:
        given = (stream, timeout, batch_size, no_worker_timeout, outstanding)
        self._settings = Settings(*given, needs, wait_for_workers).checked()
        self._task_options = make_options(self._settings.usual())
        self._store = Store(os.path.abspath(root))
        self._manifest = read_manifest(self._store)
        self._allowed = AllowedFunctions(self._manifest)
        self._fn = self._allowed.name_of(fn)
        self._usual: dict[Any, Terms] = {}
        self._engine: Engine | None = None
        self._starting = threading.Lock()
        self._renew()

    @property
    def root(self) -> str:
        """The run root."""
        return self._store.root

    @property
    def stream(self) -> str | None:
        """The stream that results go to; None while an unnamed client has sent nothing."""
        return self._engine.stream if self._engine else self._settings.stream

    @property
    def calls(self) -> Counter[str]:
        """How many calls on the root this client has cost, by kind."""
        return self._store.calls

    def submit(self, fn: Fn, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Send one call. UsageError for a function that is not served, NotOffered for its needs.

        Arguments are packed before this returns. Those that cannot be sent fail the future with
        NotSent; everything else that can become of a task is a TaskError.
        """
        try:
            terms = self._usual[fn]
        except (KeyError, TypeError):  # new, or not hashable
            terms = self._terms(fn)
        return self._call(terms, args, kwargs)

    def submit_as(self, task_id: TaskId, fn: Fn, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Send one call under an id of yours, once in this stream however often it is asked for.

        What is under way, also from a client that died, is not sent again: the future gets its
        result. What was answered before fails with AlreadyDelivered.
        """
        return self._call(self._terms(fn), args, kwargs, checked_id(task_id))

    def _call(
        self,
        terms: Terms,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        task_id: TaskId | None = None,
    ) -> Future[Any]:
        engine = self._engine or self._running()
        if task_id is not None:
            engine.routes.check(terms)  # before the id is taken
        call = Call(self._settling)
        call.terms = terms
        try:
            with self._packing:
                call.record, call.form = self._packer.call(args, kwargs, task_id)
        except NotSent as error:
            if not self._pack_blobs(call, error, engine.shelf, args, kwargs, task_id):
                return call
        if task_id is not None:
            call.id = task_id
            known, new = engine.known.ask(task_id, call)
            if not new:
                return known
        engine.submit(call)
        return call

    def _pack_blobs(
        self, call: Call, failure: NotSent, shelf: Shelf, args: Any, kwargs: Any, task_id: Any
    ) -> bool:
        """Send the blobs of a call that cannot be packed otherwise; False when it has failed."""
        try:
            if not blob.among(args, kwargs):
                raise failure
            with self._packing:
                call.record = blob.pack(self._packer, shelf, call, args, kwargs, task_id)
        except NotSent as error:
            call.set_running_or_notify_cancel()
            call.set_exception(error)
            return False
        return True

    def with_options(self, **options: Any) -> Variant:
        """This client with other options for the tasks that are sent through what is returned.

        Those of `fsworker.client.terms.Options`. UsageError for one that is unknown or cannot be.
        """
        return Variant(self, make_options(self._settings.usual() | options))

    def cancel(self, future: Future[Any]) -> bool:
        """Cancel a task of this client, whether it was sent or not. False when it is over.

        One that was not sent is cancelled at once, as `future.cancel()` does. Of one that was, the
        workers are asked to end it, within a second or two: the future ends with TaskCancelled
        (which is a CancelledError too), unless the task is over before.
        """
        if future.cancel():
            return True
        engine = self._engine
        if engine is None or future.done():
            return False
        engine.abort(future)
        return True

    def map(
        self,
        fn: Fn,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
    ) -> Iterator[Any]:
        """The results of `fn(a, b, …)` for each row of the iterables, in their order.

        The first `outstanding` tasks are sent at once, more as results are taken. `chunksize` is
        the number of tasks in a batch, chosen by how long tasks take unless it is given. `timeout`
        (seconds, for the whole call) raises TimeoutError. A failed task raises in its place and
        ends the iteration. However it ends, what is open then is cancelled.
        """
        return self._map(self._terms(fn), iterables, timeout, chunksize)

    def _map(
        self, terms: Terms, rows: tuple[Iterable[Any], ...], timeout: float | None, size: int | None
    ) -> Iterator[Any]:
        if size is not None and size < 1:
            raise ValueError("chunksize must be >= 1.")
        engine = self._running()
        engine.routes.check(terms)
        call = MapCall(engine, terms, rows, size=size, timeout=timeout)
        call.feed()
        return call.results(self)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more tasks; wait for all answers; with `cancel_futures` cancel the unsent."""
        with self._starting:
            self._closed = True
            engine = self._engine
        if engine is not None:
            engine.close(cancel=cancel_futures)
            if wait:
                engine.join()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_unpickle, (self.root, {**self._settings.fields(), "fn": self._fn}))

    def recover(self) -> Iterator[Recovered]:
        """What earlier clients of this stream were not given: each result once.

        A result is removed from the stream once the next one is asked for, or the iteration ends.
        It ends when nothing more has been committed; what is still pending comes by a later call.
        Not for use while another client of the stream lives: it would be robbed.
        """
        if self._settings.stream is None:
            raise UsageError("only a client with a stream name can recover: give stream=")
        taken = partial(note_taken, self._store, self._settings.stream)
        known = self._engine.known.taken if self._engine else taken
        return recover(self._store, self._settings.stream, self._is_mine, known)

    def _is_mine(self, batch: str) -> bool:
        engine = self._engine
        return engine is not None and batch.rsplit("-", 2)[1] == engine.incarnation

    def _terms(self, fn: Fn) -> Terms:
        name = self._fn if fn is None else self._allowed.name_of(fn)
        terms = self._usual.setdefault(name, Terms(name, self._task_options))
        with suppress(TypeError):  # not hashable
            self._usual[fn] = terms
        return terms

    def _running(self) -> Engine:
        engine = self._engine
        if engine is None:
            with self._starting:
                if self._closed or lifetimes.ended.is_set():
                    raise RuntimeError("cannot schedule new futures after shutdown")
                if self._engine is None:
                    self._engine = Engine(self._store, self._manifest, self._settings)
                    self._engine.start()
                    # Whose client is forgotten answers its futures, then it ends.
                    weakref.finalize(self, self._engine.close).atexit = False
                    lifetimes.engines.add(self._engine)
                engine = self._engine
        return engine

    def _renew(self) -> None:
        """Begin anew: at first, and in a forked child, whose locks and threads are its parent's."""
        self._store = Store(self.root)  # temporaries must not have the parent's names
        self._engine = None
        self._closed = False
        self._starting = threading.Lock()
        self._packing = threading.Lock()
        self._settling = threading.Condition()
        self._packer = TaskPacker()
        lifetimes.clients.add(self)


def _unpickle(root: str, options: dict[str, Any]) -> Client:
    return Client(root, **options)
