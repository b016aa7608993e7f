"""A run from its start to its removal, on machines that share nothing but a mount."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.cluster.conftest import LONG
from tests.cluster.ground import Run
from tests.rigs.vm import Machine
from tests.rigs.vmcluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

TASKS = 20_000
NAIVE = """
import os, sys, time
print("looking", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""
STOPPING = 6.0
"""Seconds in which a stop intent is obeyed: a look every 2 s, and a Python that ends on an
emulated processor of which a fourth is there."""


@pytest.fixture
def run(cluster: Cluster) -> Iterator[Run]:
    made = Run(cluster, "life")
    yield made
    made.close()


def test_a_run_from_its_start_to_its_removal(run: Run, record_property: Any) -> None:
    run.start()
    before = run.wait_ready()
    assert sorted(before) == ["node1", "node2", "node3"]
    assert len({host["raw"]["boot_id"] for host in before.values()}) == 3

    told = run.send(TASKS).end(900)

    rate = TASKS / told["seconds"]
    record_property("tasks_per_second", rate)
    print(f"{TASKS} tasks in {told['seconds']} s: {rate:.0f} a second")
    done = {name: host["raw"]["done"] for name, host in run.wait_ready().items()}
    assert sum(done.values()) == TASKS, "each was executed once"
    assert min(done.values()) > TASKS / 30, f"all took part: {done}"
    run.check_clean()
    run.stop()
    run.ctl("cleanup", "--root", run.root)
    assert run.sh(f"ls {run.base}").stdout.split() == ["traces", "ws"]


def see(machine: Machine, command: str) -> subprocess.Popen[str]:
    """Begin a command in a machine; returns once it has said a first line."""
    child = subprocess.Popen(machine.ssh_argv(command), stdout=subprocess.PIPE, text=True)
    assert child.stdout and child.stdout.readline()
    return child


def test_a_stop_intent_is_seen_long_before_a_poll_for_existence_sees_a_file(
    run: Run, record_property: Any
) -> None:
    run.start("--concurrency", "1")
    run.wait_ready()
    naive, watched = (run.cluster.workers[name] for name in ("node2", "node1"))
    run.sh(f"mkdir {run.base}/flags")
    poll = see(naive, run.python(["-c", NAIVE, f"{run.base}/flags/stop"]))
    pid = run.beat("node1")["pid"]
    alive = see(watched, f"echo looking; while [ -d /proc/{pid} ]; do sleep 0.1; done")

    # Both files at once, as one command would make them.
    intent = f"{run.root}/ctl/node1.stop"
    begun = time.monotonic()
    run.sh(f"touch {run.base}/flags/stop; : >{intent}.new; mv {intent}.new {intent}")
    with ThreadPoolExecutor() as pool:
        ended = {
            name: pool.submit(_wait, child, begun)
            for name, child in {"intent": alive, "exists": poll}.items()
        }
    took = {name: future.result() for name, future in ended.items()}

    print(
        f"a stop intent: the worker's process is gone after {took['intent']:.1f} s; "
        f"a poll with os.path.exists() sees such a file after {took['exists']:.1f} s"
    )
    record_property("seconds", took)
    assert took["intent"] < STOPPING
    assert took["intent"] * 2 < took["exists"], "the contrast that makes listing necessary"
    assert LONG or took["exists"] < 120


def _wait(child: subprocess.Popen[str], begun: float) -> float:
    with child:
        assert child.wait(300) == 0
        return time.monotonic() - begun
