"""Hosts whose Python has no packages: the worker from one file, over sshd and by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fsworker
from fsworker import Client
from tests.rigs import hosts
from tests.rigs.hosts import HostRig
from tests.support.ctlrun import Ctl, beats
from tests.support.sshfleet import SshFleet
from tests.support.waiting import wait_until

pytestmark = pytest.mark.fleet

TELL = "teller:tell"
CODE = """
import os, sys
import fsworker, fsworker.outcomes

def tell(number):
    msgpack = sys.modules["msgpack"].__file__
    return [number * number, os.environ["FLEET_HOST"], sys.executable, fsworker.__file__, msgpack]
"""
TRAIN = """
import json, sys
import fsworker
for episode in range(2):
    fsworker.report(episode, reward=float(episode))
json.dump({"rewards": [0, 1], "from": fsworker.BUNDLE}, open(sys.argv[1], "w"))
"""


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """A Python in which nothing is installed."""
    folder = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = str(folder / "bin" / "python3")
    for name in ("msgpack", "click", "psutil", "filelock", "fsworker"):
        done = subprocess.run(
            [python, "-c", f"import {name}"], cwd="/", capture_output=True, text=True, env={}
        )
        assert f"No module named '{name}'" in done.stderr
    return python


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """What users bring: a function, and a training script."""
    folder = tmp_path / "repo"
    folder.mkdir()
    (folder / "teller.py").write_text(CODE)
    (folder / "train.py").write_text(TRAIN)
    return folder


def served(root: Path, count: int = 60) -> dict[str, list[Any]]:
    """What the hosts tell of themselves, one answer each; every task must be right."""
    with Client(str(root)) as client:
        answers = list(client.map(TELL, range(count), chunksize=1))
    assert [a[0] for a in answers] == [n * n for n in range(count)]
    return {a[1]: a[2:] for a in answers}


def test_over_ssh_on_hosts_without_packages_and_again_after_a_kill(
    tmp_path: Path, bare: str, code: Path
) -> None:
    hosts.require()
    with HostRig(tmp_path) as rig, SshFleet(tmp_path, rig, FLEET_CONCURRENCY="2") as fleet:
        fleet.add_hosts("n1", "n2")
        fleet.up("--bundle", "--python", bare, "--repo", str(code), fn=TELL)
        said = fleet.status(fleet.root)
        path = str(fleet.root / said["bundle"]["path"])
        assert set(said["bundle"]["hosts"]) == {"n1", "n2"}
        assert said["bundle"]["hosts"]["n1"] == {
            "release": fsworker.__version__, "digest": said["bundle"]["digest"],
        }  # fmt: skip
        told = served(fleet.root)
        assert told and set(told) <= {"n1", "n2"}
        for python, ours, msgpack in told.values():
            assert python == bare and ours.startswith(f"{path}/fsworker/")
            assert msgpack.startswith(f"{path}/vendor/msgpack/")

        before = fleet.beat("n1")
        assert set(before["code"]["functions"]) == {"teller.tell"} and not said["drift"]
        fleet.kill(fleet.pid("n1"))
        again = fleet.wait_new_life("n1", before)
        assert again["launch"] == before["launch"], "its wrapper did that"
        restarted = fleet("restart-host", "n2", "--root", str(fleet.root))
        assert restarted.returncode == 0, restarted.stderr
        for pid in fleet.members():
            argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            assert argv[:2] == [bare.encode(), path.encode()], "all from the one file"

        command = (bare, str(code / "train.py"), "{checkpoint}")
        options = ("--episodes", "2", "--checkpoint", "checkpoint.json")
        asked = fleet("job", "submit", "--root", str(fleet.root), *options, "--", *command)
        assert asked.returncode == 0, asked.stderr
        shown = wait_until(lambda: job_of(fleet, fleet.root, asked.stdout.strip()), what="the job")
        assert (shown["status"], shown["total_reward"]) == ("success", 1.0), shown
        done = fleet("doctor", "--root", str(fleet.root), "--json")
        lines = [c for c in json.loads(done.stdout)["checks"] if c["what"] == "packages"]
        assert [c["level"] for c in lines] == ["ok", "ok"], lines
        fleet.down()


def job_of(fleet: Ctl, root: Path, job: str) -> dict[str, Any] | None:
    """The result of a job, once there is one."""
    path = root / "outbox" / "jobs" / job / "result.json"
    found: dict[str, Any] | None = json.loads(path.read_bytes()) if path.exists() else None
    return found


def test_by_hand_with_spawned_slots_beside_installed_ones(
    tmp_path: Path, bare: str, code: Path
) -> None:
    with Ctl(tmp_path, FLEET_REPO=str(code)) as ctl:
        root, file = ctl.runs / "run", tmp_path / "worker.pyz"
        done = ctl("start", "--root", str(root), "--fn", TELL, "--attach", "guest",
                   "--slot-start", "spawn")  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert ctl("bundle", "-o", str(file)).returncode == 0
        env = {"CTL_TEST": ctl.env["CTL_TEST"], "PATH": os.environ["PATH"]}
        argv = [bare, "worker.pyz", "attach", "--root", str(root), "--name", "guest"]
        (tmp_path / "teller.py").symlink_to(code / "teller.py")  # found in the current folder
        guest = ctl.spawned.start(argv, cwd=tmp_path, env=env)
        wait_until(lambda: ready(root, "guest"), what="the guest")
        first = ready(root, "guest")
        told = wait_until(lambda: both(served(root)), what="answers of both")
        assert told["guest"][0] == bare and told["guest"][1].startswith(f"{file}/fsworker/")
        assert str(file) not in told["localhost"][1]

        os.kill(int((root / "ctl" / "guest.pid").read_text()), 9)
        wait_until(lambda: ready(root, "guest") not in (None, first), what="a new life")
        assert set(wait_until(lambda: both(served(root)), what="answers")) == {"guest", "localhost"}
        stopped = ctl("stop", "--root", str(root), "--grace", "100")
        assert stopped.returncode == 0, stopped.stderr
        assert guest.wait(120) == 0


def ready(root: Path, host: str) -> str | None:
    """The incarnation of a host that is ready."""
    beat = beats(root).get(host, {"ready": False})
    return str(beat["incarnation"]) if beat["ready"] else None


def both(told: dict[str, list[Any]]) -> dict[str, list[Any]] | None:
    """What was told, once both hosts have."""
    return told if len(told) > 1 else None


@pytest.fixture(autouse=True)
def _nothing_of_the_checkout_is_found(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    yield
