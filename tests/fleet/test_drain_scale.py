"""Hosts out of a live run and into it, and all anew: under traffic, and nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fsworker.client import Client
from fsworker.protocol import layout, ledger
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Owner
from tests.support.ctlrun import ECHO, Ctl, beats
from tests.support.waiting import Spawned, gone, kill_at_once, wait_until
from tests.support.workers import REPO, Root, log_of

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(600)]

NOTE = "tests.support.client_functions:note"


@pytest.fixture
def ctl(tmp_path: Path) -> Iterator[Ctl]:
    with Ctl(tmp_path) as calls:
        yield calls


@pytest.fixture
def spawned() -> Iterator[Spawned]:
    with Spawned(f"SHARDFLEET_TEST={uuid.uuid4().hex}") as found:
        yield found


def run_of(ctl: Ctl, hosts: str, *more: str) -> Path:
    root = ctl.runs / "run"
    ctl.start(root, "--hosts", hosts, "--fn", NOTE, *more)
    return root


def states(ctl: Ctl, root: Path) -> dict[str, str]:
    return {h["host"]: h["state"] for h in ctl.status(root)["hosts"]}


def busy_first(root: Path) -> list[str]:
    """Both hosts, the one that works first."""

    def look() -> list[str] | None:
        busy = {host: beat["slots_busy"] for host, beat in beats(root).items()}
        return sorted(busy, key=busy.__getitem__, reverse=True) if any(busy.values()) else None

    return wait_until(look, what="one works") or []


def lines(path: Path) -> list[int]:
    return sorted(map(int, path.read_text().split())) if path.exists() else []


class Traffic:
    """A client that sends small tasks until it is told to stop."""

    def __init__(self, root: Path, notes: Path) -> None:
        self.client = Client(root)
        self.futures: list[Future[Any]] = []
        self._root, self._notes = root, notes
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send)

    def _send(self) -> None:
        while not self._stop.is_set():
            number = len(self.futures)
            self.futures.append(self.client.submit(NOTE, str(self._notes), number, 0.02))
            time.sleep(0.02)

    def check(self) -> None:
        """Every task has its one result, and was executed."""
        self._stop.set()
        self._thread.join()
        assert [f.result(120) for f in self.futures] == list(range(len(self.futures)))
        assert len(self.futures) > 50
        assert sorted(set(lines(self._notes))) == list(range(len(self.futures)))

    @contextmanager
    def flowing(self) -> Iterator[None]:
        self._thread.start()
        try:
            wait_until(lambda: any(f.done() for f in self.futures), what="the first result")
            yield
        finally:
            self._stop.set()
            self._thread.join()
            self.client.shutdown(wait=False, cancel_futures=True)


def test_a_drained_host_finishes_what_runs_and_others_serve_its_shard(
    ctl: Ctl, tmp_path: Path
) -> None:
    root = run_of(ctl, "n[0-1]")
    notes = tmp_path / "notes"
    with Client(root, batch_size=1) as client:
        # Longer than a stop would let it run.
        slow = client.submit(NOTE, str(notes), 0, 14.0)
        out, stay = busy_first(root)
        drain = ctl.popen("drain", out, "--root", str(root))
        wait_until(lambda: beats(root)[out]["draining"], what="it drains")
        assert states(ctl, root) == {out: "draining", stay: "ready"}
        quick = [client.submit(NOTE, str(notes), 10 + i) for i in range(20)]
        assert drain.wait(120) == 0
        assert drain.stdout and f"drained host={out}" in drain.stdout.read().decode()
        # Both shards are served by the other one.
        assert [f.result(120) for f in quick] == [10 + i for i in range(20)]
        assert slow.result(120) == 0
        more = [client.submit(NOTE, str(notes), 100 + i) for i in range(20)]
        assert [f.result(120) for f in more] == [100 + i for i in range(20)]
    assert lines(notes) == [0, *range(10, 30), *range(100, 120)]  # none was run twice
    assert states(ctl, root) == {out: "stopped", stay: "ready"}
    assert not (root / f"ctl/{out}.drain").exists()
    watch = ctl("watch", "--once", "--root", str(root))
    assert (watch.returncode, watch.stdout.count("restart")) == (0, 0), watch.stdout
    assert states(ctl, root)[out] == "stopped"
    assert ctl("restart-host", out, "--root", str(root)).returncode == 0
    assert states(ctl, root) == {"n0": "ready", "n1": "ready"}
    assert ctl("stop", "--root", str(root)).returncode == 0


def test_what_outlasts_the_patience_runs_elsewhere(ctl: Ctl, tmp_path: Path) -> None:
    root = run_of(ctl, "n[0-1]", "--shard-count", "1")
    notes = tmp_path / "notes"
    with Client(root) as client:
        slow = client.submit(NOTE, str(notes), 1, 6.0)
        done = ctl("drain", busy_first(root)[0], "--timeout", "1s", "--root", str(root))
        assert done.returncode == 0, done.stderr
        assert slow.result(120) == 1
    assert lines(notes) == [1]
    wrong = ctl("drain", "x7", "--root", str(root))
    assert (wrong.returncode, wrong.stderr) == (
        2, "ctl: host 'x7' is not of this run, which has n0, n1\n",
    )  # fmt: skip


def test_hosts_join_and_leave_under_traffic(ctl: Ctl, tmp_path: Path) -> None:
    root = run_of(ctl, "n[0-1]")
    manifest = (root / "manifest.json").read_bytes()
    traffic = Traffic(root, tmp_path / "notes")
    with traffic.flowing():
        join = ctl("scale", "--add", "n2:1", "--add", "n3", "--root", str(root))
        assert join.returncode == 0, join.stderr
        assert sorted(states(ctl, root)) == ["n0", "n1", "n2", "n3"]
        shards = {h["host"]: h["shard"] for h in ctl.status(root)["hosts"]}
        assert shards == {"n0": 0, "n1": 1, "n2": 1, "n3": 0}
        pids = {host: beat["pid"] for host, beat in beats(root).items()}
        # Those that were there at the start go; the others have to serve all.
        leave = ctl("scale", "--hosts", "n[2-3]", "--root", str(root))
        assert leave.returncode == 0, leave.stderr
        assert gone(pids["n0"]) and gone(pids["n1"])
        assert states(ctl, root) == {"n2": "ready", "n3": "ready"}
        assert sorted(beats(root)) == ["n2", "n3"]
        only = ctl("scale", "--remove", "n3", "--root", str(root))
        assert only.returncode == 0, only.stderr
        assert ctl("status", "--root", str(root)).returncode == 0  # one host, and it is enough
        traffic.check()
    assert (root / "manifest.json").read_bytes() == manifest
    refused = ctl("scale", "--remove", "n2", "--root", str(root))
    assert refused.returncode == 2 and "no host would be left" in refused.stderr
    stop = ctl("stop", "--root", str(root))
    assert (stop.returncode, stop.stdout.splitlines()) == (0, ["stopped host=n2"])
    assert os.listdir(root / "claims") == []


def test_a_watcher_looks_after_hosts_that_join_and_not_after_those_that_left(ctl: Ctl) -> None:
    root = run_of(ctl, "n[0-1]")
    ctl.popen("watch", "--root", str(root), "--interval", "0.5s", "--heartbeat-stale", "6s")
    wait_until(lambda: (root / "ctl/watch.pid").exists(), what="it watches")
    done = ctl("scale", "--add", "n2", "--remove", "n0", "--root", str(root))
    assert done.returncode == 0, done.stderr
    before = beats(root)["n2"]
    kill_at_once(*(int((root / "ctl" / n).read_text()) for n in ("n2.wrap.pid", "n2.pid")))

    def healed() -> bool:
        beat = beats(root)["n2"]
        return bool(beat["ready"]) and beat["incarnation"] != before["incarnation"]

    wait_until(healed, what="n2 is started again")
    assert sorted(beats(root)) == ["n1", "n2"]
    assert not (root / "ctl/n0.pid").exists()
    assert "restart n0" not in (root / "ctl/watch.log").read_text()
    assert ctl("stop", "--root", str(root)).returncode == 0


def run_of_a_file(ctl: Ctl, hosts: str) -> tuple[Path, dict[str, str], Path]:
    """A run whose function lies in a file of its own: (root, environment for `ctl`, the file)."""
    file = ctl.folder / "code" / "own_grader.py"
    file.parent.mkdir()
    file.write_text("def grade(x):\n    return x\n")
    env = {"PYTHONPATH": f"{file.parent}:{REPO}"}
    root = ctl.runs / "run"
    ctl.start(root, "--hosts", hosts, "--fn", "own_grader:grade", **env)
    return root, env, file


def test_a_host_that_does_not_get_ready_does_not_join(ctl: Ctl) -> None:
    root, env, file = run_of_a_file(ctl, "n0")
    file.write_text("def grade(x:\n")
    failed = ctl("scale", "--add", "n1", "--root", str(root), **env)
    assert failed.returncode == 5 and "SyntaxError" in failed.stderr
    assert states(ctl, root) == {"n0": "ready"}
    after = json.loads((root / "ctl/launch_meta.json").read_bytes())
    assert [w["host"] for w in after["workers"]] == ["n0"]
    assert after["launches"] == {"n0": 1, "n1": 1}


def test_only_allowed_hosts_join(ctl: Ctl) -> None:
    root = run_of(ctl, "n0")
    done = ctl("scale", "--add", "n5", "--root", str(root), FLEET_HOSTS="n0,n1")
    assert done.returncode == 5
    assert "'n5' is not among the allowed hosts" in done.stderr


def test_a_rolling_restart_leaves_no_gap(ctl: Ctl, tmp_path: Path) -> None:
    root = run_of(ctl, "n[0-1]")
    before = {host: beat["incarnation"] for host, beat in beats(root).items()}
    traffic = Traffic(root, tmp_path / "notes")
    unserved: list[float] = []
    over = threading.Event()

    def guard() -> None:
        while not over.is_set():
            try:
                ready = [h for h, b in beats(root).items() if b["ready"] and not b["stopped"]]
            except FileNotFoundError:
                continue
            if not ready:
                unserved.append(time.monotonic())
            time.sleep(0.05)

    watcher = threading.Thread(target=guard)
    with traffic.flowing():
        watcher.start()
        done = ctl("restart", "--rolling", "--root", str(root))
        over.set()
        watcher.join()
        assert done.returncode == 0, done.stderr
        assert "restarted 2 hosts" in done.stdout
        traffic.check()
    assert unserved == []
    after = {host: beat["incarnation"] for host, beat in beats(root).items()}
    assert after.keys() == before.keys() and not set(after.values()) & set(before.values())
    assert states(ctl, root) == {"n0": "ready", "n1": "ready"}
    assert len(lines(tmp_path / "notes")) == len(traffic.futures)  # none was run twice


def test_a_rolling_restart_ends_at_the_first_failure(ctl: Ctl) -> None:
    root, env, file = run_of_a_file(ctl, "n[0-1]")
    other = beats(root)["n1"]["incarnation"]

    def untouched() -> bool:
        return states(ctl, root)["n1"] == "ready" and beats(root)["n1"]["incarnation"] == other

    file.write_text("def grade(x:\n")
    done = ctl("restart", "--rolling", "--root", str(root), **env)
    assert done.returncode == 5, done.stderr
    sentence = done.stderr.splitlines()[-1]
    assert sentence.startswith("ctl: the restart ends at n0: host n0: ")
    assert "SyntaxError" in sentence
    assert sentence.endswith("restarted before: none; not touched: n1")
    wait_until(untouched)
    plain = ctl("restart", "--root", str(root))
    assert plain.returncode == 2 and "--rolling" in plain.stderr
    # With nobody else to serve the run, the next one is not taken down either.
    again = ctl("restart", "--rolling", "--ready-timeout", "100s", "--root", str(root), **env)
    assert again.returncode == 5
    wait_until(untouched)


def test_an_idle_worker_returns_what_a_life_left_that_is_over(
    spawned: Spawned, tmp_path: Path
) -> None:
    root = Root(tmp_path / "root", functions=("echo", "sleep"), shards=1)
    # A worker of another host is killed, and its next life cannot start: nobody watches.
    held = root.submit([[7]], fn="echo")
    dead = Owner("n1", "0" * 12)
    root.store.run(ledger.enlist(dead))
    assert root.store.run(ledger.claim(dead, root.inbox()[0]))
    current = Owner("n2", "2" * 12)
    kept = root.submit([[8]], fn="echo")
    root.store.run(ledger.enlist(current))
    assert root.store.run(ledger.claim(current, root.inbox()[0]))
    _beat(root.store, "n1", "1" * 12, refused="its function cannot be imported")
    _beat(root.store, "n2", "2" * 12, ready=True)
    code = (
        "import sys; from fsworker import cli; from fsworker.loop import orphans; "
        "orphans.LOOK_EVERY = 0.5; "
        "orphans.OVER_FOR = 1.0; orphans.SUCCESSOR_PATIENCE = 2.0; sys.exit(cli.main())"
    )
    argv = [sys.executable, "-c", code, "run", "--root", str(root.path), "--shard", "0"]
    with open(f"{root.path}.n0.out", "ab") as log:
        worker = spawned.start(
            [*argv, "--host", "n0", "--concurrency", "1"],
            env={"PYTHONPATH": REPO}, stdout=log, stderr=log,
        )  # fmt: skip
    assert root.results(held)[0][2:4] == ["ok", 7]
    assert root.kept[held].meta["attempt"] == 2
    assert dead.name not in root.claims()
    assert "whose life is over" in log_of(root)
    seq = wait_until(root.beat, what="a beat").seq
    wait_until(lambda: (b := root.beat()) and b.seq > seq + 2, what="some more looks")
    assert root.claims()[current.name] != []  # a current life, however silent
    assert root.collect(kept) is None
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(120) == 0


def _beat(store: Store, host: str, incarnation: str, **fields: Any) -> None:
    from fsworker.protocol.records.run import Heartbeat

    beat = Heartbeat(host, 1, incarnation, 1, time.time(), **fields)
    store.publish(layout.status_path(host), beat.to_json())


def test_tasks_are_cancelled_by_the_names_that_people_see(ctl: Ctl, tmp_path: Path) -> None:
    root = run_of(ctl, "n0")
    notes = str(tmp_path / "notes")
    rows = [{"id": "quick", "args": [notes, 1]}, {"id": "slow", "args": [notes, 2, 600.0]}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    many = [{"id": f"m{i}", "args": [notes, 10 + i, 600.0]} for i in range(5)]
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in many))
    submit = ("submit", "--root", str(root), "--fn", NOTE)
    assert ctl(*submit, "--tasks", str(tmp_path / "a.jsonl"), "--stream", "a").returncode == 0
    wait_until(lambda: beats(root)["n0"]["slots_busy"], what="it runs")
    assert ctl(*submit, "--tasks", str(tmp_path / "b.jsonl"), "--stream", "b",
               "--batch-size", "1").returncode == 0  # fmt: skip
    missing = ctl("cancel", "nobody", "--root", str(root))
    assert missing.returncode == 1 and "nothing of 'nobody' waits or runs" in missing.stderr
    one = ctl("cancel", "slow", "m3", "--root", str(root))
    assert one.returncode == 0, one.stderr
    out = tmp_path / "a.out"
    results = ctl("results", "a", "--root", str(root), "-o", str(out), "--timeout", "60")
    assert results.returncode == 1, results.stderr
    told = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["id"], row["status"]) for row in told] == [("quick", "ok"), ("slow", "cancelled")]
    all_of_it = ctl("cancel", "b", "--wait", "--root", str(root))
    assert all_of_it.returncode == 0, all_of_it.stderr
    assert ctl("results", "b", "--root", str(root), "-o", str(out.with_suffix(".b")),
               "--timeout", "60").returncode == 1  # fmt: skip
    told = [json.loads(line) for line in out.with_suffix(".b").read_text().splitlines()]
    assert {row["status"] for row in told} == {"cancelled"}
    assert lines(tmp_path / "notes") == [1]
    assert os.listdir(root / "ctl/cancel") == []
    # The stream's name is not cursed: what comes later under it runs.
    with Client(root, stream="b") as client:
        assert client.submit(ECHO, 5).result(120) == 5
    assert ctl("stop", "--root", str(root)).returncode == 0
