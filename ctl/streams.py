"""What was submitted to a stream, and who took its results: files under `ctl/streams/`.

A million tasks take a while, and the command that sends or reads them will be interrupted. So what
it does is written down in the run root before it is done, and running it again goes on from there:

    ctl/streams/<stream>.json           what was submitted, cut into which batches; never changed
                <stream>.sent.json      how many batches are prepared, and how many are submitted
                <stream>.results.json   where the results go, and whether they are all there
                <stream>.results.jsonl  the results, where no other file was named
                <stream>.lock           held by the one `ctl submit` of the stream
                <stream>.results.lock   held by the one `ctl results`

Stream names are encoded as everywhere else. `ctl cleanup` removes these with the run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fsworker.errors import Busy, UsageError
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.layout import Token
from fsworker.protocol.locks import lock_of, take
from fsworker.protocol.records import coding
from fsworker.protocol.records.needs import Needs

log = logging.getLogger(__name__)

FOLDER = layout.CTL + "/streams"


@dataclass(frozen=True)
class Submission:
    """A task file as it was submitted. Batch `i` holds the tasks from `ends[i-1]` to `ends[i]`.

    Names and places of all batches follow from this, so that a second run makes the very same
    ones. `timeout` is in seconds, `created` in epoch seconds by the clock of who submitted. It
    `waits` for workers that offer what the tasks need, where there are none.
    """

    stream: str
    file: str
    digest: str
    fn: str
    incarnation: str
    shards: tuple[int, ...]
    ends: tuple[int, ...]
    timeout: float | None = None
    created: float = 0.0
    needs: Needs = field(default_factory=Needs)
    waits: bool = False

    def meta(self) -> dict[str, Any]:
        """The meta of each of its batches."""
        told = {"fn": self.fn, "timeout": self.timeout, "stream": self.stream}
        needs = {"needs": self.needs.fields()} if self.needs else {}
        return {**told, "created": self.created, **needs}

    @property
    def tasks(self) -> int:
        """How many tasks there are."""
        return self.ends[-1]

    def token(self, number: int) -> Token:
        """The batch with this number, before anybody claimed it."""
        batch = layout.batch_id(self.stream, self.incarnation, number)
        shard = self.shards[number % len(self.shards)]
        return Token(batch, shard, needs=self.needs.digest)

    def number(self, batch: str) -> int | None:
        """The number of a batch; None when it is not of this submission."""
        if batch.rsplit("-", 2)[1] != self.incarnation:
            return None
        number = layout.seq_of(batch)
        return number if number < len(self.ends) else None

    def start(self, number: int) -> int:
        """The index of a batch's first task."""
        return self.ends[number - 1] if number else 0


@dataclass(frozen=True)
class Sent:
    """How far a submission is: batches below `submitted` are in their inboxes, or were; those from
    there to `prepared` lie beside them, and are submitted by renaming them, once or again."""

    prepared: int = 0
    submitted: int = 0


@dataclass(frozen=True)
class Taken:
    """Where the results of a stream go: the file `out` on machine `machine`.

    On any machine, when that is empty: the file lies on the run root.
    """

    out: str
    machine: str
    complete: bool = False
    failed: int = 0


R = TypeVar("R", Submission, Sent, Taken)
_SUFFIX: dict[type[Any], str] = {Submission: "json", Sent: "sent.json", Taken: "results.json"}


def path_of(kind: type[Any], stream: str) -> str:
    """Where the record of this kind lies for a stream."""
    return f"{FOLDER}/{layout.encode(stream)}.{_SUFFIX[kind]}"


def results_path(stream: str) -> str:
    """Where results are kept that go to stdout: it may be closed, and they must not be lost."""
    return f"{FOLDER}/{layout.encode(stream)}.results.jsonl"


def read(store: Store, kind: type[R], stream: str) -> R | None:
    """The record of a stream, or None."""
    path = path_of(kind, stream)
    try:
        data = store.read(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error(error, "read", store.path(path)) from None
    return coding.decode(kind, data, store.path(path))


def write(store: Store, stream: str, record: Submission | Sent | Taken) -> None:
    """Replace the record of a stream; it outlives a crash."""
    path = path_of(type(record), stream)
    try:
        store.publish(path, coding.encode(record))
    except OSError as error:
        raise storage_error(error, "write", store.path(path)) from None


def names(store: Store) -> list[str]:
    """The streams that tasks were submitted to by `ctl submit`; other files are passed over."""
    try:
        found = store.scan(FOLDER)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise storage_error(error, "list", store.path(FOLDER)) from None
    stems = (name.removesuffix(".json") for name in found if name.endswith(".json"))
    return sorted(filter(None, map(_stream, stems)))


def _stream(stem: str) -> str | None:
    try:
        return layout.decode(stem)
    except ValueError:
        return None


def check_name(stream: str) -> str:
    """`stream`, when it can be one. UsageError says why not."""
    try:
        layout.check_stream(stream)
    except ValueError as error:
        raise UsageError(f"--stream {stream!r:.80} cannot be used: {error}") from None
    return stream


@contextmanager
def locked(store: Store, stream: str, what: str, patience: float = 1.0) -> Iterator[None]:
    """Be the only `ctl submit` (what: "lock") or `ctl results` ("results.lock") of a stream.

    Busy after `patience` seconds: somebody may only be asking whether it is held.
    """
    from filelock import Timeout  # lazily: reading commands do without

    _make_folder(store)
    name = f"{FOLDER}/{layout.encode(stream)}.{what}"
    path, lock = store.path(name), lock_of(store, name)
    try:
        take(lock, patience)
    except Timeout:
        raise Busy(
            f"another command is working on stream {stream!r}: wait for it", path=path
        ) from None
    except NotImplementedError:
        log.warning("%s has no locks: do not run this twice at once", store.root)
    except OSError as error:
        raise storage_error(error, "lock", path) from None
    try:
        yield
    finally:
        lock.release()


def is_locked(store: Store, stream: str, what: str) -> bool:
    """Whether another command holds this lock now."""
    try:
        with locked(store, stream, what, patience=0):
            return False
    except Busy:
        return True


def _make_folder(store: Store) -> None:
    try:
        store.mkdir(FOLDER)
    except OSError as error:
        raise storage_error(error, "make", store.path(FOLDER)) from None
