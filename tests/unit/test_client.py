"""The client against the real protocol, served by a worker in a thread."""

from __future__ import annotations

import gc
import math
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, wait
from pathlib import Path
from typing import Any

import pytest

import fsworker
from fsworker.client import executor as client_module
from fsworker.client.executor import (
    Client,
    NotSent,
    TaskCrashed,
    TaskError,
    TaskTimeout,
    WorkerDied,
)
from fsworker.errors import FormatError, NotRunning, NoWorkers, StorageError, UsageError
from fsworker.protocol import layout, segment
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Token
from fsworker.protocol.records.cancel import CancelRequest
from tests.support.small_worker import SmallWorker, make_run
from tests.support.waiting import wait_until

FIRST, SECOND = "tests.fn:first", "tests.fn:second"


def _second(*args: Any, **kwargs: Any) -> Any:
    if args and args[0] == "bad":
        raise ValueError("plainly wrong")
    return [list(args), kwargs]


FUNCTIONS = {FIRST: lambda x=None: x, SECOND: _second}


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine crashes here, and a disk that is busy would take most of the time."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


@pytest.fixture
def worker(root: Path) -> Iterator[SmallWorker]:
    with SmallWorker(root, FUNCTIONS) as worker:
        yield worker


def _files(root: Path) -> list[str]:
    """Everything under the run's moving folders."""
    found = []
    for top in (layout.INBOX, layout.OUTBOX, layout.CLAIMS):
        for folder, _, names in os.walk(root / top):
            found += [os.path.join(os.path.relpath(folder, root), n) for n in names]
    return sorted(found)


# -- values


def test_values_come_back_as_they_were_sent(root: Path, worker: SmallWorker) -> None:
    values = [None, 1, -1.5, "é", b"\0", [1, [2]], {"a": {"b": 1}}, (1, (2, 3)), math.inf]
    with Client(root) as client:
        futures = [client.submit(FIRST, value) for value in values]
        assert [f.result(120) for f in futures] == values
        assert list(client.map(FIRST, values)) == values
        assert type(client.submit(FIRST, (1,)).result(120)) is tuple


def test_arguments_arrive_by_position_and_by_name(root: Path, worker: SmallWorker) -> None:
    with Client(root, fn=SECOND) as client:
        future = client.submit(None, 1, *range(20), key="v", fn="not the function")
        args, kwargs = future.result(120)
        assert args == [1, *range(20)]
        assert kwargs == {"key": "v", "fn": "not the function"}
        assert list(client.map(None, [1, 2], ["a", "b", "c"])) == [[[1, "a"], {}], [[2, "b"], {}]]
        assert list(client.map(None, *([i] for i in range(20)))) == [[list(range(20)), {}]]


def test_arguments_are_taken_when_submitted(root: Path) -> None:
    worker = SmallWorker(root, FUNCTIONS)
    with Client(root) as client:
        value = [1]
        future = client.submit(FIRST, value)
        value.append(2)
        with worker:
            assert future.result(120) == [1]


def test_what_cannot_be_sent_fails_alone_and_by_name(root: Path, worker: SmallWorker) -> None:
    with Client(root) as client:
        bad = client.submit(FIRST, {1, 2})
        good = client.submit(FIRST, 1)
        with pytest.raises(NotSent, match="a set cannot be sent"):
            bad.result(120)
        assert good.result(120) == 1
        for value in (2**70, "\ud800", object()):
            with pytest.raises(NotSent):
                client.submit(FIRST, value).result(120)
        results = client.map(FIRST, [1, 2, {3}, 4])
        assert [next(results), next(results)] == [1, 2]
        with pytest.raises(NotSent, match="a set"):
            next(results)


