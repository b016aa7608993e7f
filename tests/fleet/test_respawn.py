"""The wrapper on real processes: lives, back-off, stopping, what is left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsworker.life import hostlock
from fsworker.protocol.records.run import HostIdentity
from tests.support.roots import make_root
from tests.support.waiting import Spawned, gone, proc_state, start_ticks, wait_until

pytestmark = pytest.mark.fleet

REPO = Path(__file__).parents[2]
WORKER = str(REPO / "tests" / "support" / "scripted_worker.py")
QUICK = ["--poll", "0.1", "--retry-first", "0.1", "--retry-cap", "0.8", "--healthy-after", "30"]


class Bench:
    """One root, one host, and the wrappers started on it."""

    def __init__(self, tmp_path: Path, spawned: Spawned) -> None:
        self.root = make_root(tmp_path / "a root's")
        self.lives_file = tmp_path / "lives"
        self.spawned = spawned

    def argv(self, action: str, *options: str, launch: int = 1) -> list[str]:
        head = [sys.executable, "-m", "fsworker.respawn", "--root", str(self.root), "--host", "n1"]
        worker = [sys.executable, WORKER, str(self.lives_file), action, "--shard", "3"]
        return [*head, "--launch", str(launch), *QUICK, *options, "--", *worker]

    def start(self, action: str, *options: str, launch: int = 1, ok: bool = True) -> dict[str, Any]:
        """Start a detached wrapper as a launcher does; returns its report."""
        child = self.spawned.start(
            self.argv(action, *options, launch=launch), stdout=subprocess.PIPE, cwd=REPO
        )
        out, _ = child.communicate(timeout=240)
        report: dict[str, Any] = json.loads(out)
        assert report["ok"] is ok, report
        assert (child.returncode == 0) is ok
        if ok:
            self.spawned.track(report["wrap_pid"])
        return report

    def lives(self) -> list[dict[str, Any]]:
        if not self.lives_file.exists():
            return []
        return [
            json.loads(line)
            for line in self.lives_file.read_text().splitlines(True)
            if line.endswith("\n")
        ]

    def wait_lives(self, count: int) -> list[dict[str, Any]]:
        return wait_until(lambda: (x := self.lives())[count - 1 :] and x, what=f"life {count}")

    def ctl(self, suffix: str) -> Path:
        return self.root / "ctl" / f"n1.{suffix}"

    def wrap_log(self) -> str:
        return self.ctl("wrap.log").read_text()

    def identity(self) -> HostIdentity:
        who: HostIdentity = HostIdentity.from_json(self.ctl("identity.json").read_bytes(), "i")
        return who

    def wait_gone(self, *pids: int) -> None:
        wait_until(lambda: all(gone(pid) for pid in pids), what=f"the end of {pids}")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Spawned(f"TEST_TOKEN={uuid.uuid4().hex}") as spawned:
        yield Bench(tmp_path, spawned)


def test_it_detaches_completely_and_says_who_runs(bench: Bench) -> None:
    report = bench.start("serve")
    (life,) = bench.wait_lives(1)
    wrap = report["wrap_pid"]
    assert life["pid"] == report["worker_pid"]
    assert bench.ctl("pid").read_text() == f"{life['pid']}\n"
    assert bench.ctl("wrap.pid").read_text() == f"{wrap}\n"
    who = bench.identity()
    assert who.worker and who.wrapper
    assert (who.worker.pid, who.worker.start) == (life["pid"], start_ticks(life["pid"]))
    assert (who.wrapper.pid, who.wrapper.start) == (wrap, start_ticks(wrap))
    assert (who.host, who.launch) == ("n1", 1)

    assert os.getsid(wrap) not in (wrap, os.getsid(0)), "in a session whose leader has ended"
    assert life["cwd"] == os.readlink(f"/proc/{wrap}/cwd") == "/"
    log, own_log = str(bench.ctl("log")), str(bench.ctl("wrap.log"))
    assert life["fds"] == {"0": "/dev/null", "1": log, "2": log}
    held = {n: os.readlink(f"/proc/{wrap}/fd/{n}") for n in os.listdir(f"/proc/{wrap}/fd")}
    assert (held.pop("0"), held.pop("1"), held.pop("2")) == ("/dev/null", own_log, own_log)
    kinds = sorted(target.partition(":")[0] for target in held.values())
    assert kinds == sorted([log, own_log, "pipe", "socket"]), "logs, life pipe and lock, no more"

    env = life["env"]
    assert env["FLEET_RUN"] == hostlock.run_key(str(bench.root), "run1")
    assert (env["FLEET_HOST"], env["FLEET_LAUNCH"], env["FLEET_SHARD"]) == ("n1", "1", "3")
    assert env["FLEET_INCARNATION"] == who.incarnation


def test_it_survives_the_hangup_of_the_session_and_of_everything_else(bench: Bench) -> None:
    report = bench.start("serve")
    bench.wait_lives(1)
    os.kill(report["wrap_pid"], signal.SIGHUP)
    bench.ctl("stop").write_text("0")  # covers an earlier launch only
    wait_until(lambda: proc_state(report["wrap_pid"]) == "S", what="sleep")
    time.sleep(0.5)
    assert not gone(report["wrap_pid"])
    assert not gone(report["worker_pid"])
    assert len(bench.lives()) == 1


def test_every_end_is_followed_by_another_life_and_is_logged(bench: Bench) -> None:
    bench.start("exit:0,exit:3,signal:9,signal:11,serve")
    lives = bench.wait_lives(5)
    assert len({life["pid"] for life in lives}) == 5
    assert len({life["env"]["FLEET_INCARNATION"] for life in lives}) == 5
    log = bench.wrap_log()
    for life, code in zip(lives, (0, 3, -9, -11), strict=False):
        assert f"worker pid={life['pid']} ended rc={code} after" in log
    pauses = [line.split()[-2] for line in log.splitlines() if "next life in" in line]
    assert pauses == ["0.1", "0.2", "0.4", "0.8"]
    assert bench.ctl("pid").read_text() == f"{lives[-1]['pid']}\n"


def test_a_healthy_stretch_resets_the_pause(bench: Bench) -> None:
    bench.start("exit:0,exit:0,exit:0,serve", "--healthy-after", "6.0")
    life = bench.wait_lives(4)[3]
    time.sleep(6.5)  # the stretch itself, which no life that ends at once takes
    os.kill(life["pid"], signal.SIGKILL)
    bench.wait_lives(5)
    pauses = [line.split()[-2] for line in bench.wrap_log().splitlines() if "next life in" in line]
    assert pauses == ["0.1", "0.2", "0.4", "0.1"]


def test_the_default_pause_is_two_seconds(bench: Bench) -> None:
    bench.start("exit:0,serve", "--retry-first", "2.0", "--retry-cap", "60")
    bench.wait_lives(1)
    began = time.monotonic()
    bench.wait_lives(2)
    assert 1.5 < time.monotonic() - began < 100


@pytest.mark.parametrize(
    "how", ["term", "int", "intent", "intent by hand", "intent of this launch"]
)
def test_a_stop_waits_for_the_worker_and_leaves_no_pid_file(bench: Bench, how: str) -> None:
    report = bench.start("drain:1.0", launch=7)
    bench.wait_lives(1)
    intents = {"intent": "9", "intent by hand": "", "intent of this launch": "7\n"}
    if how in intents:
        bench.ctl("stop").write_text(intents[how])
    else:
        os.kill(report["wrap_pid"], signal.SIGTERM if how == "term" else signal.SIGINT)
    bench.wait_gone(report["wrap_pid"], report["worker_pid"])
    assert bench.ctl("log").read_text() == "drained\n"
    assert len(bench.lives()) == 1
    assert not bench.ctl("pid").exists()
    assert not bench.ctl("wrap.pid").exists()
    assert bench.ctl("identity.json").exists()
    assert hostlock.is_free(str(bench.root), "run1", "n1")


def test_told_twice_it_kills(bench: Bench) -> None:
    report = bench.start("deaf")
    bench.wait_lives(1)
    os.kill(report["wrap_pid"], signal.SIGTERM)
    wait_until(lambda: "TERM to worker" in bench.wrap_log(), what="the first TERM")
    time.sleep(0.3)
    assert not gone(report["worker_pid"])
    os.kill(report["wrap_pid"], signal.SIGTERM)
    bench.wait_gone(report["wrap_pid"], report["worker_pid"])
    assert f"worker pid={report['worker_pid']} ended rc=-9" in bench.wrap_log()


def test_told_in_two_ways_or_by_a_repeated_stop_it_does_not_kill(bench: Bench) -> None:
    report = bench.start("drain:2.0")
    bench.wait_lives(1)
    bench.ctl("stop").write_text("")
    wait_until(lambda: "TERM to worker" in bench.wrap_log(), what="the first TERM")
    for _ in range(3):
        os.kill(report["wrap_pid"], signal.SIGUSR1)
        time.sleep(0.05)
    os.kill(report["wrap_pid"], signal.SIGTERM)
    bench.wait_gone(report["wrap_pid"], report["worker_pid"])
    assert bench.ctl("log").read_text() == "drained\n"
    assert bench.wrap_log().count("got SIGUSR1") == 3


@pytest.mark.parametrize("how", ["term", "intent"])
def test_a_stop_between_two_lives_prevents_the_next(bench: Bench, how: str) -> None:
    report = bench.start("exit:1", "--retry-first", "600", "--retry-cap", "600")
    wait_until(lambda: "next life in 600 s" in bench.wrap_log(), what="the pause")
    if how == "intent":
        bench.ctl("stop").write_text("")
    else:
        os.kill(report["wrap_pid"], signal.SIGTERM)
    began = time.monotonic()
    bench.wait_gone(report["wrap_pid"])
    assert time.monotonic() - began < 100, "it did not wait for the end of the pause"
    assert len(bench.lives()) == 1
    assert not bench.ctl("wrap.pid").exists()


def test_a_stop_intent_of_before_does_not_poison_a_new_launch(bench: Bench) -> None:
    bench.ctl("stop").write_text("4")
    report = bench.start("serve", launch=4, ok=False)
    assert report["code"] == "stopped"
    assert not bench.lives()
    bench.start("serve", launch=5)
    bench.wait_lives(1)


def test_what_a_dead_worker_leaves_behind_is_ended(bench: Bench) -> None:
    """Also what cleared its environment, has its own session, lost its parent, ignores TERM."""
    innocent = bench.spawned.start(
        ["tail", "-f", str(bench.root / "manifest.json")], stdout=subprocess.DEVNULL
    )
    bench.start("strays,serve")
    first, _ = bench.wait_lives(2)
    assert len(first["helpers"]) == 3
    assert all(gone(pid) for pid in first["helpers"]), "before the next life began"
    assert innocent.poll() is None


def test_the_worker_ends_when_the_wrapper_is_killed(bench: Bench) -> None:
    report = bench.start("serve")
    bench.wait_lives(1)
    assert not hostlock.is_free(str(bench.root), "run1", "n1")
    os.kill(report["wrap_pid"], signal.SIGKILL)
    bench.wait_gone(report["worker_pid"])
    assert hostlock.is_free(str(bench.root), "run1", "n1")


def test_the_lock_lasts_as_long_as_the_worker(bench: Bench) -> None:
    """A worker that outlives its wrapper is never doubled."""
    report = bench.start("deaf")
    bench.wait_lives(1)
    os.kill(report["wrap_pid"], signal.SIGKILL)
    bench.wait_gone(report["wrap_pid"])
    second = bench.start("serve", launch=2, ok=False)
    assert second["code"] == "already_running"
    os.kill(report["worker_pid"], signal.SIGKILL)
    bench.wait_gone(report["worker_pid"])
    bench.start("serve", launch=3)


def test_a_second_wrapper_is_refused_and_changes_nothing(bench: Bench) -> None:
    first = bench.start("serve")
    bench.wait_lives(1)
    second = bench.start("serve", launch=2, ok=False)
    assert second["code"] == "already_running"
    assert "n1" in second["message"]
    assert bench.ctl("pid").read_text() == f"{first['worker_pid']}\n"
    assert len(bench.lives()) == 1


def test_a_worker_that_cannot_be_run_is_said(bench: Bench) -> None:
    argv = bench.argv("serve")
    argv = [*argv[: argv.index("--")], "--", "/no/such/python", "x"]
    child = bench.spawned.start(argv, stdout=subprocess.PIPE, cwd=REPO)
    out, _ = child.communicate(timeout=240)
    report = json.loads(out)
    assert (report["ok"], report["code"]) == (False, "failed")
    assert "/no/such/python: No such file" in report["message"]
    assert child.returncode == 1
    assert hostlock.is_free(str(bench.root), "run1", "n1")


@pytest.mark.parametrize(("damage", "code"), [("missing", 3), ("cut", 8)])
def test_a_root_without_a_good_manifest_is_refused(bench: Bench, damage: str, code: int) -> None:
    manifest = bench.root / "manifest.json"
    if damage == "missing":
        manifest.unlink()
    else:
        manifest.write_bytes(manifest.read_bytes()[:20])
    child = bench.spawned.start(bench.argv("serve"), stdout=subprocess.PIPE, cwd=REPO)
    out, _ = child.communicate(timeout=240)
    assert "manifest.json" in json.loads(out)["message"]
    assert child.returncode == code
    assert not bench.lives()


def test_logs_are_bounded_while_the_worker_writes(bench: Bench) -> None:
    report = bench.start("noise", "--log-limit", "50000")
    bench.wait_lives(1)
    log = bench.ctl("log")
    cut = "older lines were cut"
    wait_until(lambda: cut in log.read_text()[:200], what="the cut")
    first = log.stat().st_ino
    size = log.stat().st_size
    wait_until(lambda: log.stat().st_size > size or log.stat().st_size < 50_000, what="more")
    wait_until(lambda: log.stat().st_size < 50_000, what="another cut")
    lines = log.read_text().splitlines()
    assert cut in lines[0]
    assert set(lines[1:-1]) == {"x" * 99}, "whole lines, no holes"
    assert log.stat().st_ino == first
    assert log.stat().st_blocks * 512 < 400_000
    assert not gone(report["worker_pid"])
    assert len(bench.lives()) == 1


def test_pid_files_that_cannot_be_written_do_not_end_it(bench: Bench) -> None:
    """Folders in their place are what stops even root; the files come when it is possible."""
    for suffix in ("pid", "wrap.pid", "identity.json", "log", "wrap.log"):
        bench.ctl(suffix).mkdir()
        (bench.ctl(suffix) / "x").write_text("")
    report = bench.start("signal:9,serve")
    lives = bench.wait_lives(2)
    assert lives[0]["fds"] == {"0": "/dev/null", "1": "/dev/null", "2": "/dev/null"}
    for suffix in ("pid", "wrap.pid", "identity.json", "wrap.log"):
        (bench.ctl(suffix) / "x").unlink()
        bench.ctl(suffix).rmdir()
    pid_file = f"{lives[1]['pid']}\n"
    wait_until(lambda: bench.ctl("pid").exists() and bench.ctl("pid").read_text() == pid_file)
    assert bench.identity().worker is not None
    os.kill(report["wrap_pid"], signal.SIGTERM)
    bench.wait_gone(report["wrap_pid"])
    assert "stopped" in bench.wrap_log(), "its log came back by itself"


def test_a_lost_ctl_folder_is_survived(bench: Bench) -> None:
    report = bench.start("serve")
    bench.wait_lives(1)
    (bench.root / "ctl").rename(bench.root / "away")
    time.sleep(0.5)
    assert not gone(report["wrap_pid"])
    assert not gone(report["worker_pid"])
    (bench.root / "away").rename(bench.root / "ctl")
    bench.ctl("stop").write_text("")
    bench.wait_gone(report["wrap_pid"], report["worker_pid"])
    log = bench.wrap_log()
    assert log.count("cannot read ctl/") == 1, "an outage is one line"


def test_in_the_foreground_it_serves_a_service_manager(bench: Bench) -> None:
    """Also when its starter ignored the signals that it lives by."""
    argv = bench.argv("drain:0.2", "--foreground")
    shell = ["/bin/sh", "-c", "trap '' INT TERM CHLD; exec \"$@\"", "sh", *argv]
    child = bench.spawned.start(shell, stdout=subprocess.PIPE, cwd=REPO)
    assert child.stdout
    report = json.loads(child.stdout.readline())
    assert report["wrap_pid"] == child.pid
    bench.wait_lives(1)
    child.terminate()
    assert child.wait(120) == 0
    assert gone(report["worker_pid"])
    assert bench.ctl("log").read_text() == "drained\n"


def test_a_starter_that_has_no_patience_left_is_answered(bench: Bench, tmp_path: Path) -> None:
    """The lock is held by somebody for longer than the starter waits."""
    with hostlock.acquire(str(bench.root), "run1", "n1"):
        report = bench.start("serve", "--wait", "0.05", ok=False)
    assert "did not report within 0.05 s" in report["message"]


def test_the_lock_is_one_per_user_run_and_host(tmp_path: Path) -> None:
    root, alias = make_root(tmp_path / "r"), tmp_path / "alias"
    alias.symlink_to(root)
    with hostlock.acquire(str(root), "run1", "n1") as mine:
        assert not hostlock.is_free(str(alias), "run1", "n1"), "the same root by another name"
        assert hostlock.is_free(str(root), "run10", "n1")
        assert hostlock.is_free(str(root), "run1", "n10")
        assert hostlock.is_free(str(tmp_path), "run1", "n1")
        env = {"FLEET_LOCK_FD": str(os.dup(mine.fileno()))}
        with hostlock.hold(str(root), "run1", "n1", env) as inherited:
            assert not os.get_inheritable(inherited.fileno())
        assert hostlock.inherited(str(root), "run10", "n1", env) is None
    assert hostlock.is_free(str(root), "run1", "n1")


def test_a_lock_descriptor_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    root = str(make_root(tmp_path / "r"))
    left, right = socket.socketpair()
    with left, right:
        env = {"FLEET_LOCK_FD": str(left.fileno())}
        assert hostlock.inherited(root, "run1", "n1", env) is None
        left.send(b"still open")
        assert right.recv(20) == b"still open"
    for text in ("", "x", "-1", "99999"):
        assert hostlock.inherited(root, "run1", "n1", {"FLEET_LOCK_FD": text}) is None
