"""Training through the fleet is the same, to the bit, as the same rounds in one process."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fsworker.protocol import federation
from fsworker.protocol.fsops import Store
from tests.support.ctlrun import REPO, Ctl
from tests.support.jobs import JobFleet
from tests.support.rounds import model
from tests.support.tiny_torch_train import State, train
from tests.support.waiting import wait_until

pytestmark = pytest.mark.fleet

SCRIPT = str(REPO / "tests" / "support" / "tiny_torch_train.py")
SEEDS, ROUNDS = (3, 4), 2


@pytest.fixture
def ctl(tmp_path: Path) -> Iterator[Ctl]:
    with Ctl(tmp_path) as found:
        yield found


def mean(states: list[State]) -> State:
    """Weights averaged in float64 and rounded once; of counters the largest."""
    merged = {}
    for name in states[0]:
        values = torch.stack([state[name] for state in states])
        floating = values.is_floating_point()
        merged[name] = values.double().mean(0).to(values.dtype) if floating else values.amax(0)
    return merged


@pytest.mark.timeout(600)
def test_rounds_through_the_fleet_are_those_of_one_process(ctl: Ctl) -> None:
    fleet = JobFleet(ctl, "n0", "n1", options=("--federation",))
    command = [sys.executable, SCRIPT, "--save", "{checkpoint}", "--first", "{episode}"]
    group = ("--federation-group", "g", "--federation-size", str(len(SEEDS)))
    options = ("--checkpoint", "checkpoint.pt", "--episodes", str(ROUNDS), *group)
    jobs = []
    for seed in SEEDS:
        argv = [*command, "{transfer}", "--seed", str(seed)]
        done = fleet.call("job", "submit", *options, "--", *argv)
        assert done.returncode == 0, done.stderr
        jobs += done.stdout.split()
    for job in jobs:
        result = fleet.over(job, 240)
        assert (result["status"], result["episodes_completed"]) == ("success", ROUNDS), result
    store, expected = Store(str(fleet.root)), None
    for episode in range(1, ROUNDS + 1):
        expected = mean([train(expected, seed, episode) for seed in SEEDS])
        # The last round may still be at work when its jobs have ended.
        at = episode + 1
        wait_until(lambda e=at: federation.read_global(store, "g", e), what=f"round {episode}")  # type: ignore[misc]
        found = model(store, at)["net_state_dict"]
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(found[name], value), (episode, name)
    shown = json.loads(fleet.call("rounds", "g", "--json").stdout)["groups"][0]
    assert all(r["contributors"] == sorted(jobs) for r in shown["rounds"])