def test_a_task_that_is_too_large_is_named(
    root: Path, worker: SmallWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsworker.taskpack.MAX_RECORD", 1000)
    with Client(root) as client:
        with pytest.raises(NotSent, match="1000 is the limit"):
            client.submit(FIRST, "x" * 1001).result(120)
        assert client.submit(FIRST, "x" * 900).result(120) == "x" * 900


def test_a_batch_is_cut_by_its_bytes(
    root: Path, worker: SmallWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsworker.client.outbound.MAX_BATCH_BYTES", 10_000)
    with Client(root) as client:
        values = ["x" * 4000 for _ in range(10)]
        assert list(client.map(FIRST, values, chunksize=10)) == values
    assert max(worker.sizes) == 2


# -- errors


def test_a_remote_exception_keeps_type_message_and_traceback(
    root: Path, worker: SmallWorker
) -> None:
    with Client(root) as client:
        error = client.submit(SECOND, "bad").exception(120)
        assert isinstance(error, TaskError)
        assert (error.type, error.remote_message) == ("ValueError", "plainly wrong")
        assert error.status == "error" and "in _second" in error.traceback
        assert str(error) == "ValueError: plainly wrong" and error.exit_code == 1
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), again.type, again.traceback) == (
            type(error),
            "ValueError",
            error.traceback,
        )
        with pytest.raises(TaskError, match="plainly wrong"):
            list(client.map(SECOND, ["good", "bad", "good"]))


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("timeout", TaskTimeout),
        ("crashed", TaskCrashed),
        ("worker died", WorkerDied),
        ("invalid", TaskError),
        ("a status of later releases", TaskError),
    ],
)
def test_each_way_to_fail_has_its_class(root: Path, status: str, kind: type[TaskError]) -> None:
    from fsworker import outcomes

    worker = SmallWorker(root, FUNCTIONS)
    with Client(root) as client:
        future = client.submit(FIRST, 1)
        token = wait_until(worker.pending)[0]
        mine, _ = worker.claim(token)
        value = outcomes.cause("Cause", "why")
        worker.write(mine, [outcomes.record(0, None, status, value, 0.0)])
        worker.commit(mine)
        error = future.exception(120)
        assert type(error) is kind and isinstance(error, TaskError)
        assert (error.status, str(error)) == (status, "Cause: why")


def test_functions_that_the_run_does_not_serve_are_refused_at_submit(root: Path) -> None:
    with Client(root) as client:
        for fn in ("os:system", os.system, len, lambda: 1, 5):
            with pytest.raises(UsageError):
                client.submit(fn)  # type: ignore[arg-type]
            with pytest.raises(UsageError):
                client.map(fn, [1])  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"serves tests\.fn:first, tests\.fn:second"):
            Client(root, fn="tests.fn:third")
    assert not _files(root) and threading.active_count() == 1


def test_a_callable_is_known_by_what_the_name_leads_to(tmp_path: Path) -> None:
    names = ("os.path:join", "fsworker.client.executor.Client.submit", "math:sqrt")
    root = make_run(tmp_path / "run", names)
    with SmallWorker(root, {names[0]: os.path.join, names[2]: math.sqrt}), Client(root) as client:
        # It calls itself posixpath.join, and is what the manifest's name leads to.
        assert client.submit(os.path.join, "a", "b").result(120) == "a/b"
        assert client.submit("os.path.join", "a").result(120) == "a"
        assert list(client.map(math.sqrt, [4.0])) == [2.0]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, NotRunning),
        (b"", FormatError),
        (b'{"format": "2.0"}', FormatError),
        (b"{}", FormatError),
    ],
)
def test_a_root_that_is_no_run_of_ours_is_refused_at_once(
    root: Path, content: bytes | None, error: type[Exception]
) -> None:
    manifest = root / layout.MANIFEST
    manifest.unlink()
    if content is not None:
        manifest.write_bytes(content)
    with pytest.raises(error, match=str(root)):
        Client(root)


@pytest.mark.parametrize(
    "option",
    [
        {"timeout": 0},
        {"no_worker_timeout": -1},
        {"batch_size": 0},
        {"outstanding": 0},
        {"stream": ""},
        {"stream": "x" * 300},
    ],
)
def test_options_that_make_no_sense_are_named(root: Path, option: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(option))):
        Client(root, **option)


# -- map


def test_map_keeps_the_order_over_many_batches(root: Path, worker: SmallWorker) -> None:
    with Client(root, batch_size=7) as client:
        assert list(client.map(FIRST, range(700))) == list(range(700))
    assert worker.calls[FIRST] == 700 and max(worker.sizes) <= 7


