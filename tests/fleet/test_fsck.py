"""`ctl fsck`, `dead` and `quarantine` on roots that real workers and clients use."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ctl import auditing, roots
from fsworker import Client
from fsworker.errors import NoWorkers
from fsworker.protocol import layout
from tests.support.waiting import Spawned, wait_until
from tests.support.workers import MODULE, REPO, Root, start_worker

pytestmark = pytest.mark.fleet

ECHO, KILLER = f"{MODULE}:echo", f"{MODULE}:kill_worker"


@pytest.fixture
def spawned() -> Iterator[Spawned]:
    with Spawned(f"SHARDFLEET_TEST={uuid.uuid4().hex}") as found:
        yield found


def _ctl(root: Root, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "ctl", *words, "--root", str(root.path)]
    return subprocess.run(argv, cwd=REPO, capture_output=True, text=True, timeout=240, check=False)


@contextmanager
def _silent(total: int) -> Iterator[Callable[[int], None]]:
    yield lambda done: None


def _fsck(root: Root, *words: str) -> tuple[int, dict[str, Any]]:
    done = _ctl(root, "fsck", "--json", *words)
    assert done.returncode in (0, 1), done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, value


def test_a_live_root_is_never_accused(spawned: Spawned, tmp_path: Path) -> None:
    root = Root(tmp_path / "run", functions=["echo", "sleep"], shards=2)
    workers = {h: start_worker(spawned, root, host=h, shard=i) for i, h in enumerate(("n0", "n1"))}
    answers: list[Any] = []

    def traffic() -> None:
        with Client(root.path, stream="trainer", batch_size=4) as client:
            for _ in range(3):
                answers.extend(client.map(ECHO, range(600), chunksize=2))
            answers.extend(client.map(f"{MODULE}:sleep", [0.02] * 200, chunksize=4))

    sender = threading.Thread(target=traffic)
    sender.start()
    run, audits, seen = roots.open_run(str(root.path)), 0, 0
    while sender.is_alive():
        found = auditing.audit_run(run, quick=False, progress=_silent)
        assert found.damage == []
        audits += 1
        seen += len(found.seen.places)
        if audits == 20:
            workers["n1"].kill()
            workers["n1"].wait()
            start_worker(spawned, root, host="n1", shard=1, ready=False)
            code, told = _fsck(root)
            assert (code, told["damage"], told["live"]) == (0, [], True), told
    sender.join()
    assert len(answers) == 3 * 600 + 200 and audits > 20 and seen > 0
    code, told = _fsck(root)
    assert (code, told["streams"], told["batches"]["pending"]) == (0, [], 0)


def test_repair_of_a_live_root_leaves_the_living_alone(spawned: Spawned, tmp_path: Path) -> None:
    root = Root(tmp_path / "run", functions=["echo", "sleep"], shards=2)
    start_worker(spawned, root)
    running = root.submit([[1.5], [1.5]], fn="sleep")
    wait_until(lambda: any(root.claims().values()), what="claimed")
    bad = root.submit([[1]], raw=b"\x89SFL but no more", shard=1)
    # Whoever comes first, its worker or the repair: once, and with an answer.
    code, found = _fsck(root, "--repair")
    assert (code, found["damage"]) == (0, []), found
    assert root.results(bad)[0][2] == "invalid"
    assert [r[2] for r in root.results(running)] == ["ok", "ok"]
    assert len([n for n in root.store.scan("quarantine") if n.endswith(".json")]) == 1


def test_damage_is_told_repaired_and_kept_as_evidence(tmp_path: Path) -> None:
    root = Root(tmp_path / "run", functions=["echo"])
    good, bad = root.submit([["a"]]), root.submit([["b"]], raw=b"\x1b[31mrubbish")
    done = _ctl(root, "fsck")
    assert done.returncode == 1 and "damage: 1" in done.stdout and bad in done.stdout
    done = _ctl(root, "fsck", "--repair")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"repaired inbox/0/{bad}.0.0: its file is kept as quarantine/{bad}.1" in done.stdout
    assert "clean" in done.stdout and "quarantine: 1" in done.stdout
    assert [t.batch for t in root.inbox()] == [good]
    assert root.results(bad)[0][3]["type"] == "DamagedBatch"

    (row,) = json.loads(_ctl(root, "quarantine", "list", "--json").stdout)["quarantine"]
    assert row["name"] == f"{bad}.1" and row["age_s"] < 100
    assert f"{bad}.1" in _ctl(root, "quarantine", "list").stdout
    shown = _ctl(root, "quarantine", "show", row["name"])
    assert shown.returncode == 0 and "does not begin as a data file" in shown.stdout
    assert "1b 5b 33 31 6d" in shown.stdout and "\x1b" not in shown.stdout
    done = _ctl(root, "quarantine", "show", "../manifest.json")
    assert (done.returncode, done.stdout) == (2, "") and "there is no" in done.stderr


def test_what_a_client_gave_up_adds_up_and_a_file_taken_away_does_not(tmp_path: Path) -> None:
    root = Root(tmp_path / "run", functions=["echo"])
    client = Client(root.path, stream="trainer", no_worker_timeout=3.0)
    with client, pytest.raises(NoWorkers):
        list(client.map(ECHO, range(6), chunksize=2))
    code, found = _fsck(root)
    (row,) = found["streams"]
    assert (code, row["source"], row["read"], row["submitted"]) == (0, "client", 0, 3)
    (root.path / layout.inbox_path(root.inbox()[0])).unlink()
    code, found = _fsck(root)
    assert (code, [d["kind"] for d in found["damage"]]) == (1, ["lost"])
    assert "3 were submitted, 0 are read, 2 are here: 1 are lost" in found["damage"][0]["words"]


def test_results_that_come_after_all_are_counted_when_they_are_recovered(
    spawned: Spawned, tmp_path: Path
) -> None:
    root = Root(tmp_path / "run", functions=["echo"])
    client = Client(root.path, stream="trainer", no_worker_timeout=3.0)
    with client, pytest.raises(NoWorkers):
        list(client.map(ECHO, range(6), chunksize=2))
    start_worker(spawned, root)
    wait_until(lambda: _done(root) == 3, what="committed")
    with Client(root.path, stream="trainer") as client:
        rest = client.recover()
        next(rest)
        code, found = _fsck(root)
        assert code == 0, found
        assert len(list(rest)) == 5
    assert _fsck(root)[0] == 0


def test_given_up_tasks_are_listed_shown_retried_and_dropped(
    spawned: Spawned, tmp_path: Path
) -> None:
    root = Root(tmp_path / "run", functions=["echo", "kill_worker"], max_deaths=1)
    batch = root.submit([[0], [2], [3]], fn="kill_worker")  # 2 kills its worker
    _serve(spawned, root, lambda: root.collect(batch) is not None)
    (row,) = json.loads(_ctl(root, "dead", "list", "--json").stdout)["dead"]
    assert row["name"] == batch and [t["task"] for t in row["reason"]["tasks"]] == [1]
    assert batch in _ctl(root, "dead", "list").stdout
    shown = json.loads(_ctl(root, "dead", "show", batch, "--json").stdout)
    assert shown["meta"]["fn"] == KILLER
    assert [(t["id"], t["given_up"], t["task"]["args"]) for t in shown["tasks"]] == [
        ("t0", False, [0]),
        ("t1", True, [2]),
        ("t2", False, [3]),
    ]
    assert "given up" in _ctl(root, "dead", "show", batch).stdout
    assert _ctl(root, "dead", "retry").returncode == 2

    done = json.loads(_ctl(root, "dead", "retry", batch, "--json").stdout)
    (retried,) = done["retried"]
    assert (retried["tasks"], retried["batches"]) == (1, [batch])
    assert root.store.scan("dead") == [] and root.inbox()[0].deaths == 1
    assert _fsck(root)[0] == 0
    # It kills again: it is given up again, and its result says so.
    _serve(spawned, root, lambda: root.store.scan("dead"))
    out = tmp_path / "out.jsonl"
    done = _ctl(root, "results", retried["stream"], "-o", str(out), "--no-worker-timeout", "0")
    (line,) = [json.loads(text) for text in out.read_text().splitlines()]
    assert (done.returncode, line["id"], line["status"]) == (1, "t1", "worker died")
    code, found = _fsck(root)
    assert (code, found["dead"]) == (0, 1)
    assert _ctl(root, "dead", "drop", "--all").returncode == 0
    assert root.store.scan("dead") == []
    assert "no batch was given up" in _ctl(root, "dead", "list").stdout


def _done(root: Root) -> int:
    return sum(name.endswith(".done") for name in root.store.scan("outbox/trainer"))


def _serve(spawned: Spawned, root: Root, over: Any) -> None:
    """Keep a worker alive, as its wrapper would, until `over`; then stop it."""
    worker = start_worker(spawned, root)
    end = time.monotonic() + 240
    while not over():
        assert time.monotonic() < end, "it is not over"
        if worker.poll() is not None:
            worker = start_worker(spawned, root, ready=False)
        time.sleep(0.02)
    worker.terminate()
    worker.wait(120)
