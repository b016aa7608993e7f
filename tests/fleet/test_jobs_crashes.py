"""A job of twenty episodes, and everything below and above it killed or frozen meanwhile.

What must hold: it ends once, with all its episodes; none is run again after it was finished; and
its weights are those of a run that nobody disturbed, to the bit.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fsworker import procfs
from fsworker.protocol import artifacts, jobstate, layout, ledger
from fsworker.protocol.fsops import Store
from tests.support.ctlrun import Ctl
from tests.support.jobs import JobFleet, undisturbed
from tests.support.waiting import proc_state, wait_until

pytestmark = pytest.mark.fleet

EPISODES = 20
SEED = ("--seed", "7")
JOB = ("--episodes", str(EPISODES), "--per-episode-sync", "--id", "long")


@pytest.fixture
def ctl(tmp_path: Path) -> Iterator[Ctl]:
    with Ctl(tmp_path) as found:
        yield found


def below(*pids: int) -> list[int]:
    """These processes and all below them."""
    return [*pids, *(stat.pid for stat in procfs.descendants(pids))]


def kill(*pids: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def runners(fleet: JobFleet, host: str) -> list[int]:
    """The runners of a host: children of its worker that say so."""
    found = []
    for stat in procfs.descendants([fleet.pids(host)[1]]):
        with suppress(OSError):
            line = Path(f"/proc/{stat.pid}/cmdline").read_bytes()
            if b"fsworker.jobs.runner" in line:
                found.append(stat.pid)
    return found


def begun(fleet: JobFleet) -> list[int]:
    return [int(line.split()[1]) for line in fleet.lines() if line.startswith("begin")]


def check(fleet: JobFleet, job: str, expected: list[float]) -> None:
    """All that must hold in the end."""
    result = fleet.over(job, 240)
    assert (result["status"], result["episodes_completed"]) == ("success", EPISODES), result
    assert fleet.weights(job, EPISODES) == expected
    folder = jobstate.look(fleet.run.store, job)
    assert folder.episodes == tuple(range(1, EPISODES + 1))
    tokens = [name for name in folder.names if layout.jobs.parse_job_token(name)]
    assert len(tokens) == 1
    episodes = begun(fleet)
    # An episode begins when the one before it is finished, so going back would be a repetition.
    assert episodes == sorted(episodes) and set(episodes) == set(range(1, EPISODES + 1))
    wait_until(lambda: not fleet.holders(job), what="the end of all its processes")


def test_kills_at_random_moments_change_nothing_that_counts(ctl: Ctl, tmp_path: Path) -> None:
    draw = random.Random(os.environ.get("FLEET_TEST_SEED") or time.time_ns())
    expected = undisturbed(tmp_path, EPISODES, *SEED)
    fleet = JobFleet(ctl, "n0")
    job = fleet.submit(*SEED, "--pause", "0.05", options=JOB)
    kinds = ["training", "runner", "worker", "training", "wrapper", "tree"]
    draw.shuffle(kinds)
    for number, kind in enumerate(kinds):
        at = 3 * number + draw.randint(1, 2)
        wait_until(lambda at=at: max(begun(fleet), default=0) >= at, what=f"episode {at}")
        time.sleep(draw.random() * 0.3)  # any moment will do
        wrapper, worker = fleet.pids("n0")
        if kind == "training":
            kill(*fleet.holders(job))
        elif kind == "runner":
            kill(*runners(fleet, "n0"))
        elif kind == "worker":
            kill(worker)
        elif kind == "wrapper":
            kill(wrapper)
        else:
            kill(*below(wrapper))
        if kind in ("wrapper", "tree"):
            done = fleet.call("restart-host", "n0")
            assert done.returncode == 0, done.stderr
    check(fleet, job, expected)


def take_what_is_prepared(folder: Path, aside: Path) -> int:
    """Take a checkpoint that is about to be published away, whole; the number of its episode."""
    end = time.monotonic() + 120
    while time.monotonic() < end:  # without rest: it lies there for some milliseconds
        for prepared in folder.glob(".tmp~*"):
            episode = layout.jobs.parse_after_name(prepared.name.rpartition("~")[2])
            if episode and (prepared / "checkpoint.json").exists():
                with suppress(OSError):  # it was published meanwhile
                    prepared.rename(aside)
                    return episode
    raise AssertionError("no checkpoint was seen before it was published")


def test_a_checkpoint_that_goes_before_it_is_published_is_trained_again(
    ctl: Ctl, tmp_path: Path
) -> None:
    expected = undisturbed(tmp_path, EPISODES, *SEED)
    fleet = JobFleet(ctl, "n0")
    job = fleet.submit(*SEED, "--pause", "0.05", options=JOB)
    fleet.running(job, "begin 2")
    lost = take_what_is_prepared(fleet.job(job), tmp_path / "aside")
    result = fleet.over(job, 240)
    assert (result["status"], result["episodes_completed"]) == ("success", EPISODES), result
    assert fleet.weights(job, EPISODES) == expected
    assert begun(fleet) == sorted([*range(1, EPISODES + 1), lost])


def state_of(folder: Path, without: str) -> dict[str, str]:
    """The digests of all files below a folder, but for one attempt's."""
    found = {}
    for top, _, names in os.walk(folder):
        if without not in top:
            for name in names:
                path = Path(top, name)
                found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


@pytest.mark.parametrize("thawed", ["amid its successor's work", "when that has ended"])
def test_a_frozen_attempt_that_was_given_up_harms_nothing(
    ctl: Ctl, tmp_path: Path, thawed: str
) -> None:
    expected = undisturbed(tmp_path, EPISODES, *SEED)
    fleet = JobFleet(ctl, "n0", "n1")
    job = fleet.submit(*SEED, "--pause", "0.15", options=JOB)
    fleet.running(job, "begin 3")
    host = wait_until(lambda: fleet.row(job).host, what="a host")
    (attempt, _), *_ = jobstate.attempts(fleet.run.store, job)
    frozen = below(fleet.pids(host)[0])
    for pid in frozen:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    try:
        # As a watcher does once a host has been silent for too long: without any proof of death.
        owner = layout.Owner(host, attempt.incarnation)
        wait_until(lambda: Store(fleet.root).run(ledger.reclaim(owner, died=False)).finished)
        fleet.running(job, "begin 6")
        # What somebody prepares: whose attempt it is does not stand in its name, so that the frozen
        # worker would take it away if it began anew without a look at its claim.
        prepared = artifacts.prepare(fleet.run.store, layout.jobs.episode_dir(job, EPISODES))
        fleet.run.store.put(f"{prepared}/checkpoint.json", b"{}")
        if thawed.startswith("when"):
            fleet.over(job, 240)
            before = state_of(fleet.job(job), attempt.name)
    finally:
        for pid in frozen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    check(fleet, job, expected)
    wait_until(lambda: not runners(fleet, host), what="the end of the zombie")
    assert all(proc_state(pid) != "T" for pid in frozen)
    if thawed.startswith("when"):
        assert state_of(fleet.job(job), attempt.name) == before
    assert fleet.run.store.scan(prepared) == ["checkpoint.json"]
    notes = fleet.notes(job)
    assert [(n.attempt, n.deaths) for n in notes] == [(1, 0), (2, 0)]
    result = json.loads((fleet.job(job) / "result.json").read_bytes())
    assert (result["attempt"], result["worker_id"] != host) == (2, True)