def test_map_sends_what_fits_without_being_asked_for_results(root: Path) -> None:
    worker = SmallWorker(root, FUNCTIONS)
    with Client(root) as client:
        results = client.map(FIRST, range(10))
        wait_until(worker.pending)
        with worker:
            client.shutdown()
            assert worker.calls[FIRST] == 10
        assert list(results) == list(range(10))


def test_map_takes_an_endless_input(root: Path, worker: SmallWorker) -> None:
    taken = 0

    def endless() -> Iterator[int]:
        nonlocal taken
        while True:
            taken += 1
            yield taken

    with Client(root, outstanding=10_000) as client:
        results = client.map(FIRST, endless())
        assert [next(results) for _ in range(9000)] == list(range(1, 9001))
        assert taken <= 9000 + 2 * 10_000
        results.close()  # type: ignore[attr-defined]
    assert not _files(root)


def test_map_of_nothing_is_empty(root: Path) -> None:
    with Client(root) as client:
        assert list(client.map(FIRST, [])) == []
        assert list(client.map(FIRST)) == []


def test_map_yields_what_is_there_while_the_rest_runs(root: Path) -> None:
    worker = SmallWorker(root, FUNCTIONS)
    with Client(root) as client:
        results = client.map(FIRST, range(2), chunksize=1)
        wait_until(lambda: len(worker.pending()) == 2)
        first = worker.pending()[0]
        mine, batch = worker.claim(first)
        worker.write(mine, worker.execute(mine, batch))
        worker.commit(mine)
        assert next(results) == 0
        worker.serve_once()
        assert list(results) == [1]


@pytest.mark.parametrize("how", ["timeout", "closed"])
def test_what_map_gives_up_is_cancelled(root: Path, how: str) -> None:
    worker = SmallWorker(root, FUNCTIONS)
    client = Client(root)
    results = client.map(FIRST, range(7), timeout=0.1 if how == "timeout" else None, chunksize=2)
    wait_until(lambda: len(worker.pending()) == 4)
    if how == "timeout":
        with pytest.raises(TimeoutError):
            next(results)
    else:
        mine, batch = worker.claim(worker.pending()[0])
        worker.write(mine, worker.execute(mine, batch))
        worker.commit(mine)
        assert next(results) == 0
        results.close()  # type: ignore[attr-defined]
    cancel = root / layout.CANCEL
    open_ = {token.batch for token in worker.pending()}
    wait_until(lambda: len(list(cancel.glob("[!.]*"))) == len(open_))
    asked = [CancelRequest.from_json(p.read_bytes(), p.name) for p in cancel.glob("[!.]*")]
    assert {(r.batch, r.tasks) for r in asked} == {(batch, ()) for batch in open_}
    with worker:
        client.shutdown()
    assert not list(cancel.glob("*"))
    assert not _files(root)


def test_chunksize_is_the_batch_size(root: Path, worker: SmallWorker) -> None:
    with Client(root) as client:
        assert list(client.map(FIRST, range(25), chunksize=10)) == list(range(25))
        with pytest.raises(ValueError):
            client.map(FIRST, [1], chunksize=0)
    assert sorted(worker.sizes) == [5, 10, 10]


# -- batches


def test_a_batch_of_only_arguments_has_a_form(root: Path, worker: SmallWorker) -> None:
    with Client(root) as client:
        assert list(client.map(FIRST, [1, [2], None])) == [1, [2], None]
        assert list(client.map(SECOND, [1], [2])) == [_second(1, 2)]
        assert client.submit(SECOND, 1, k=2).result(120) == _second(1, k=2)
        assert client.submit(SECOND, 1).result(120) == _second(1)
    assert [meta.get("form") for meta in worker.metas] == ["arg", None, None, "arg"]


