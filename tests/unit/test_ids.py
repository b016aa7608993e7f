"""Ids of callers: one execution for each in a stream, whoever asks, whenever, however often."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from fsworker.client import idbook
from fsworker.client.executor import AlreadyDelivered, Client
from fsworker.client.idbook import IdBook
from fsworker.errors import UsageError
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store
from tests.support.small_worker import SmallWorker, make_run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.unit

CALLED: list[Any] = []


def _double(value: Any, **kwargs: Any) -> Any:
    CALLED.append(value)
    if value == "bad":
        raise ValueError("bad")
    return [value, value, kwargs] if kwargs else [value, value]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    CALLED.clear()
    return make_run(tmp_path / "run")


def _worker(root: Path) -> SmallWorker:
    return SmallWorker(root, {"tests.fn:first": _double})


def _abandon(client: Client) -> None:
    """Let a client die, as far as the root can tell: its threads stop, nothing is read."""
    engine = client._engine
    assert engine is not None
    engine._broken = RuntimeError("died")
    engine._wake.set()
    engine._news.set()
    engine.join(10)


def test_an_id_is_sent_once_by_one_client(root: Path) -> None:
    with Client(root) as client:
        first = client.submit_as("a", None, 1, task_id="the function's own")
        assert client.submit_as("a", None, 1) is first
        with _worker(root):
            assert first.result(120) == [1, 1, {"task_id": "the function's own"}]
            assert client.submit_as("a", None, 1) is first
            assert client.submit_as(1, None, 2).result(120) == [2, 2]
            assert client.submit_as("1", None, 3).result(120) == [3, 3]
            del first
            gc.collect()
            error = client.submit_as("a", None, 1).exception(120)
            assert isinstance(error, AlreadyDelivered) and "'a'" in str(error)
    assert CALLED == [1, 2, 3]
    assert not list(root.rglob("*.jsonl")), "a client without a stream keeps no journal"


def test_who_resumes_gets_what_is_under_way_and_nothing_runs_twice(root: Path) -> None:
    client = Client(root, stream="t-7", batch_size=2)
    with _worker(root):
        assert client.submit_as("had", None, 0).result(120) == [0, 0]
    for name in ("x", "y", "z"):
        client.submit_as(name, None, name)
    pending = wait_until(lambda: len(_waiting(root)) == 2)
    assert pending
    _abandon(client)
    with Client(root, stream="t-7") as other:
        early = other.submit_as("x", None, "x")
        assert other.submit_as("x", None, "x") is early
        assert isinstance(other.submit_as("had", None, 0).exception(1), AlreadyDelivered)
        with _worker(root):
            assert early.result(120) == ["x", "x"]
            new = other.submit_as("new", None, "new")
            assert new.result(120) == ["new", "new"]
            wait_until(lambda: not _waiting(root))
    assert sorted(map(str, CALLED)) == ["0", "new", "x", "y", "z"]
    # What nobody has asked for yet outlives that client too.
    with Client(root, stream="t-7") as third:
        futures = {name: third.submit_as(name, None, name) for name in ("y", "z")}
        assert {n: f.result(120) for n, f in futures.items()} == {"y": ["y", "y"], "z": ["z", "z"]}
        for name in ("x", "new", "had"):
            assert isinstance(third.submit_as(name, None, 1).exception(1), AlreadyDelivered)
    assert len(CALLED) == 5
    left = sorted(p.name for p in (root / "outbox" / "t-7").iterdir())
    assert len(left) == 1 and left[0].startswith(".ids~"), left


def _waiting(root: Path) -> list[Path]:
    return [p for p in (root / "inbox").rglob("*") if p.is_file() and p.name[0] != "."]


def test_what_was_noted_and_never_submitted_is_free(root: Path) -> None:
    store = Store(root)
    (root / "outbox" / "s").mkdir()
    book = IdBook(store, "s", "00000000000a", journal=True)
    book.sent("s-00000000000a-0", ["a"])
    book.sent("s-00000000000a-1", ["b"])
    temp = root / "inbox" / "1" / ".tmp~00000000000a~s-00000000000a-1.0.0"
    temp.write_bytes(b"prepared")
    with (root / "outbox" / "s" / ".ids~00000000000a.jsonl").open("ab") as file:
        file.write(b'["had",["c')  # it died while it wrote
    with _worker(root), Client(root, stream="s") as client:
        assert client.submit_as("a", None, 1).result(120) == [1, 1]
        assert client.submit_as("b", None, 2).result(120) == [2, 2]
        assert client.submit_as("c", None, 3).result(120) == [3, 3]
    assert not temp.exists()


def test_a_failure_is_an_answer_and_what_cannot_be_sent_is_none(root: Path) -> None:
    with _worker(root), Client(root, stream="s") as client:
        assert isinstance(client.submit_as("e", None, "bad").exception(120), ValueError)
        assert client.submit_as("n", None, {1}).exception(1) is not None
        assert client.submit_as("n", None, 5).result(120) == [5, 5]
    with Client(root, stream="s") as client:
        for name in ("e", "n"):
            assert isinstance(client.submit_as(name, None, 1).exception(1), AlreadyDelivered)
    assert CALLED == ["bad", 5]


def test_what_was_recovered_was_delivered(root: Path) -> None:
    client = Client(root, stream="s")
    client.submit_as("a", None, 1)
    wait_until(lambda: len(_waiting(root)) == 1)
    _abandon(client)
    with _worker(root):
        wait_until(lambda: list((root / "outbox" / "s").glob("*.done")))
    with Client(root, stream="s") as other:
        assert [(r.id, r.value) for r in other.recover()] == [("a", [1, 1])]
        assert isinstance(other.submit_as("a", None, 1).exception(1), AlreadyDelivered)
    assert CALLED == [1]


def test_only_the_latest_ids_are_remembered(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idbook, "KEPT", 10)
    (root / "outbox" / "s").mkdir()
    book = IdBook(Store(root), "s", "00000000000a", journal=True)
    for number in range(100):
        book.sent(f"s-00000000000a-{number}", [number])
        book.finish(f"s-00000000000a-{number}")
    assert list(book.had) == list(range(90, 100)) and not book.batches
    path = root / "outbox" / "s" / ".ids~00000000000a.jsonl"
    assert len(path.read_bytes().splitlines()) < 100
    again = IdBook(Store(root), "s", "00000000000b", journal=True)
    again.load()
    assert list(again.had) == list(range(90, 100)) and not path.exists()


@pytest.mark.parametrize("task_id", [None, True, 1.5, ["a"], b"a"])
def test_what_can_be_no_id_is_refused(root: Path, task_id: Any) -> None:
    with Client(root) as client, pytest.raises(UsageError, match="an id must be"):
        client.submit_as(task_id, None, 1)


def test_no_reader_takes_a_journal_for_something_else() -> None:
    assert layout.parse_outbox_name(".ids~00000000000a.jsonl") is None
    assert layout.is_foreign(".ids~00000000000a.jsonl")
