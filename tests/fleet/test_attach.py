"""Workers that come by themselves, as real processes: joining, work, death, and ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fsworker import Client
from tests.support.ctlrun import Ctl, beats, json_lines
from tests.support.waiting import gone, kill_at_once, wait_until

pytestmark = pytest.mark.fleet

WHO = "whose:who"
CODE = """
import os, time
def who(seconds):
    time.sleep(seconds)
    return os.environ["FLEET_HOST"]
"""


@pytest.fixture
def ctl(tmp_path: Path) -> Iterator[Ctl]:
    (tmp_path / "whose.py").write_text(CODE)
    with Ctl(tmp_path, FLEET_REPO=str(tmp_path)) as calls:
        calls.env["PYTHONPATH"] += f":{tmp_path}"
        yield calls


def start(ctl: Ctl, *args: str) -> Path:
    root = ctl.runs / "run"
    done = ctl("start", "--root", str(root), "--fn", WHO, "--shard-count", "2", *args)
    assert done.returncode == 0, done.stderr
    return root


def attach(ctl: Ctl, root: Path, name: str, *args: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "fsworker", "attach", "--root", str(root), "--name", name, *args]
    return ctl.spawned.start(argv, env=ctl.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def state(ctl: Ctl, root: Path, name: str) -> str:
    found = [h["state"] for h in ctl.status(root)["hosts"] if h["host"] == name]
    return found[0] if found else "no member"


def wait_ready(ctl: Ctl, root: Path, name: str) -> None:
    def ready() -> bool:
        beat = beats(root).get(name)
        return beat is not None and beat["ready"] and not gone(beat["pid"])

    wait_until(ready, what=f"{name} in the run")
    wait_until(lambda: state(ctl, root, name) == "ready", what="the same from ctl status")


def test_members_by_name_and_by_token_work_beside_the_controllers_own(ctl: Ctl) -> None:
    root = start(ctl, "--attach", "guest")
    token = ctl("token", "create", "--root", str(root), "--labels", "gpu").stdout.strip()
    guest = attach(ctl, root, "guest")
    ctl.env["FLEET_WORKER_TOKEN"] = token
    holder = attach(ctl, root, "holder", "--labels", "big", "--parallel", "2", "--cpus", "7")
    for name in ("guest", "holder"):
        wait_ready(ctl, root, name)
    beat = json.loads((root / "status" / "holder.json").read_text())
    assert beat["labels"] == ["big", "gpu"] and beat["inventory"]["cpus"] == 7
    environ = Path(f"/proc/{beat['pid']}/environ").read_bytes()
    assert token.encode() not in environ
    with Client(str(root)) as client:
        served = Counter(client.map(WHO, [0.02] * 600, chunksize=4))
    assert sum(served.values()) == 600 and set(served) == {"localhost", "guest", "holder"}

    drained = ctl("drain", "guest", "--root", str(root))
    assert drained.returncode == 0, drained.stderr
    assert guest.wait(120) == 0
    stopped = ctl("stop", "--root", str(root), "--grace", "100")
    assert stopped.returncode == 0, stopped.stderr
    assert holder.wait(120) == 0
    assert not [n for n in os.listdir(root / "ctl") if n.endswith(".member.json")]


def test_a_member_that_is_killed_loses_nothing_and_its_name_can_come_back(ctl: Ctl) -> None:
    root = start(ctl, "--attach", "guest")
    watch = ("--heartbeat-stale", "5", "--interval", "0.5", "--fence-after", "1")
    watcher = ctl.popen("watch", "--root", str(root), *watch)
    guest = attach(ctl, root, "guest", "--shard", "1")
    wait_ready(ctl, root, "guest")
    with Client(str(root), batch_size=1) as client:  # or one host gets them all
        futures = [client.submit(WHO, 0.3) for _ in range(60)]
        wait_until(lambda: claims(root, "guest"), what="a claim of the member")
        kill_at_once(guest.pid, *pids(root, "guest"))
        assert sum(1 for f in futures if f.result(timeout=240)) == 60
    again = attach(ctl, root, "guest", "--run-once")
    wait_ready(ctl, root, "guest")
    with Client(str(root)) as client:
        served = set(client.map(WHO, [0.05] * 100, chunksize=1))
    assert "guest" in served
    assert again.wait(120) == 0, "it ends after its first work"
    assert state(ctl, root, "guest") == "no member"
    watcher.terminate()
    assert watcher.wait(120) == 0
    events = json_lines((root / "ctl" / "events.jsonl").read_text())
    started = [e for e in events if e["event"] == "restart" and e["host"] == "guest"]
    assert not started, "nobody starts what came by itself"
    assert ctl("stop", "--root", str(root)).returncode == 0


def test_what_is_not_there_yet_is_waited_for_and_a_refusal_is_final(ctl: Ctl) -> None:
    root = ctl.runs / "run"
    early = attach(ctl, root, "guest", "--max-idle", "2")
    assert early.stderr and b"waiting: " in early.stderr.readline()
    start(ctl, "--attach", "guest")
    assert early.wait(120) == 0
    assert b"attached to " in early.stderr.read()
    refused = attach(ctl, root, "stranger")
    assert refused.wait(120) == 5 and refused.stderr
    assert b"'stranger' may not attach to this run" in refused.stderr.read()
    (ctl.folder / "whose.py").write_text("raise OSError('no library')")
    lacking = attach(ctl, root, "guest")
    assert lacking.wait(120) == 5 and lacking.stderr
    assert b"this machine cannot serve whose:who" in lacking.stderr.read()
    assert ctl("stop", "--root", str(root)).returncode == 0


def claims(root: Path, host: str) -> list[str]:
    owners = [n for n in os.listdir(root / "claims") if n.startswith(f"{host}~")]
    return [name for owner in owners for name in os.listdir(root / "claims" / owner)]


def pids(root: Path, host: str) -> list[int]:
    """The worker and everything below it."""
    worker = int((root / "ctl" / f"{host}.pid").read_text())
    below = [worker]
    for pid in below:
        with suppress(FileNotFoundError, ProcessLookupError):
            text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
            below += map(int, text.split())
    return below
