"""The whole story over real sshd: a fleet that is killed in every way, and loses nothing."""

from __future__ import annotations

import os
import re
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from fsworker import procfs
from fsworker.client import Client
from tests.rigs import hosts as rigs
from tests.rigs.hosts import HostRig
from tests.support.counting import executions, hosts_of
from tests.support.sshfleet import COUNT, SshFleet, others, untaken
from tests.support.waiting import gone, wait_until

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(600)]

TASKS = 10_000
WATCH = {
    "FLEET_INTERVAL": "1",
    "FLEET_WATCH_STALE": "6",
    "FLEET_RESTART_COOLDOWN": "1",
    "FLEET_FENCE_AFTER": "2",
}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[HostRig]:
    rigs.require()
    with HostRig(tmp_path) as made:
        yield made


@pytest.fixture
def fleet(tmp_path: Path, rig: HostRig) -> Iterator[SshFleet]:
    with SshFleet(tmp_path, rig) as made:
        yield made


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    folder = tmp_path / "traces"
    folder.mkdir()
    return folder


class Answers:
    """What a client was answered, each task as often as it was."""

    def __init__(self, client: Client, traces: Path, count: int, seconds: float) -> None:
        self.by_task: dict[int, list[Any]] = defaultdict(list)
        self.futures = [self._send(client, traces, i, seconds) for i in range(count)]

    def _send(self, client: Client, traces: Path, index: int, seconds: float) -> Future[Any]:
        future = client.submit(COUNT, str(traces), index, seconds)
        future.add_done_callback(lambda f: self.by_task[index].append(f.exception() or f.result()))
        return future

    def wait(self, count: int, deadline: float = 120.0) -> None:
        """Until `count` tasks are answered."""
        wait_until(lambda: len(self.by_task) >= count, deadline, f"{count} answers")

    @property
    def missing(self) -> int:
        return len(self.futures) - len(self.by_task)


def test_a_fleet_that_is_killed_in_every_way_answers_every_task_once(
    fleet: SshFleet, traces: Path, record_property: Any
) -> None:
    nodes = fleet.add_hosts("node1", "node2", "node3", "node4")
    lines = fleet.up(
        "--launcher", "ssh", "--hosts", "node[1-4]", "--concurrency", "2", "--watch", **WATCH
    )
    assert [(line["ok"], line["phase"]) for line in lines] == [(True, "manifest"), (True, "ready")]
    wait_until(lambda: fleet.text("watch.pid"), what="the watcher")
    lives = {name: fleet.beat(name) for name in fleet.rig.hosts}

    with Client(fleet.root) as client:
        answers = Answers(client, traces, TASKS, 0.006)
        answers.wait(300)
        fleet.kill(fleet.pid("node1"))
        answers.wait(1000)
        orphan = fleet.pid("node2")
        fleet.kill(fleet.pid("node2", "wrap.pid"))
        wait_until(lambda: gone(orphan), what="the worker ends with its wrapper")
        answers.wait(1700)
        tree = fleet.members("node3")
        assert len(tree) == 5, "wrapper, worker, the process that forks slots, two slots"
        fleet.kill(*tree)
        assert answers.missing > 1000, "all of that happened while tasks were running"

        for name in ("node1", "node2", "node3"):
            fleet.wait_new_life(name, lives[name])
        answers.wait(TASKS)
        status = fleet.wait_all_ready()

    assert [host["state"] for host in status["hosts"]] == ["ready"] * 4
    assert dict(answers.by_task) == {i: [3 * i] for i in range(TASKS)}
    assert (fleet.tokens(), untaken(fleet.root)) == ([], [])
    assert os.listdir(fleet.root / "dead") == os.listdir(fleet.root / "quarantine") == []
    assert fleet.beat("node4")["incarnation"] == lives["node4"]["incarnation"]
    assert [fleet.beat(f"node{i}")["launch"] for i in (2, 3, 4)] == [2, 2, 1]
    runs = executions(traces)
    assert set(runs) == set(range(TASKS))
    again = sum(n - 1 for n in runs.values())
    record_property("tasks_executed_again", again)
    print(f"{again} of {TASKS} tasks were executed more than once, as kills make necessary")

    watcher = int(fleet.text("watch.pid"))
    fleet.down()
    assert gone(watcher)
    wait_until(lambda: not any(others(node) for node in nodes), what="hosts without our processes")
    assert fleet("cleanup").returncode == 0
    assert os.listdir(fleet.runs) == []


