"""Sends tasks to a run and reads their results: an Executor for whoever trains.

    with fsworker.Client(root) as client:
        future = client.submit("rewards:grade", answer, solution=solution)
        for score in client.map("rewards:grade", answers, solutions):
            ...

What a client promises: each task has exactly one answer, a value or an exception that says what
happened. What it does not: once its process is dead, nobody holds its futures. What was sent still
finishes, its results stay in its stream until somebody takes them: a client that is given the same
`stream` name leaves them alone (they carry the dead one's incarnation), `recover` hands them out.
A task is answered to one client once, but a task that is submitted anew is a new task: whoever
resumes decides by what `recover` gives which ones to submit again.

A client may be used from many threads, forked and pickled: the child, or whoever unpickles it,
begins anew with threads and an incarnation of its own. Futures stay with the process that made
them. Nothing is started before the first task is submitted.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

from fsworker.allowed import AllowedFunctions
from fsworker.engine import Engine, Settings
from fsworker.errors import NotRunning, UsageError
from fsworker.futures import TaskFuture
from fsworker.mapping import MapCall
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.records.run import Manifest
from fsworker.recovery import Recovered, recover
from fsworker.remote import NotSent, TaskCancelled, TaskCrashed, TaskError, TaskTimeout, WorkerDied
from fsworker.taskpack import TaskPacker

__all__ = [
    "Client",
    "NotSent",
    "Recovered",
    "TaskCancelled",
    "TaskCrashed",
    "TaskError",
    "TaskTimeout",
    "WorkerDied",
]

AT_EXIT = 10.0
"""Seconds for which a process that ends waits for its last tasks to be sent."""

_Fn = str | Callable[..., Any] | None


class Client(Executor):
    """Sends tasks to the run at `root`.

    `stream` names the stream for results, so that it can be resumed; without it the client has one
    of its own and removes it at the end. `fn` is the function that `submit(None, …)` and
    `map(None, …)` mean (default: the run's first). `timeout` is for each task, in seconds (default:
    the run's). `batch_size` is the largest number of tasks in a batch; smaller ones are chosen by
    how long tasks take. After `no_worker_timeout` seconds without a living worker everything fails
    with NoWorkers (None: never). `submit` waits while `outstanding` tasks are not answered.

    Raises NotRunning when there is no run, FormatError for a run of another version.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        stream: str | None = None,
        fn: _Fn = None,
        timeout: float | None = None,
        batch_size: int = 4096,
        no_worker_timeout: float | None = 60.0,
        outstanding: int = 65_536,
    ) -> None:
        self._options: dict[str, Any] = {
            "stream": stream,
            "timeout": timeout,
            "batch_size": batch_size,
            "no_worker_timeout": no_worker_timeout,
            "outstanding": outstanding,
        }
        self._settings = _checked(Settings(**self._options))
        self._store = Store(os.path.abspath(root))
        self._manifest = read_manifest(self._store)
        self._allowed = AllowedFunctions(self._manifest)
        self._fn = self._allowed.name_of(fn)
        self._engine: Engine | None = None
        self._starting = threading.Lock()
        self._reset()

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

    def submit(self, fn: _Fn, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Send one call. UsageError for a function that the run does not serve.

        Arguments are packed before this returns. Those that cannot be sent fail the future with
        NotSent; everything else that can become of a task is a TaskError.
        """
        name = self._name(fn)
        engine = self._running()
        future = TaskFuture(self._settling)
        try:
            with self._packing:
                record = self._packer.call(args, kwargs)
        except NotSent as error:
            future.set_running_or_notify_cancel()
            future.set_exception(error)
            return future
        engine.submit(name, record, future)
        return future

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
        fn: _Fn,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
    ) -> Iterator[Any]:
        """The results of `fn(a, b, …)` for each row of the iterables, in their order.

        The first `outstanding` tasks are sent at once, more as results are taken. `chunksize` is
        the number of tasks in a batch, chosen by how long tasks take unless it is given. `timeout`
        (seconds, for the whole call) raises TimeoutError. A failed task raises in its place and
        ends the iteration.
        """
        if chunksize is not None and chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        call = MapCall(self._running(), self._name(fn), iterables, size=chunksize, timeout=timeout)
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
        return (_unpickle, (self.root, {**self._options, "fn": self._fn}))

    def recover(self) -> Iterator[Recovered]:
        """What earlier clients of this stream were not given: each result once.

        A result is removed from the stream once the next one is asked for, or the iteration ends.
        It ends when nothing more has been committed; what is still pending comes by a later call.
        Not for use while another client of the same stream lives: it would be robbed.
        """
        if self._settings.stream is None:
            raise UsageError("only a client with a stream name can recover: give stream=")
        return recover(self._store, self._settings.stream, self._is_mine)

    def _is_mine(self, batch: str) -> bool:
        engine = self._engine
        return engine is not None and batch.rsplit("-", 2)[1] == engine.incarnation

    def _name(self, fn: _Fn) -> str:
        return self._fn if fn is None else self._allowed.name_of(fn)

    def _running(self) -> Engine:
        engine = self._engine
        if engine is None:
            with self._starting:
                if self._closed or _ended.is_set():
                    raise RuntimeError("cannot schedule new futures after shutdown")
                if self._engine is None:
                    self._engine = Engine(self._store, self._manifest, self._settings)
                    self._engine.start()
                    # Whose client is forgotten answers its futures, then it ends.
                    weakref.finalize(self, self._engine.close).atexit = False
                    _engines.add(self._engine)
                engine = self._engine
        return engine

    def _reset(self) -> None:
        """Begin anew: at first, and in a forked child, whose locks and threads are its parent's."""
        self._engine = None
        self._closed = False
        self._starting = threading.Lock()
        self._packing = threading.Lock()
        self._settling = threading.Condition()
        self._packer = TaskPacker()
        _clients.add(self)


def read_manifest(store: Store) -> Manifest:
    """What a run is. NotRunning when there is none; FormatError for another version."""
    path = store.path(layout.MANIFEST)
    try:
        data = store.read(layout.MANIFEST)
    except (FileNotFoundError, NotADirectoryError):
        raise NotRunning(
            f"there is no run at {store.root}: {layout.MANIFEST} is missing", path=store.root
        ) from None
    except OSError as error:
        raise storage_error(error, "read", path) from None
    manifest: Manifest = Manifest.from_json(data, path)
    return manifest


def _checked(settings: Settings) -> Settings:
    for name in ("timeout", "no_worker_timeout"):
        value = getattr(settings, name)
        if value is not None and not value > 0:
            raise UsageError(f"{name} must be a number of seconds above 0, not {value!r}")
    for name in ("batch_size", "outstanding"):
        value = getattr(settings, name)
        if not isinstance(value, int) or value < 1:
            raise UsageError(f"{name} must be a whole number from 1 up, not {value!r}")
    if settings.stream is not None:
        try:
            layout.encode(settings.stream)
        except (ValueError, AttributeError) as error:
            raise UsageError(f"stream {settings.stream!r:.80} cannot be used: {error}") from None
    return settings


def _unpickle(root: str, options: dict[str, Any]) -> Client:
    return Client(root, **options)


def _forked() -> None:
    _engines.clear()
    for client in list(_clients):
        client._store = Store(client.root)  # its temporaries must not have its parent's names
        client._reset()


def _at_exit() -> None:
    """Send what was submitted: threads end with the process, and futures with them."""
    _ended.set()
    for engine in list(_engines):
        engine.flush(AT_EXIT)


_clients: weakref.WeakSet[Client] = weakref.WeakSet()
_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_ended = threading.Event()
os.register_at_fork(after_in_child=_forked)
atexit.register(_at_exit)
