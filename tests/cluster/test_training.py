"""Training on machines that share nothing but a mount: the rounds of a group, jobs that move.

What comes out is compared with the same training in this process, so that whatever a machine that
was given up did meanwhile, it changed nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from fsworker.protocol import layout
from fsworker.protocol.layout import groups
from tests.cluster.ground import WATCH, Run, restore
from tests.rigs.hosts import REPO
from tests.rigs.vmcluster import Cluster
from tests.support.tiny_train import episode

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

TRAIN = str(REPO / "tests" / "support" / "tiny_train.py")
SEEDS, ROUNDS, STEPS = (3, 4), 3, 50
PAUSE = "6"
"""Seconds that an episode takes, so that something can happen to its machine meanwhile."""


@pytest.fixture(scope="module")
def run(cluster: Cluster) -> Iterator[Run]:
    """A run of job slots alone, with a watcher and an aggregator on the head."""
    made = Run(cluster, "training")
    try:
        made.start("--watch", "--federation", "--concurrency", "0", **WATCH)
        yield made
        made.ctl("fsck", "--root", made.root)
        made.stop()
    finally:
        for machine in cluster.workers.values():
            restore(machine)
        cluster.save()
        made.close()


def submit(run: Run, job: str, seed: int, *options: str) -> str:
    """Submit a job of the tiny training script under this id."""
    train = [sys.executable, TRAIN, "--save", "{checkpoint}", "--first", "{episode}", "{transfer}"]
    train += ["--seed", str(seed), "--steps", str(STEPS), "--pause", PAUSE]
    named = ("--id", job, "--checkpoint", "checkpoint.json", "--cwd", "/", *options)
    run.ctl("job", "submit", "--root", run.root, *named, "--", *train)
    return job


def holder(run: Run, job: str) -> str:
    """The host that runs a job now."""
    told = json.loads(run.ctl("jobs", "--root", run.root, "--json").stdout)["jobs"]
    (host,) = [row["host"] for row in told if row["job_id"] == job]
    assert host in run.cluster.workers, told
    return str(host)


def read(run: Run, path: str) -> Any:
    """A JSON file of the root."""
    return json.loads(run.sh(f"cat {run.root}/{path}").stdout)


def result(run: Run, job: str) -> dict[str, Any]:
    """The result of a job, once it is there; it must be a success."""
    folder = layout.jobs.job_dir(job)
    run.wait(run.listed(folder, "^result.json$"), what=f"the result of {job}")
    found: dict[str, Any] = read(run, f"{folder}/result.json")
    assert found["status"] == "success", found
    return found


def attempts(run: Run, job: str) -> list[int]:
    """The numbers of the attempts at a job."""
    names = run.sh(f"ls {run.root}/{layout.jobs.attempts_dir(job)}").stdout.split()
    return sorted(int(name.partition("~")[0]) for name in names)


def trained(seeds: tuple[int, ...], episodes: int) -> list[list[float]]:
    """The weights after each episode, by the mean of what all seeds make of those before."""
    weights, found = [0.0] * 8, []
    for number in range(1, episodes + 1):
        made = [episode(list(weights), number, seed, STEPS)[0] for seed in seeds]
        weights = [sum(values) / len(seeds) for values in zip(*made, strict=True)]
        found.append(weights)
    return found


@pytest.mark.long
def test_rounds_are_those_of_one_process_though_a_job_changes_machines(run: Run) -> None:
    """In its second episode a machine freezes; it thaws when its job is at work elsewhere."""
    group = ("--federation-group", "g", "--federation-size", str(len(SEEDS)))
    options = ("--episodes", str(ROUNDS), *group)
    moving, staying = (submit(run, f"member{seed}", seed, *options) for seed in SEEDS)
    run.wait(run.listed(groups.globals_dir("g"), "^before_ep_0002$"), what="the first model")
    host = holder(run, moving)
    machine, launch = run.cluster.workers[host], run.beat(host)["launch"]
    machine.freeze()
    run.wait_said(f"revoked {host} .*batches=1 died=0")
    run.wait(run.listed(layout.jobs.attempts_dir(moving), "^2~"), what="a second attempt")
    machine.thaw()

    results = {job: result(run, job) for job in (moving, staying)}
    assert [r["episodes_completed"] for r in results.values()] == [ROUNDS] * len(SEEDS), results
    assert (results[moving]["attempt"], results[staying]["attempt"]) == (2, 1)
    assert results[moving]["worker_id"] != host
    assert attempts(run, moving) == [1, 2] and attempts(run, staying) == [1]

    last = groups.globals_dir("g"), f"^{layout.jobs.before_name(ROUNDS + 1)}$"
    run.wait(run.listed(*last), what="the last model")
    for number, expected in enumerate(trained(SEEDS, ROUNDS), 1):
        model = read(run, f"{groups.global_dir('g', number + 1)}/global_weights.json")
        assert model["weights"] == pytest.approx(expected, rel=1e-12), f"round {number}"
    shown = json.loads(run.ctl("rounds", "g", "--root", run.root, "--json").stdout)["groups"][0]
    counted = [merged["contributors"] for merged in shown["rounds"]]
    assert counted == [sorted((moving, staying))] * ROUNDS

    # The attempt that was given up has seen it, and its worker lives on.
    ended = f"! grep -qa FLEET_JOB={moving} /proc/[0-9]*/environ 2>/dev/null"
    run.wait(ended, what=f"the end of the first attempt on {host}", on=machine)
    run.wait_ready()
    assert run.beat(host)["launch"] == launch and run.restarts() == []


@pytest.mark.long
def test_a_job_goes_on_elsewhere_when_its_machine_is_switched_off(run: Run) -> None:
    episodes, seed = 4, 5
    job = submit(run, "alone", seed, "--episodes", str(episodes), "--per-episode-sync")
    run.wait(run.listed(layout.jobs.job_dir(job), "^after_ep_0002$"), what="two episodes")
    host = holder(run, job)
    run.cluster.workers[host].power_off()

    found = result(run, job)
    assert (found["episodes_completed"], found["attempt"]) == (episodes, 2), found
    assert found["worker_id"] != host
    saved = read(run, f"{layout.jobs.job_dir(job)}/checkpoint_final.json")
    assert saved["weights"] == trained((seed,), episodes)[-1], "to the bit"
    restore(run.cluster.workers[host])
    run.cluster.save()
    run.wait_ready()