def test_batches_go_round_the_shards(root: Path) -> None:
    worker = SmallWorker(root, FUNCTIONS)
    with Client(root, batch_size=1) as client:
        futures = [client.submit(FIRST, i) for i in range(8)]
        wait_until(lambda: len(worker.pending()) == 8)
        assert sorted(t.shard for t in worker.pending()) == [0] * 4 + [1] * 4
        worker.serve_once()
        assert [f.result(120) for f in futures] == list(range(8))


def test_what_goes_alone_goes_to_the_worker_that_answered_last(root: Path) -> None:
    worker = SmallWorker(root, FUNCTIONS)
    shards = []
    with Client(root) as client:
        for i, host in enumerate(["h1", "h1", "h0", "h0", "unknown"]):
            future = client.submit(FIRST, i)
            wait_until(worker.pending)
            (token,) = worker.pending()
            mine, batch = worker.claim(token)
            worker.write(mine, worker.execute(mine, batch), host=host)
            worker.commit(mine)
            assert future.result(120) == i
            shards.append(token.shard)
    assert shards[1:] == [1, 1, 0, 0]


def test_only_shards_that_somebody_serves_are_used(root: Path) -> None:
    (root / layout.inbox_dir(2)).mkdir()
    manifest = root / layout.MANIFEST
    manifest.write_bytes(manifest.read_bytes().replace(b'"shard_count": 2', b'"shard_count": 3'))
    worker = SmallWorker(root, FUNCTIONS)
    with Client(root, batch_size=1) as client:
        futures = [client.submit(FIRST, i) for i in range(6)]
        wait_until(lambda: len(worker.pending()) == 6)
        assert {t.shard for t in worker.pending()} == {0, 1}
        worker.serve_once()
        wait(futures, 10)


def test_a_batch_says_what_it_is(root: Path, worker: SmallWorker) -> None:
    with Client(root, stream="my stream/1", timeout=7.5) as client:
        client.submit(SECOND, 1).result(120)
        assert client.stream == "my stream/1"
    meta = worker.metas[0]
    assert (meta["fn"], meta["timeout"], meta["stream"]) == (SECOND, 7.5, "my stream/1")
    assert abs(meta["created"] - time.time()) < 60
    assert (root / layout.OUTBOX / layout.encode("my stream/1")).is_dir()


def test_a_burst_becomes_few_batches(root: Path, worker: SmallWorker) -> None:
    with Client(root) as client:
        before = sum(client.calls.values())
        futures = [client.submit(FIRST, i) for i in range(5000)]
        assert [f.result(120) for f in futures] == list(range(5000))
        assert sum(client.calls.values()) - before < 2500
    assert len(worker.sizes) < 250


def test_nothing_is_left_behind(root: Path, worker: SmallWorker) -> None:
    with Client(root) as client:
        list(client.map(FIRST, range(100)))
        client.submit(FIRST, 1).result(120)
    assert not _files(root) and not os.listdir(root / layout.OUTBOX)


# -- early results, several results, damage


def test_early_results_are_given_at_once_and_only_once(root: Path) -> None:
    worker = SmallWorker(root, FUNCTIONS)
    seen: list[Any] = []
    with Client(root) as client:
        futures = [client.submit(FIRST, i) for i in range(3)]
        for future in futures:
            future.add_done_callback(lambda f: seen.append(f.result()))
        wait_until(worker.pending)
        time.sleep(0.05)  # whatever was submitted together is there by now, in one batch or more
        claimed = [worker.claim(token) for token in worker.pending()]
        for mine, batch in claimed:
            records = worker.execute(mine, batch)
            worker.publish_part(mine, 0, records[:1])
        wait_until(lambda: futures[0].done())
        for mine, batch in claimed:
            # A later attempt may come to another value; the first one counts.
            worker.functions = {FIRST: lambda x: x + 100 if x == 0 else x}
            worker.write(mine, worker.execute(mine, batch))
            worker.commit(mine)
        assert [f.result(120) for f in futures] == [0, 1, 2]
    assert sorted(seen) == [0, 1, 2]
    assert not _files(root)


def test_map_takes_early_results(root: Path, worker: SmallWorker) -> None:
    worker.early = True
    with Client(root) as client:
        assert list(client.map(FIRST, range(60), chunksize=20)) == list(range(60))
    assert not _files(root)


