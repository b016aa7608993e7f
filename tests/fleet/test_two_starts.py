"""Two starts on one root: one wins, the other is turned away, and the winner's workers live."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ctlrun import ECHO, Ctl, json_lines
from tests.support.waiting import gone, wait_until

pytestmark = pytest.mark.fleet

REFUSED, BUSY = 5, 10


@pytest.fixture
def ctl(tmp_path: Path) -> Iterator[Ctl]:
    with Ctl(tmp_path) as calls:
        yield calls


@pytest.mark.parametrize("offset", [0, 1, 2, 3])
def test_one_wins_and_its_run_lives(ctl: Ctl, offset: float) -> None:
    # The import takes its time, so that the second start comes at every stage of the first.
    (ctl.folder / "slow.py").write_text("import time\ntime.sleep(2)\ndef f(x): return x\n")
    root = ctl.runs / "run"
    args = ["start", "--root", str(root), "--fn", "slow:f", "--repo", str(ctl.folder)]
    first = ctl.popen(*args)
    time.sleep(offset)
    second = ctl.popen(*args)
    outs = [child.communicate(timeout=240) for child in (first, second)]
    codes = [first.returncode, second.returncode]
    told = "\n".join(err.decode() for _, err in outs)
    assert sorted(codes)[0] == 0 and sorted(codes)[1] in (REFUSED, BUSY), (codes, told)
    winner = outs[codes.index(0)][0].decode()
    assert json_lines(winner)[-1]["phase"] == "ready"
    assert ctl.status(root)["state"] == "running", told
    assert not (root / "ctl" / "localhost.stop").exists()
    assert not gone(int((root / "ctl" / "localhost.wrap.pid").read_text()))


def test_a_launch_that_did_not_beat_yet_is_a_live_root(ctl: Ctl) -> None:
    """A start that was killed leaves no lock, but its worker comes up all the same."""
    (ctl.folder / "slow.py").write_text("import time\ntime.sleep(600)\ndef f(x): return x\n")
    root = ctl.runs / "run"
    args = ["start", "--root", str(root), "--fn", "slow:f", "--repo", str(ctl.folder)]
    first = ctl.popen(*args)
    pid = root / "ctl" / "localhost.wrap.pid"
    wait_until(pid.exists, what="the first wrapper")
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    for name in os.listdir(root / "status"):
        os.unlink(root / "status" / name)
    wrapper = int(pid.read_text())
    refused = ctl(*args)
    assert refused.returncode == REFUSED, refused.stderr
    assert "is live" in refused.stderr
    assert not gone(wrapper)


def test_a_wrapper_between_two_lives_is_a_live_root(ctl: Ctl) -> None:
    """No beat for longer than the limit, and still somebody who is about to start a worker."""
    root = ctl.runs / "run"
    ctl.start(root, "--heartbeat-stale", "5s")
    wrapper = int((root / "ctl" / "localhost.wrap.pid").read_text())
    worker = int((root / "ctl" / "localhost.pid").read_text())
    os.kill(wrapper, signal.SIGSTOP)
    os.kill(worker, signal.SIGKILL)
    old = time.time() - 600
    os.utime(root / "status" / "localhost.json", (old, old))
    os.utime(root / "ctl" / "launch_meta.json", (old, old))
    try:
        refused = ctl("start", "--root", str(root), "--fn", ECHO)
        assert refused.returncode == REFUSED, refused.stderr
        assert f"process {wrapper} of localhost runs here" in refused.stderr
        assert not gone(wrapper)
    finally:
        os.kill(wrapper, signal.SIGCONT)


def test_a_start_that_finds_another_launch_running_leaves_it_alone(ctl: Ctl) -> None:
    """Even where no record tells of it: the host's own answer counts."""
    root = ctl.runs / "run"
    ctl.start(root)
    wrapper = int((root / "ctl" / "localhost.wrap.pid").read_text())
    worker = int((root / "ctl" / "localhost.pid").read_text())
    old = time.time() - 600
    os.kill(worker, signal.SIGSTOP)  # silent, and yet there
    try:
        identity = root / "ctl" / "localhost.identity.json"
        identity.rename(identity.with_suffix(".away"))
        os.utime(root / "status" / "localhost.json", (old, old))
        os.utime(root / "ctl" / "launch_meta.json", (old, old))
        refused = ctl("start", "--root", str(root), "--fn", ECHO)
        assert refused.returncode == REFUSED, refused.stderr
        assert "FAIL start localhost rc=5" in refused.stderr
        assert "stopping what was started" not in refused.stderr
        assert not (root / "ctl" / "localhost.stop").exists()
    finally:
        os.kill(worker, signal.SIGCONT)
    assert not gone(wrapper) and not gone(worker)
