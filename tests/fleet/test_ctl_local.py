"""The verbs on real workers, by the local launcher."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsworker.protocol import layout
from tests.support.ctlrun import ECHO, Ctl, beats, json_lines, started
from tests.support.waiting import gone, kill_at_once, wait_until, with_environ

pytestmark = pytest.mark.fleet


@pytest.fixture
def ctl(tmp_path: Path) -> Iterator[Ctl]:
    with Ctl(tmp_path) as calls:
        yield calls


def pids_of(root: Path, *hosts: str) -> list[int]:
    """The pids of wrappers and workers, as the pid files have them."""
    names = [f"{h}.{s}" for h in hosts for s in ("pid", "wrap.pid")]
    return [int((root / "ctl" / name).read_text()) for name in names]


def test_a_run_from_start_to_cleanup(ctl: Ctl) -> None:
    root = ctl.runs / "run"
    first = ctl("start", "--root", str(root), "--fn", ECHO, "--hosts", "n[1-2]")
    assert first.returncode == 0, first.stderr
    assert [line["phase"] for line in json_lines(first.stdout)] == ["manifest", "ready"]
    rows = started(first.stdout)
    assert sorted(rows) == ["n1", "n2"]
    pids = pids_of(root, "n1", "n2")
    said = [int(rows[h][k]) for h in ("n1", "n2") for k in ("worker_pid", "wrap_pid")]
    assert said == pids
    assert not any(map(gone, pids))

    status = ctl("status")  # no --root: the current run
    assert status.returncode == 0
    assert [(h["host"], h["reason"]) for h in json_lines(status.stdout)[1:]] == [
        ("n1", "ok"), ("n2", "ok"),
    ]  # fmt: skip

    refused = ctl("cleanup", "--root", str(root))
    assert (refused.returncode, root.is_dir()) == (5, True)

    stop = ctl("stop")
    assert (stop.returncode, stop.stderr) == (0, "")
    assert f"stopping {root} (from {ctl.ws}/tmp/shardfleet-current.json)" in stop.stdout
    assert all(map(gone, pids))
    assert ctl("status").returncode == 3
    assert not [n for n in os.listdir(root / "ctl") if n.endswith(".pid")]

    cleanup = ctl("cleanup")
    assert (cleanup.returncode, root.exists()) == (0, False)
    assert cleanup.stdout.splitlines()[-1] == f"removed {root}"
    again = ctl("cleanup", "--root", str(root))
    assert (again.returncode, again.stdout) == (0, f"missing {root}\n")
    assert ctl("status").returncode == 3


def test_a_live_root_is_refused_and_replaced_when_asked(ctl: Ctl) -> None:
    root = ctl.runs / "run"
    ctl.start(root)
    before = pids_of(root, "localhost")
    refused = ctl("start", "--root", str(root), "--fn", ECHO)
    assert refused.returncode == 5
    assert "is live" in refused.stderr
    assert not any(map(gone, before))
    lines = ctl.start(root, "--replace")
    assert all(map(gone, before))
    assert lines[0]["launches"] == {"localhost": 2}
    assert ctl.status(root)["state"] == "running"


def test_a_second_start_keeps_run_id_and_numbers_its_launches(ctl: Ctl) -> None:
    root = ctl.runs / "run"
    first = ctl.start(root)
    assert ctl("stop").returncode == 0
    second = ctl.start(root)
    assert second[0]["run_id"] == first[0]["run_id"]
    assert second[0]["launches"] == {"localhost": 2}


def test_stop_with_nothing_running_does_not_poison_the_next_start(ctl: Ctl) -> None:
    root = ctl.runs / "run"
    ctl.start(root)
    assert ctl("stop").returncode == 0
    idle = ctl("stop")
    assert (idle.returncode, idle.stdout.splitlines()[-1]) == (0, f"not running: {root}")
    assert (root / "ctl" / "localhost.stop").read_text() == "1\n"
    ctl.start(root)
    assert ctl.status(root)["state"] == "running"


def test_stop_while_the_wrapper_sleeps_between_two_lives(ctl: Ctl) -> None:
    root = ctl.runs / "run"
    ctl.start(root)
    worker, wrapper = pids_of(root, "localhost")
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: not (root / "ctl" / "localhost.pid").exists(), what="the worker's burial")
    assert not gone(wrapper)
    stop = ctl("stop")
    assert stop.returncode == 0, stop.stderr
    assert "stopped host=localhost" in stop.stdout
    assert gone(wrapper)
    assert with_environ(ctl.entry) == []


def test_stop_ends_the_processes_of_its_own_run_only(ctl: Ctl) -> None:
    roots = [ctl.runs / "run1", ctl.runs / "run10"]
    for root in roots:
        ctl.start(root, "--hosts", "n1")
    log = roots[0] / "ctl" / "n1.log"
    tail = ctl.spawned.start(["tail", "-f", str(log)], stdout=subprocess.DEVNULL)
    mine, other = pids_of(roots[0], "n1"), pids_of(roots[1], "n1")
    assert ctl("stop", "--root", str(roots[0])).returncode == 0
    assert all(map(gone, mine))
    assert not any(map(gone, [*other, tail.pid]))
    assert ctl.status(roots[1])["state"] == "running"
    tail.kill()


def test_nothing_is_killed_unless_that_was_asked_for(ctl: Ctl) -> None:
    root = ctl.runs / "run"
    ctl.start(root)
    worker, wrapper = pids_of(root, "localhost")
    os.kill(worker, signal.SIGSTOP)
    gentle = ctl("stop", "--grace", "1")
    assert gentle.returncode == 1
    assert f"worker {worker}" in gentle.stderr
    assert not gone(worker)
    firm = ctl("stop", "--grace", "0.5", "--kill-after", "10")
    assert firm.returncode == 0, firm.stderr
    assert gone(worker) and gone(wrapper)


def test_claims_of_a_killed_worker_return_with_their_deaths_unchanged(ctl: Ctl) -> None:
    root = ctl.runs / "run"
    ctl.start(root)
    worker, _ = pids_of(root, "localhost")
    os.kill(worker, signal.SIGSTOP)
    (owner,) = map(layout.parse_owner, os.listdir(root / "claims"))
    assert owner
    token = layout.Token(layout.batch_id("s", "0123456789ab", 1), 0, attempt=1, deaths=1)
    (root / layout.claim_path(owner, token)).write_bytes(b"x")
    stop = ctl("stop", "--grace", "0.5", "--kill-after", "10")
    assert (stop.returncode, "returned 1 batches" in stop.stdout) == (0, True), stop.stderr
    assert (root / layout.inbox_path(token)).read_bytes() == b"x"
    assert os.listdir(root / "claims") == []


def test_a_host_that_is_no_longer_allowed_gets_its_intent_and_is_named(ctl: Ctl) -> None:
    root = ctl.runs / "run"
    ctl.start(root, "--hosts", "n[1-2]", FLEET_HOSTS="n1 n2")
    pids = pids_of(root, "n2")
    stop = ctl("stop", FLEET_HOSTS="n1")
    assert stop.returncode == 1
    assert "host n2: no longer allowed, not contacted" in stop.stderr
    wait_until(lambda: all(map(gone, pids)), what="the end of n2 by its intent alone")


def test_restart_host_keeps_everything_but_the_launch(ctl: Ctl) -> None:
    root = ctl.runs / "run"
    ctl.start(root, "--hosts", "n[1-2]", "--no-respawn", "--env", "COLOUR=blue")
    before, other = ctl.status(root)["hosts"][0], ctl.status(root)["hosts"][1]
    (root / "ctl" / "n1.stop").write_text("")
    for place, args in enumerate((("n1",), ("--host", "n1"))):
        again = ctl("restart-host", *args)
        assert again.returncode == 0, again.stderr
        assert started(again.stdout)["n1"]["respawn"] == "0"
        after = ctl.status(root)["hosts"][0]
        assert after["raw"]["launch"] == place + 2
    assert after["status_pid"] != before["status_pid"]
    assert gone(before["status_pid"])
    assert not (root / "ctl" / "n1.stop").exists()
    environ = Path(f"/proc/{after['status_pid']}/environ").read_bytes().split(b"\0")
    assert b"COLOUR=blue" in environ
    assert ctl.status(root)["hosts"][1]["status_pid"] == other["status_pid"]
    assert ctl("restart-host", "n9").returncode == 2
    assert ctl("restart-host", "n1", FLEET_HOSTS="n2").returncode == 5
    assert ctl("stop").returncode == 0


def test_runs_lists_what_lies_below_the_prefix(ctl: Ctl) -> None:
    live = ctl.runs / "exp" / "t1" / "id1"
    first = ctl("start", "--experiment", "exp", "--trial", "t1", "--run-id", "id1", "--fn", ECHO)
    assert first.returncode == 0, first.stderr
    half = ctl.runs / "half"
    half.mkdir()
    shutil.copy(live / ".shardfleet", half)
    (ctl.runs / "other").mkdir()
    found = json.loads(ctl("runs", "--json").stdout)["runs"]
    assert [(r["root"], r["run_id"], r["state"]) for r in found] == [
        (str(live), "id1", "running"), (str(half), None, "unfinished"),
    ]  # fmt: skip
    assert ctl("cleanup", "--root", str(half)).returncode == 0


def test_logs_show_what_worker_and_wrapper_wrote(ctl: Ctl) -> None:
    root = ctl.runs / "run"
    ctl.start(root)
    worker, wrapper = pids_of(root, "localhost")
    assert f"pid={wrapper}" in ctl("logs", "localhost", "--wrap").stdout
    assert ctl("logs", "localhost").returncode == 0
    assert ctl("logs", "n9").returncode == 2
    assert worker


def test_a_detached_watcher_restarts_and_is_stopped_first(ctl: Ctl) -> None:
    root = ctl.runs / "run"
    env = {"FLEET_INTERVAL": "0.3", "FLEET_WATCH_STALE": "5", "FLEET_RESTART_COOLDOWN": "0"}
    ctl.start(root, "--watch", **env)
    pid_file = root / "ctl" / "watch.pid"
    wait_until(pid_file.exists, what="the watcher")
    watcher = ctl.spawned.track(int(pid_file.read_text()))
    assert os.getsid(watcher) == watcher
    kill_at_once(*pids_of(root, "localhost"))
    wait_until(lambda: beats(root)["localhost"]["launch"] == 2, what="the restart")
    wait_until(lambda: beats(root)["localhost"]["ready"], what="the new worker")
    assert ctl.status(root)["state"] == "running"
    stop = ctl("stop")
    assert stop.returncode == 0, stop.stderr
    assert gone(watcher)
    assert with_environ(ctl.entry) == []


def test_events_tell_what_the_verbs_did(ctl: Ctl) -> None:
    root = ctl.runs / "run"
    ctl.start(root)
    assert ctl("restart-host", "localhost").returncode == 0
    assert ctl("stop").returncode == 0
    events = [json.loads(line) for line in (root / "ctl" / "events.jsonl").read_text().splitlines()]
    assert [(e["by"], e["event"]) for e in events] == [
        ("start", "started"), ("restart-host", "restarted"), ("stop", "stopped"),
    ]  # fmt: skip


def test_a_service_manager_hears_when_the_watcher_is_up_alive_and_ending(
    ctl: Ctl, tmp_path: Path
) -> None:
    root = ctl.runs / "r"
    ctl.start(root, FLEET_HOSTS="n1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        told = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "FLEET_HOSTS": "n1"}
        watcher = ctl.popen("watch", "--root", str(root), "--interval", "0.2", **told)
        assert [manager.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
        environ = Path(f"/proc/{watcher.pid}/task/{watcher.pid}/children").read_text().split()
        assert environ, "it does its work on the root in a child"
        for child in environ:
            assert b"NOTIFY_SOCKET" not in Path(f"/proc/{child}/environ").read_bytes()
        watcher.terminate()
        while (last := manager.recv(100)) == b"WATCHDOG=1":
            pass
        assert last == b"STOPPING=1"
        assert watcher.wait(120) == 0
    assert ctl("stop", "--root", str(root), "--grace", "100", FLEET_HOSTS="n1").returncode == 0