def test_what_a_part_says_of_beginnings_is_not_a_result(root: Path) -> None:
    from fsworker.protocol import packing

    worker = SmallWorker(root, FUNCTIONS)
    with Client(root) as client:
        future = client.submit(FIRST, 1)
        mine, batch = worker.claim(wait_until(worker.pending)[0])
        worker.publish_part(mine, 0, [packing.pack(["started", 0])])
        time.sleep(0.1)
        assert not future.done()
        worker.write(mine, worker.execute(mine, batch))
        worker.commit(mine)
        assert future.result(120) == 1


def test_a_result_without_done_is_not_looked_at(root: Path) -> None:
    worker = SmallWorker(root, FUNCTIONS)
    with Client(root) as client:
        future = client.submit(FIRST, 1)
        mine, batch = worker.claim(wait_until(worker.pending)[0])
        worker.write(mine, worker.execute(mine, batch))
        time.sleep(0.2)
        assert not future.done()
        worker.commit(mine)
        assert future.result(120) == 1


def test_a_damaged_result_fails_its_tasks_by_name_and_is_kept(root: Path) -> None:
    worker = SmallWorker(root, FUNCTIONS)
    worker.spoil = lambda token, data: data[:-1]
    with Client(root) as client:
        futures = [client.submit(FIRST, i) for i in range(3)]
        with worker:
            for future in futures:
                error = future.exception(120)
                assert isinstance(error, TaskError) and error.status == "invalid"
                assert "is damaged" in str(error) and ".result" in str(error)
            worker.spoil = None
            assert client.submit(FIRST, 5).result(120) == 5
    kept = sorted(os.listdir(root / layout.QUARANTINE))
    assert kept and kept[0].endswith(".result") and kept[1] == kept[0] + ".reason.json"
    assert not _files(root)


def test_a_batch_that_arrived_damaged_fails_by_name(root: Path) -> None:
    worker = SmallWorker(root, FUNCTIONS)
    with Client(root) as client:
        future = client.submit(FIRST, 1)
        mine, _ = worker.claim(wait_until(worker.pending)[0])
        worker.write(mine, [], damaged="its checksum does not match")
        worker.commit(mine)
        with pytest.raises(TaskError, match="was damaged: its checksum does not match"):
            future.result(120)


def test_a_task_that_was_left_out_fails(root: Path) -> None:
    worker = SmallWorker(root, FUNCTIONS)
    with Client(root) as client:
        future = client.submit(FIRST, 1)
        mine, _ = worker.claim(wait_until(worker.pending)[0])
        worker.write(mine, [])
        worker.commit(mine)
        with pytest.raises(TaskError, match="without this task"):
            future.result(120)


def test_rows_that_make_no_sense_are_ignored(root: Path) -> None:
    from fsworker.protocol import packing

    worker = SmallWorker(root, FUNCTIONS)
    odd = [1, None, [], ["x"], [7, None, "ok", 1, 0], [-1, None, "ok", 1, 0], [None] * 5]
    with Client(root) as client:
        future = client.submit(FIRST, 1)
        mine, batch = worker.claim(wait_until(worker.pending)[0])
        good = worker.execute(mine, batch)
        worker.write(mine, [packing.pack(row) for row in odd] + good + good)
        worker.commit(mine)
        assert future.result(120) == 1
        results = client.map(FIRST, [5], chunksize=1)
        mine, batch = worker.claim(wait_until(worker.pending)[0])
        worker.write(mine, [packing.pack(row) for row in odd] + worker.execute(mine, batch))
        worker.commit(mine)
        assert list(results) == [5]


