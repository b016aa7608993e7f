"""Cancelling what is sent, waits or runs: each task has one answer, and its neighbours theirs."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from fsworker.client.executor import Client, TaskCancelled
from fsworker.protocol import layout, requests
from fsworker.protocol.records.cancel import CancelRequest
from tests.support.fleet import MISBEHAVE, NOTE, Fleet
from tests.support.waiting import Spawned, wait_until
from tests.support.workers import Root, log_of, start_worker

pytestmark = pytest.mark.fleet


@pytest.fixture
def spawned() -> Iterator[Spawned]:
    with Spawned(f"SHARDFLEET_TEST={uuid.uuid4().hex}") as found:
        yield found


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "root", functions=("echo", "append", "sleep"))


def begun(root: Root, name: str) -> bool:
    path = Path(f"{root.path}.begun")
    return path.exists() and name in path.read_text().split()


def ask(root: Root, batch: str, *tasks: int) -> str:
    return requests.ask(root.store, batch, CancelRequest("test", batch, tasks))


def requests_left(root: Path) -> list[str]:
    return os.listdir(root / layout.CANCEL)


def test_a_running_task_is_ended_and_its_neighbours_finish(spawned: Spawned, root: Root) -> None:
    worker = start_worker(spawned, root, slots=1)
    notes = f"{root.path}.begun"
    tasks = [[notes, "a", 0.0], [notes, "slow", 600.0], [notes, "b", 0.0], [notes, "c", 0.0]]
    batch = root.submit(tasks, fn="append")
    wait_until(lambda: begun(root, "slow"), what="the slow one begins")
    ask(root, batch, 1, 3)
    rows = {row[0]: row for row in root.results(batch)}
    assert [rows[i][2] for i in range(4)] == ["ok", "cancelled", "ok", "cancelled"]
    assert rows[1][1] == "t1"
    assert Path(notes).read_text().split() == ["a", "/a", "slow", "b", "/b"]
    # The slot was replaced, nobody was blamed, and the request went with the batch.
    again = root.submit([[7]], fn="echo")
    assert root.results(again)[0][2:4] == ["ok", 7]
    assert worker.poll() is None
    wait_until(lambda: requests_left(root.path) == [], what="the request is gone")


def test_what_waits_is_answered_without_being_run(spawned: Spawned, root: Root) -> None:
    notes = f"{root.path}.begun"
    first = root.submit([[notes, "one", 0.0]] * 50, fn="append")
    second = root.submit([[notes, "two", 0.0]], fn="append")
    ask(root, first)
    start_worker(spawned, root)
    assert {row[2] for row in root.results(first)} == {"cancelled"}
    assert root.results(second)[0][2] == "ok"
    assert Path(notes).read_text().split() == ["two", "/two"]


def test_the_answer_does_not_wait_for_the_rest_of_the_batch(spawned: Spawned, root: Root) -> None:
    start_worker(spawned, root, slots=2)
    notes = f"{root.path}.begun"
    batch = root.submit([[notes, "x", 600.0], [notes, "y", 600.0]], fn="append")
    wait_until(lambda: begun(root, "x") and begun(root, "y"), what="both begin")
    ask(root, batch, 0)
    folder = root.path / layout.outbox_dir("s")
    wait_until(lambda: [n for n in os.listdir(folder) if ".part" in n], what="an early result")
    assert root.collect(batch) is None
    ask(root, batch, 1)
    assert {row[2] for row in root.results(batch)} == {"cancelled"}


def test_a_task_of_a_suspect_is_cancelled_and_nobody_is_blamed(
    spawned: Spawned, root: Root
) -> None:
    start_worker(spawned, root, slots=2)
    notes = f"{root.path}.begun"
    tasks = [[notes, "a", 0.0], [notes, "slow", 600.0], [notes, "b", 0.0], [notes, "c", 0.0]]
    batch = root.submit(tasks, fn="append", deaths=1, attempt=1)
    wait_until(lambda: begun(root, "slow"), what="the slow one begins")
    ask(root, batch, 1, 2)
    rows = {row[0]: row for row in root.results(batch)}
    assert [rows[i][2] for i in range(4)] == ["ok", "cancelled", "cancelled", "ok"]
    assert Path(notes).read_text().split() == ["a", "/a", "slow", "c", "/c"]
    assert os.listdir(root.path / "dead") == []


def test_requests_that_say_nothing_do_no_harm(spawned: Spawned, root: Root) -> None:
    batch = root.submit([[1.5]], fn="sleep")
    other = root.submit([[5]], fn="echo")
    root.store.publish(layout.cancel_path(batch, "00000000"), b"nonsense")
    root.store.publish(layout.CANCEL + "/by hand", b"")
    ask(root, layout.batch_id("s", "c0ffee000009", 1))
    start_worker(spawned, root)
    assert root.results(batch)[0][2] == "ok"
    assert root.results(other)[0][2] == "ok"
    assert log_of(root).count("is not valid JSON") == 1


def test_an_idle_worker_does_not_look_for_requests(spawned: Spawned, root: Root) -> None:
    # A folder that cannot be listed shows who tries.
    os.rename(root.path / layout.CANCEL, root.path / "away")
    (root.path / layout.CANCEL).write_bytes(b"")
    start_worker(spawned, root)
    wait_until(lambda: (b := root.beat()) and b.seq > 3, what="it is idle for a while")
    assert "cannot look for requests" not in log_of(root)
    batch = root.submit([[1]], fn="echo")
    assert root.results(batch)[0][2] == "ok"
    wait_until(lambda: "cannot look for requests" in log_of(root), what="it looked while at work")


def test_a_client_cancels_what_it_sent(tmp_path: Path, spawned: Spawned) -> None:
    fleet = Fleet(tmp_path / "run", spawned)
    fleet.start("h0")
    notes = tmp_path / "notes"
    with Client(fleet.root) as client:
        assert client.submit(NOTE, str(notes), 0).result(120) == 0
        stuck = client.submit(MISBEHAVE, "deadlock")
        wait_until(stuck.running, what="it is sent")
        assert not stuck.cancel()
        begun = time.monotonic()
        assert client.cancel(stuck)
        error = stuck.exception(120)
        took = time.monotonic() - begun
        assert isinstance(error, TaskCancelled) and isinstance(error, CancelledError)
        assert error.status == "cancelled"
        assert not client.cancel(stuck)
        assert took < 100, took  # a second, on a machine that is not busy
        good = [client.submit(NOTE, str(notes), i) for i in range(1, 20)]
        assert [f.result(120) for f in good] == list(range(1, 20))
        assert not any(client.cancel(f) for f in good)
    assert sorted(map(int, notes.read_text().split())) == list(range(20))
    assert requests_left(fleet.root) == []
    assert not fleet.files()


def test_a_client_cancels_a_crowd(tmp_path: Path, spawned: Spawned) -> None:
    fleet = Fleet(tmp_path / "run", spawned)
    fleet.start("h0", "h1")
    with Client(fleet.root) as client:
        futures = [client.submit(NOTE, str(tmp_path / "notes"), i, 0.3) for i in range(2000)]
        wait_until(lambda: futures[0].done(), what="some are at work")
        asked = [client.cancel(f) for f in futures]
        assert sum(asked) > 1900
        wait_until(lambda: all(f.done() for f in futures), what="all are answered")
        ended = [f for f in futures if not f.cancelled() and f.exception() is not None]
        assert ended and all(isinstance(f.exception(), TaskCancelled) for f in ended)
    assert client.calls["create"] < 500
    assert requests_left(fleet.root) == []
    assert not fleet.files()
