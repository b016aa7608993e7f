"""A client whose disk is full: it waits for room, not for ever, and not for what nobody wants."""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fsworker.client import Client
from fsworker.client.idbook import IdBook
from fsworker.client.submitter import Submitter
from fsworker.errors import NoWorkers, StorageError
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Token
from tests.support.small_worker import SmallWorker, make_run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.unit

FIRST = "tests.fn:first"
FUNCTIONS: dict[str, Callable[..., Any]] = {FIRST: lambda x=None: x}
TOKEN = Token("s-0123456789ab-0", 0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


class Disk:
    """A filesystem whose inboxes have no room while it is full, and how often it said so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = threading.Event()
        self.full.set()
        self.refused = 0
        put = Store.put

        def refusing(store: Store, rel: str, data: bytes, *, durable: bool = True) -> None:
            if rel.startswith(layout.INBOX) and self.full.is_set():
                self.refused += 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), rel)
            put(store, rel, data, durable=durable)

        monkeypatch.setattr(Store, "put", refusing)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_room_that_comes_back_is_waited_for(root: Path, disk: Disk) -> None:
    with SmallWorker(root, FUNCTIONS), Client(root) as client:
        futures = [client.submit(FIRST, i) for i in range(5)]
        wait_until(lambda: disk.refused >= 3, what="refusals")
        assert not any(future.done() for future in futures)
        disk.full.clear()
        assert [future.result(120) for future in futures] == list(range(5))


def test_what_is_dropped_is_not_waited_for(root: Path, disk: Disk) -> None:
    client = Client(root)
    future = client.submit(FIRST, 1)
    wait_until(lambda: disk.refused, what="a refusal")
    client.shutdown(wait=True, cancel_futures=True)
    assert isinstance(future.exception(0), StorageError)


def test_what_failed_meanwhile_is_not_waited_for(root: Path, disk: Disk) -> None:
    """Nor does it hold up what comes after it, once there is room."""
    with Client(root, no_worker_timeout=4.0) as client:
        future = client.submit(FIRST, 1)
        assert isinstance(future.exception(120), NoWorkers)
        disk.full.clear()
        with SmallWorker(root, FUNCTIONS):
            assert client.submit(FIRST, 2).result(120) == 2


def test_patience_is_counted_from_the_last_time_that_there_was_room(
    root: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitter = Submitter(Store(root), "u", room_patience=0.2)
    with pytest.raises(StorageError, match="No space left"):
        submitter.prepare(TOKEN, b"data")
    assert disk.refused > 1
    disk.refused = 0
    with pytest.raises(StorageError, match="No space left"):
        submitter.prepare(TOKEN, b"data")
    assert disk.refused == 1, "the next one does not begin to wait again"
    disk.full.clear()
    submitter.prepare(TOKEN, b"data")
    disk.full.set()
    disk.refused = 0
    with pytest.raises(StorageError):
        submitter.prepare(TOKEN, b"data")
    assert disk.refused > 1


def test_a_batch_that_can_never_fit_fails_at_once(
    root: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Store, "capacity", lambda store: 1000)
    submitter = Submitter(Store(root), "u", room_patience=300.0)
    with pytest.raises(StorageError, match="it is larger than that filesystem"):
        submitter.prepare(TOKEN, bytes(1001))
    assert disk.refused == 1


def test_a_command_does_not_wait(root: Path, disk: Disk) -> None:
    with pytest.raises(StorageError, match="No space left"):
        Submitter(Store(root), "u").prepare(TOKEN, b"data")
    assert disk.refused == 1


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """No file of this process may be larger."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_line_that_was_cut_is_an_error_and_spoils_no_other(root: Path) -> None:
    """An id that is noted in a line that nobody can read would be executed twice."""
    folder = root / "outbox" / "s"
    folder.mkdir()
    book = IdBook(Store(root), "s", "00000000000a", journal=True)
    book.sent("s-00000000000a-0", ["first"])
    path = folder / ".ids~00000000000a.jsonl"
    with at_most(path.stat().st_size + 9), pytest.raises(OSError, match="too large"):
        book.sent("s-00000000000a-1", ["second"])
    book.sent("s-00000000000a-2", ["third"])
    for number in (0, 2):
        (root / "inbox" / "0" / f"s-00000000000a-{number}.0.0").write_bytes(b"")
    again = IdBook(Store(root), "s", "00000000000b", journal=True)
    again.load()
    assert again.home == {"first": "s-00000000000a-0", "third": "s-00000000000a-2"}