def test_a_result_that_the_storage_lost_fails_after_a_while(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsworker.client.delivery.MISSING_AFTER", 0.1)
    worker = SmallWorker(root, FUNCTIONS)
    with Client(root) as client:
        future = client.submit(FIRST, 1)
        mine, batch = worker.claim(wait_until(worker.pending)[0])
        worker.write(mine, worker.execute(mine, batch))
        os.unlink(root / layout.outcome(worker.owner, mine).result)
        worker.commit(mine)
        with pytest.raises(TaskError, match="is missing though it was committed"):
            future.result(120)


# -- nobody serves, storage refuses


def _hasten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsworker.client.liveness.LOOK_EVERY", 0.05)
    monkeypatch.setattr("fsworker.client.liveness.QUIET", 0.05)


def test_everything_fails_when_nobody_serves_the_run(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _hasten(monkeypatch)
    SmallWorker(root, FUNCTIONS).beat()  # a heartbeat of long ago is no life
    with Client(root, no_worker_timeout=0.3, batch_size=1) as client:
        futures = [client.submit(FIRST, i) for i in range(50)]
        with pytest.raises(NoWorkers, match=rf"no worker has served {root} for 0.3 s.*ctl status"):
            futures[0].result(120)
        assert all(isinstance(f.exception(120), NoWorkers) for f in futures)
        with pytest.raises(NoWorkers):
            next(client.map(FIRST, [1]))


def test_a_worker_that_only_beats_keeps_clients_waiting(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _hasten(monkeypatch)
    worker = SmallWorker(root, FUNCTIONS)
    with Client(root, no_worker_timeout=0.3) as client:
        future = client.submit(FIRST, 1)
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            worker.beat()
            time.sleep(0.02)
        assert not future.done()
        with worker:
            assert future.result(120) == 1


@pytest.mark.parametrize("fields", [{"refused": "no module named x"}, {"stopped": True}])
def test_workers_that_serve_nobody_do_not_count(
    root: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    _hasten(monkeypatch)
    worker = SmallWorker(root, FUNCTIONS)
    with Client(root, no_worker_timeout=0.5) as client:
        future = client.submit(FIRST, 1)

        def given_up() -> bool:
            worker.beat(**fields)
            return future.done()

        wait_until(given_up)
        with pytest.raises(NoWorkers, match=fields.get("refused", "no worker has served")):
            future.result(0)


def test_a_client_works_again_once_workers_are_back(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _hasten(monkeypatch)
    with Client(root, no_worker_timeout=0.2) as client:
        with pytest.raises(NoWorkers):
            client.submit(FIRST, 1).result(120)
        with SmallWorker(root, FUNCTIONS):
            assert client.submit(FIRST, 2).result(120) == 2
            # What was given up is executed all the same, and its result is cleared away.
            wait_until(lambda: not [f for f in _files(root) if f.startswith("inbox")])
            assert client.submit(FIRST, 3).result(120) == 3
    assert not _files(root)


def test_a_run_that_is_removed_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    _hasten(monkeypatch)
    with Client(root, no_worker_timeout=0.2) as client:
        pending = client.submit(FIRST, 1)
        wait_until(lambda: _files(root))
        shutil.rmtree(root)
        with pytest.raises(NoWorkers, match="is gone"):
            pending.result(120)
        with pytest.raises(NotRunning, match="was the run removed"):
            client.submit(FIRST, 1).result(120)


def test_a_disk_that_stays_full_fails_the_task_and_nothing_was_submitted(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one thing that cannot be had on request here: a file system that is full."""
    import errno

    real = Store.put
    monkeypatch.setattr("fsworker.client.sending.ROOM_PATIENCE", 0.1)

    def put(self: Store, rel: str, data: bytes, *, durable: bool = True) -> None:
        if rel.startswith(layout.INBOX):
            real(self, rel, data[:10], durable=durable)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), rel)
        real(self, rel, data, durable=durable)

    worker = SmallWorker(root, FUNCTIONS)
    with Client(root) as client:
        with monkeypatch.context() as patch:
            patch.setattr(Store, "put", put)
            with pytest.raises(StorageError, match=r"No space left.*free space"):
                client.submit(FIRST, 1).result(120)
        assert worker.pending() == []
        with worker:
            assert client.submit(FIRST, 2).result(120) == 2


# -- executor


def test_cancel_before_it_is_sent(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsworker.client.sending.AHEAD", 1)
    worker = SmallWorker(root, FUNCTIONS)
    with Client(root, batch_size=1) as client:
        futures = [client.submit(FIRST, i) for i in range(50)]
        wait_until(worker.pending)
        assert futures[-1].cancel() and not futures[0].cancel()
        with worker:
            assert [f.result(120) for f in futures[:-1]] == list(range(49))
    assert worker.calls[FIRST] == 49
    with pytest.raises(CancelledError):
        futures[-1].result(0)


def test_shutdown_waits_and_then_refuses(root: Path, worker: SmallWorker) -> None:
    client = Client(root)
    futures = [client.submit(FIRST, i) for i in range(10)]
    client.shutdown()
    assert all(f.done() for f in futures)
    for call in (lambda: client.submit(FIRST), lambda: client.map(FIRST, [1])):
        with pytest.raises(RuntimeError, match="after shutdown"):
            call()
    client.shutdown()
    unused = Client(root)
    unused.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        unused.submit(FIRST)


def test_shutdown_cancels_what_is_not_sent(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsworker.client.sending.AHEAD", 1)
    worker = SmallWorker(root, FUNCTIONS)
    client = Client(root, batch_size=1)
    futures = [client.submit(FIRST, i) for i in range(50)]
    wait_until(worker.pending)
    client.shutdown(wait=False, cancel_futures=True)
    with worker:
        client.shutdown()
    cancelled = [f for f in futures if f.cancelled()]
    assert len(cancelled) > 20 and all(f.done() for f in futures)
    assert worker.calls[FIRST] == 50 - len(cancelled)


def test_a_client_that_is_forgotten_answers_its_futures(root: Path, worker: SmallWorker) -> None:
    future = Client(root).submit(FIRST, 1)
    gc.collect()
    assert future.result(120) == 1
    results = Client(root, outstanding=5000).map(FIRST, range(20_000))
    gc.collect()
    assert sum(1 for _ in results) == 20_000
    del results
    gc.collect()
    wait_until(lambda: threading.active_count() == 2, what="the end of all threads but the worker")


def test_submit_waits_while_too_much_is_unanswered(root: Path) -> None:
    worker = SmallWorker(root, FUNCTIONS)
    with Client(root, outstanding=10) as client:
        submitted: list[Future[Any]] = []

        def submit_each() -> None:
            for i in range(30):
                submitted.append(client.submit(FIRST, i))

        thread = threading.Thread(target=submit_each)
        thread.start()
        wait_until(lambda: len(submitted) == 10)
        time.sleep(0.1)
        assert len(submitted) == 10
        with worker:
            thread.join(20)
            assert [f.result(120) for f in submitted] == list(range(30))


def test_a_callback_may_submit(root: Path, worker: SmallWorker) -> None:
    with Client(root, outstanding=1) as client:
        chained: Future[Any] = Future()
        first = client.submit(FIRST, 1)

        def follow(done: Future[Any]) -> None:
            client.submit(FIRST, done.result() + 1).add_done_callback(
                lambda f: chained.set_result(f.result())
            )

        first.add_done_callback(follow)
        assert chained.result(120) == 2


def test_many_threads_share_a_client(root: Path, worker: SmallWorker) -> None:
    with Client(root) as client:
        found: list[list[int]] = []

        def work(start: int) -> None:
            futures = [client.submit(FIRST, start + i) for i in range(200)]
            mapped = list(client.map(FIRST, range(start, start + 200)))
            found.append([f.result(120) for f in futures])
            assert mapped == found[-1] == list(range(start, start + 200)), "own results only"

        threads = [threading.Thread(target=work, args=(k * 1000,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert sorted(x[0] for x in found) == [0, 1000, 2000, 3000]


def test_nothing_is_started_before_the_first_task(root: Path) -> None:
    client = Client(root, stream="s")
    assert threading.active_count() == 1 and not os.listdir(root / layout.OUTBOX)
    client.shutdown()


def test_an_unexpected_failure_reaches_those_who_wait(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr("fsworker.client.delivery.Delivery.poll", broken)
    client = Client(root)
    future = client.submit(FIRST, 1)
    assert "a defect" in str(future.exception(120))
    with pytest.raises(fsworker.errors.FleetError, match="this client has failed"):
        client.submit(FIRST, 1)
    client.shutdown()


# -- fork, pickle, resume


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_client_survives_a_fork(root: Path, worker: SmallWorker) -> None:
    with Client(root) as client:
        assert client.submit(FIRST, 1).result(120) == 1  # its threads run
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                answers = [client.submit(FIRST, 7).result(120), *client.map(FIRST, [1, 2])]
                os.write(writing, repr((answers, client.stream)).encode())
                client.shutdown()
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            told = pipe.read()
        os.waitpid(pid, 0)
        assert told.startswith("([7, 1, 2], 'client-") and str(client.stream) not in told
        assert client.submit(FIRST, 2).result(120) == 2


def test_a_client_survives_pickling(root: Path, worker: SmallWorker) -> None:
    code = (
        "import pickle, sys\n"
        "with pickle.load(sys.stdin.buffer) as client:\n"
        "    print(client.submit(None, 7).result(120)[0], client.stream)\n"
    )
    with Client(root, fn=SECOND, stream="s", timeout=5) as client:
        assert client.submit(FIRST, 1).result(120) == 1
        argv = [sys.executable, "-c", code]
        told = subprocess.run(argv, input=pickle.dumps(client), capture_output=True, check=True)
        assert told.stdout == b"[7] s\n"
        assert client.submit(FIRST, 2).result(120) == 2
    assert worker.metas[-2]["timeout"] == 5


def _leave_results(root: Path, stream: str, count: int) -> None:
    """What a client leaves that died after it had sent `count` tasks."""
    pid = os.fork()
    if pid == 0:
        try:
            client = Client(root, stream=stream)
            for i in range(count):
                client.submit(SECOND, "bad" if i == 1 else i)
            client._running().flush(10)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def test_a_stream_is_resumed_by_its_name(root: Path) -> None:
    _leave_results(root, "trainer-7", 3)
    with SmallWorker(root, FUNCTIONS) as worker:
        wait_until(lambda: worker.calls[SECOND] == 3)
        with Client(root, stream="trainer-7") as client:
            # Results of the dead client are neither taken for its own nor thrown away.
            assert client.submit(FIRST, "new").result(120) == "new"
            found = list(client.recover())
            assert list(client.recover()) == []
        assert len(found) == 3
        assert [str(r.error) for r in found if r.error] == ["ValueError: plainly wrong"]
        assert sorted(r.value[0] for r in found if r.error is None) == [[0], [2]]
    assert not _files(root)


def test_recovering_is_interrupted_and_goes_on(root: Path) -> None:
    _leave_results(root, "s", 1)
    worker = SmallWorker(root, FUNCTIONS)
    worker.serve_once()
    client = Client(root, stream="s")
    first = next(client.recover())  # dies before it asks for more
    again = list(client.recover())
    assert [(r.batch, r.index) for r in again] == [(first.batch, first.index)]
    with pytest.raises(UsageError, match="stream"):
        Client(root).recover()


def test_two_clients_of_one_stream_keep_to_their_own(root: Path, worker: SmallWorker) -> None:
    with Client(root, stream="s") as one, Client(root, stream="s") as two:
        left = [one.submit(FIRST, ("one", i)) for i in range(100)]
        right = [two.submit(FIRST, ("two", i)) for i in range(100)]
        assert [f.result(120) for f in left] == [("one", i) for i in range(100)]
        assert [f.result(120) for f in right] == [("two", i) for i in range(100)]


def test_the_package_exports_the_client() -> None:
    assert fsworker.Client is client_module.Client


def test_a_token_of_a_client_parses(root: Path) -> None:
    """Names with dashes and odd characters must come back as the stream they name."""
    worker = SmallWorker(root, FUNCTIONS)
    with Client(root, stream="a-b-0123456789ab-1 /ü") as client:
        future = client.submit(FIRST, 1)
        token: Token = wait_until(worker.pending)[0]
        assert layout.decode(token.stream) == "a-b-0123456789ab-1 /ü"
        worker.serve_once()
        assert future.result(120) == 1
    assert segment.MAX_BYTES > 0
