"""A run from its start to its removal, on machines that share nothing but a mount."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.cluster.conftest import LONG
from tests.cluster.ground import Run
from tests.cluster.mountstats import requests, told
from tests.rigs.vm import Machine
from tests.rigs.vmcluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

TASKS = 20_000
BATCHES = 150
IDLE = 60.0
SPAN = 30.0
PER_BATCH_WORKER = 20.0
PER_BATCH_CLIENT = 20.0
IDLE_WORKER = 10.0
"""Requests, on average: see "What it costs a file server" in docs/protocol.md."""

ONE_BY_ONE = """
import sys
from fsworker.client import Client
with Client(sys.argv[1], no_worker_timeout=None) as client:
    values = range(int(sys.argv[2]))
    assert list(client.map("tests.cluster.functions:double", values, chunksize=1)) == [
        2 * x for x in values
    ]
"""
NAIVE = """
import os, sys, time
assert not os.path.exists(sys.argv[1])
print("looking", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""
STOPPING = 8.0
"""Seconds in which a stop intent is obeyed: a look every 2 s, and a Python that ends on an
emulated processor of which a fourth is there."""


@pytest.fixture(scope="module")
def run(cluster: Cluster) -> Iterator[Run]:
    """One run, which the tests of this file use one after the other, the last one ends it."""
    made = Run(cluster, "life")
    try:
        made.start()
        yield made
    finally:
        made.close()


def test_many_tasks_have_one_answer_each(run: Run, record_property: Any) -> None:
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


def test_what_an_idle_worker_and_a_batch_cost_a_real_server(run: Run) -> None:
    worker = run.cluster.workers["node1"]
    time.sleep(IDLE)
    begun, before = time.monotonic(), requests(run, worker)
    time.sleep(SPAN)
    idle = requests(run, worker) - before
    seconds = time.monotonic() - begun

    everybody = [run.head, *run.cluster.workers.values()]
    first = [requests(run, machine) for machine in everybody]
    at = time.monotonic()
    words = ["-c", ONE_BY_ONE, run.root, str(BATCHES)]
    run.sh(run.python(words), timeout=600)
    took = time.monotonic() - at
    spent = [requests(run, m) - old for m, old in zip(everybody, first, strict=True)]
    client, workers = spent[0], sum(spent[1:], Counter[str]())
    resting = 3 * took * idle.total() / seconds  # beats and looks, which take place anyway

    print(f"an idle worker, requests a second: {told(idle, seconds)}")
    print(f"a batch, requests of the client: {told(client, BATCHES)}")
    print(
        f"a batch, requests of its worker: {told(workers, BATCHES)}, of these "
        f"{resting / BATCHES:.1f} for beats and looks in {took:.0f} s"
    )
    assert idle.total() / seconds <= IDLE_WORKER
    assert client.total() / BATCHES <= PER_BATCH_CLIENT
    assert (workers.total() - resting) / BATCHES <= PER_BATCH_WORKER


def test_a_stop_intent_is_seen_long_before_a_poll_for_existence_sees_a_file(
    run: Run, record_property: Any
) -> None:
    naive, watched = (run.cluster.workers[name] for name in ("node2", "node1"))
    run.sh(f"mkdir {run.base}/flags")
    pid = run.beat("node1")["pid"]
    alive = see(watched, f"echo looking; while [ -d /proc/{pid} ]; do sleep 0.1; done")
    # Last: what it once found absent it believes for up to half a minute from now.
    poll = see(naive, run.python(["-c", NAIVE, f"{run.base}/flags/stop"]))

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


def test_a_run_ends_without_trace_once_nobody_holds_its_files_open(run: Run) -> None:
    run.stop()

    # A file that a process of this client still reads: its removal leaves `.nfs…` in its folder.
    hold = f"exec 3<{run.root}/ctl/node1.log; echo held; sleep 600"
    with see(run.head, hold) as holder:
        held = run.ctl("cleanup", "--root", run.root, code=None)
        assert held.returncode != 0
        assert ".nfs" in held.stderr and "Traceback" not in held.stderr, held.stderr
        run.sh("kill $(pidof sleep)")
        holder.wait(60)
    run.ctl("cleanup", "--root", run.root)
    assert "run" not in run.sh(f"ls -A {run.base}").stdout.split()


def see(machine: Machine, command: str) -> subprocess.Popen[str]:
    """Begin a command in a machine; returns once it has said a first line."""
    child = subprocess.Popen(machine.ssh_argv(command), stdout=subprocess.PIPE, text=True)
    assert child.stdout and child.stdout.readline()
    return child


def _wait(child: subprocess.Popen[str], begun: float) -> float:
    with child:
        assert child.wait(300) == 0
        return time.monotonic() - begun
