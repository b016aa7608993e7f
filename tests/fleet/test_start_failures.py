"""Starts that fail: nothing of them runs on, and the sentence says why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ctlrun import ECHO, Ctl
from tests.support.waiting import wait_until, with_environ

pytestmark = pytest.mark.fleet


@pytest.fixture
def ctl(tmp_path: Path) -> Iterator[Ctl]:
    with Ctl(tmp_path) as calls:
        yield calls


def test_a_function_that_is_not_there_fails_at_once_with_the_workers_sentence(ctl: Ctl) -> None:
    root = ctl.runs / "run"
    failed = ctl("start", "--root", str(root), "--fn", "no_such_module:f", "--ready-timeout", "60")
    assert failed.returncode == 5, failed.stderr
    assert "no_such_module" in failed.stderr.splitlines()[-1]
    assert with_environ(ctl.entry) == []
    assert ctl("status").returncode == 3  # the current run was not written
    assert ctl("status", "--root", str(root)).returncode == 3
    ctl.start(root)  # and the root is as good as new


def test_workers_that_are_not_ready_in_time_are_stopped(ctl: Ctl) -> None:
    (ctl.folder / "sleepy.py").write_text("import time\ntime.sleep(600)\ndef f(): pass\n")
    root = ctl.runs / "run"
    failed = ctl(
        "start", "--root", str(root), "--fn", "sleepy:f", "--repo", str(ctl.folder),
        "--ready-timeout", "2",
    )  # fmt: skip
    assert failed.returncode == 6
    assert "FAIL: workers not ready in time" in failed.stderr.splitlines()
    assert "it beats but is not ready" in failed.stderr
    assert with_environ(ctl.entry) == []
    assert not (ctl.ws / "tmp" / "shardfleet-current.json").exists()


def test_a_host_that_cannot_start_is_named_with_its_code(ctl: Ctl) -> None:
    root = ctl.runs / "run"
    failed = ctl("start", "--root", str(root), "--fn", ECHO, "--python", "/bin/false")
    assert failed.returncode == 1
    assert "FAIL start localhost rc=1" in failed.stderr
    assert with_environ(ctl.entry) == []


def test_an_interrupted_start_stops_what_it_started(ctl: Ctl) -> None:
    (ctl.folder / "sleepy.py").write_text("import time\ntime.sleep(600)\ndef f(): pass\n")
    root = ctl.runs / "run"
    child = ctl.popen("start", "--root", str(root), "--fn", "sleepy:f", "--repo", str(ctl.folder))
    status = root / "status" / "localhost.json"
    wait_until(status.exists, what="the first heartbeat")
    child.send_signal(signal.SIGTERM)
    _, stderr = child.communicate(timeout=240)
    assert child.returncode == 143
    assert b"interrupted" in stderr
    wait_until(lambda: with_environ(ctl.entry) == [], what="the end of all processes")


def test_a_dry_run_touches_nothing(ctl: Ctl) -> None:
    root = ctl.runs / "run"
    told = ctl("start", "--root", str(root), "--fn", ECHO, "--hosts", "n[1-2]", "--dry-run")
    assert told.returncode == 0
    assert [line.split()[2] for line in told.stdout.splitlines()[1:]] == ["host=n1", "host=n2"]
    assert os.listdir(ctl.runs) == []
    assert not ctl.ws.exists()


def test_bad_starts_leave_nothing_behind(ctl: Ctl) -> None:
    starts = [
        (2, "--workers-json", '[{"host": "n1", "shard": 0}, {"host": "n1", "shard": 1}]'),
        (2, "--workers-json", '[{"host": "n1", "shard": 9}]', "--shard-count", "2"),
        (2, "--fn", "nonsense"),
        (2, "--launcher", "carrier-pigeon"),
        (5, "--launcher", "ssh", "--hosts", "n1"),
        (2, "--group", "no-such-group"),
    ]
    for code, *args in starts:
        failed = ctl("start", "--root", str(ctl.runs / "run"), *args)
        assert (failed.returncode, failed.stdout) == (code, ""), (args, failed.stderr)
        assert os.listdir(ctl.runs) == []


def test_a_root_of_a_newer_major_version_is_left_alone(ctl: Ctl) -> None:
    root = ctl.runs / "run"
    root.mkdir()
    text = '{"format": "2.0", "run_id": "x"}'
    (root / "manifest.json").write_text(text)
    (root / ".shardfleet").write_text('{"kind": "shardfleet run root"}')
    failed = ctl("start", "--root", str(root), "--fn", ECHO)
    assert failed.returncode == 8
    assert "2.0" in failed.stderr and "1.0" in failed.stderr
    assert (root / "manifest.json").read_text() == text


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_stops_the_start_before_anything_runs(ctl: Ctl) -> None:
    disk = ctl.folder / "disk"
    disk.mkdir()
    script = (
        'mount -t tmpfs -o size=4k tmpfs "$1" && echo filled > "$1/f" && '
        f'shift && exec {sys.executable} -m ctl "$@"'
    )
    args = ["start", "--root", str(disk / "run"), "--fn", ECHO]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", str(disk), *args],
        capture_output=True, text=True, env=ctl.env, cwd=ctl.folder, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 7, done.stderr
    assert f"cannot write {disk}/run" in done.stderr
    assert "free space on that filesystem" in done.stderr
    assert done.stdout == ""
    assert with_environ(ctl.entry) == []
