"""What a run does and costs from its start on, on machines that share nothing but a mount."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

from tests.cluster.ground import Run
from tests.cluster.mountstats import requests, told

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


@pytest.fixture
def run(fleet: Run) -> Run:
    return fleet


def done_since(run: Run, before: dict[str, Any]) -> dict[str, int]:
    """By worker, how many tasks its beats tell of since those."""
    now = run.wait_ready()
    return {name: now[name]["raw"]["done"] - before[name]["raw"]["done"] for name in before}


def test_many_tasks_have_one_answer_each(run: Run, record_property: Any) -> None:
    before = run.wait_ready()
    assert sorted(before) == ["node1", "node2", "node3"]
    assert len({host["raw"]["boot_id"] for host in before.values()}) == 3

    told = run.send(TASKS).end(900)

    rate = TASKS / told["seconds"]
    record_property("tasks_per_second", rate)
    print(f"{TASKS} tasks in {told['seconds']} s: {rate:.0f} a second")
    end = time.monotonic() + 120
    while sum((done := done_since(run, before)).values()) < TASKS and time.monotonic() < end:
        run.wait_beats()  # they tell of it a little later
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