def test_a_killed_worker_is_back_soon_without_a_watcher(fleet: SshFleet, traces: Path) -> None:
    fleet.add_hosts("node1")
    fleet.up("--concurrency", "2")
    before, wrapper = fleet.beat("node1"), fleet.pid("node1", "wrap.pid")
    with Client(fleet.root) as client:
        answers = Answers(client, traces, 40, 0.1)
        wait_until(lambda: executions(traces), what="a task runs")
        worker, held = fleet.pid("node1"), fleet.tokens()
        begun = time.monotonic()
        fleet.kill(worker)
        back = fleet.wait_new_process("node1", before["pid"])
        there = time.monotonic() - begun
        fleet.wait_new_life("node1", before)
        ready = time.monotonic() - begun
        answers.wait(40)
    print(f"there again after {there:.1f} s, ready after {ready:.1f} s")
    assert there < ready < 60, "5 s on a machine that has a core for it"
    assert fleet.pid("node1") == back
    assert dict(answers.by_task) == {i: [3 * i] for i in range(40)}
    assert held, "it died while it held work"
    assert max(executions(traces).values()) > 1
    assert fleet.pid("node1", "wrap.pid") == wrapper
    assert fleet.tokens() == []
    fleet.down()


def test_a_host_that_slept_past_its_claims_publishes_nothing(fleet: SshFleet, traces: Path) -> None:
    """All of a machine is frozen, its sshd too, so nobody can tell it to end; then it wakes up."""
    fleet.add_hosts("node1", "node2")
    fleet.up("--hosts", "node[1-2]", "--concurrency", "1", FLEET_CONNECT_TIMEOUT="2")
    watcher = fleet.popen("watch", "--root", str(fleet.root), **WATCH)
    with Client(fleet.root, no_worker_timeout=None) as client:
        answers = Answers(client, traces, 1, 4.0)
        wait_until(lambda: executions(traces), what="its execution")
        (sleeper,) = hosts_of(traces, 0)
        before, tree = fleet.beat(sleeper), fleet.members(sleeper)
        machine = fleet.rig.hosts[sleeper]
        machine.freeze()
        for pid in tree:
            os.kill(pid, signal.SIGSTOP)

        answers.wait(1)
        assert sorted(hosts_of(traces, 0)) == ["node1", "node2"], "it was done elsewhere"
        assert not any(map(gone, tree)), "nobody could end the sleeper"
        assert fleet.beat(sleeper) == before
        for pid in tree:
            os.kill(pid, signal.SIGCONT)
        # It notices when it commits, or before that by a look at its claims, due after 30 s.
        late = "late result is set aside|was revoked; its execution is ended"
        log = f"{sleeper}.log"
        wait_until(
            lambda: re.search(late, fleet.text(log)), what="the sleeper sees that it is late"
        )
        fleet.wait_new_life(sleeper, before)
        machine.thaw()
        assert client.submit(COUNT, str(traces), 1, 0.0).result(120) == 3
    assert dict(answers.by_task) == {0: [0]}
    assert fleet.tokens() == []
    committed = [name for name in untaken(fleet.root) if name.endswith(".done")]
    assert committed == [], "the late result means nothing"
    watcher.terminate()
    assert watcher.wait(120) == 0
    fleet.wait_all_ready()
    fleet.down()


def test_eight_hosts_that_are_slow_to_launch_start_side_by_side(
    fleet: SshFleet, tmp_path: Path
) -> None:
    times = tmp_path / "times"
    slow = (  # none gets through before all are there
        f"exec 3>>'{times}'; date +'from %s.%N' >&3; "
        f"while [ $(grep -c from '{times}') -lt 8 ]; do sleep 0.1; done; date +'to %s.%N' >&3\n"
    )
    fleet.add_hosts(*(f"node{i}" for i in range(1, 9)), login=slow)
    begun = time.monotonic()
    fleet.up("--hosts", "node[1-8]", "--concurrency", "1")
    took = time.monotonic() - begun
    spans = [line.split() for line in times.read_text().splitlines()]
    begins = [float(at) for word, at in spans if word == "from"]
    ends = [float(at) for word, at in spans if word == "to"]
    assert len(begins) == len(ends) == 8
    print(f"launch delays from first to last: {max(ends) - min(begins):.1f} s; start: {took:.1f} s")
    assert max(begins) < min(ends), "there was a moment at which all eight were waiting"
    assert len({procfs.read_stat(fleet.pid(f"node{i}")) for i in range(1, 9)}) == 8
    fleet.down()
