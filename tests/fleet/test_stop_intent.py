"""Stop intents as people write them: a file in `ctl/`, and no command at all."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsworker.client import Client
from tests.support.counting import executions
from tests.support.ctlrun import ECHO, Ctl
from tests.support.waiting import gone, wait_until, with_environ

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(600)]

COUNT = "tests.support.counting:count"


@pytest.fixture
def ctl(tmp_path: Path) -> Iterator[Ctl]:
    with Ctl(tmp_path) as calls:
        yield calls


def pids(root: Path, host: str) -> list[int]:
    """Wrapper and worker of a host that runs."""
    return [int((root / "ctl" / f"{host}.{s}").read_text()) for s in ("wrap.pid", "pid")]


def beat(root: Path, host: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "status" / f"{host}.json").read_bytes())
    return found


INTENTS = {"empty": "", "mine": "2\n", "by_hand": "please\n", "later": "7", "before": "1\n"}
STAYS = ("before",)


def test_an_intent_ends_the_launches_that_it_covers(ctl: Ctl) -> None:
    root = ctl.runs / "run"
    hosts = ("--hosts", ",".join(host.replace("_", "-") for host in INTENTS))
    names = {host.replace("_", "-"): text for host, text in INTENTS.items()}
    ctl.start(root, *hosts)
    assert ctl("stop").returncode == 0
    ctl.start(root, *hosts)  # launch 2 of each
    before = {host: pids(root, host) for host in names}
    for host, text in names.items():
        (root / "ctl" / f"{host}.stop").write_text(text)
    ending = [pid for host, both in before.items() if host not in STAYS for pid in both]
    wait_until(lambda: all(map(gone, ending)), what="the end of those that are covered")
    seq = beat(root, "before")["seq"]
    wait_until(lambda: beat(root, "before")["seq"] > seq + 2, what="the other one goes on")
    assert pids(root, "before") == before["before"]
    assert sorted(p.name for p in (root / "ctl").glob("*.pid")) == ["before.pid", "before.wrap.pid"]
    assert ctl("stop").stdout.splitlines()[1:] == ["stopped host=before"]
    assert with_environ(ctl.entry) == []
    ctl.start(root, *hosts)  # and no intent of before keeps anybody down
    assert ctl("stop").returncode == 0


def test_what_a_worker_holds_when_it_is_told_to_stop_is_done_by_others(
    ctl: Ctl, tmp_path: Path
) -> None:
    root, traces = ctl.runs / "run", tmp_path / "traces"
    traces.mkdir()
    done = ctl("start", "--root", str(root), "--fn", COUNT, "--hosts", "n[1-2]")
    assert done.returncode == 0, done.stderr
    with Client(root) as client:
        futures = [client.submit(COUNT, str(traces), i, 0.05) for i in range(200)]
        wait_until(lambda: len(executions(traces, "-")) > 20, what="some progress")
        leaving = pids(root, "n1")
        (root / "ctl" / "n1.stop").touch()
        wait_until(lambda: all(map(gone, leaving)), what="the end of n1")
        assert [future.result(120) for future in futures] == [3 * i for i in range(200)]
    assert set(executions(traces, "-")) == set(range(200))
    assert not [name for name in os.listdir(root / "claims") if name.startswith("n1~")]
    assert beat(root, "n1")["stopped"]
    assert ctl("status").returncode == 1, "a fleet that is not whole"
    assert ctl("stop").returncode == 0


def test_an_intent_is_seen_by_a_wrapper_that_rests(ctl: Ctl) -> None:
    """Even when nobody can reach the host to tell it."""
    root = ctl.runs / "run"
    ctl.start(root, "--hosts", "n1")
    wrapper, worker = pids(root, "n1")
    log = root / "ctl" / "n1.wrap.log"
    os.kill(worker, 9)
    wait_until(lambda: "next life in" in log.read_text(), what="the pause")
    (root / "ctl" / "n1.stop").touch()
    begun = time.monotonic()
    wait_until(lambda: gone(wrapper), what="the end of the wrapper")
    assert time.monotonic() - begun < 100
    assert log.read_text().count("started") <= 2
    assert with_environ(ctl.entry) == []
    assert (
        ctl("start", "--root", str(root), "--fn", ECHO, "--hosts", "n1", "--replace").returncode
        == 0
    )
    assert ctl("stop").returncode == 0
