"""Training through the fleet is the same, to the bit, as the same rounds in one process; also when
a participant changes hosts amid a round, for which it counts once."""

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
SEEDS, ROUNDS = (3, 4), 3
BUFFERS = ("running_mean", "running_var")
"""Of a normalisation: averaged, never moved by a rule."""


@pytest.fixture
def ctl(tmp_path: Path) -> Iterator[Ctl]:
    with Ctl(tmp_path) as found:
        yield found


class Momentum:
    """FedAvgM, β 0.9, in float64 and rounded once; of counters the largest."""

    def __init__(self) -> None:
        self.model: State | None = None
        self._velocity: State = {}

    def merge(self, states: list[State]) -> None:
        """A round. The first has no model to start from: its mean becomes that."""
        before, self.model = self.model, {}
        for name in states[0]:
            values = torch.stack([state[name] for state in states])
            if not values.is_floating_point():
                self.model[name] = values.amax(0)
                continue
            mean = values.double().mean(0)
            if before is not None and not name.endswith(BUFFERS):
                x = before[name].double()
                velocity = mean - x
                if name in self._velocity:
                    velocity = 0.9 * self._velocity[name].double() + velocity
                mean = x + velocity
                self._velocity[name] = velocity.to(values.dtype)
            self.model[name] = mean.to(values.dtype)


@pytest.mark.timeout(600)
def test_rounds_are_those_of_one_process_though_a_job_changes_hosts(ctl: Ctl) -> None:
    fleet = JobFleet(ctl, "n0", "n1", "n2", options=("--federation",))
    command = [sys.executable, SCRIPT, "--save", "{checkpoint}", "--first", "{episode}"]
    group = ("--federation-group", "g", "--federation-size", str(len(SEEDS)))
    options = ("--checkpoint", "checkpoint.pt", "--episodes", str(ROUNDS), *group)
    jobs = []
    for seed in SEEDS:
        argv = [*command, "{transfer}", "--seed", str(seed)]
        done = fleet.call("job", "submit", *options, "--", *argv)
        assert done.returncode == 0, done.stderr
        jobs += done.stdout.split()
        if len(jobs) == 1:  # the group is there, and no round can end before the other job is
            assert fleet.call("rounds", "g", "--rule", "fedavgm").returncode == 0
    store, expected = Store(str(fleet.root)), Momentum()
    wait_until(lambda: federation.read_global(store, "g", 2), 120, "the first round")
    left = fleet.row(jobs[0]).host  # amid the second round this job moves to the host that is idle
    assert left and fleet.call("drain", left, "--timeout", "1s").returncode == 0
    for job in jobs:
        result = fleet.over(job, 240)
        assert (result["status"], result["episodes_completed"]) == ("success", ROUNDS), result
    assert len({note.host for note in fleet.notes(jobs[0])}) == 2
    for episode in range(1, ROUNDS + 1):
        expected.merge([train(expected.model, seed, episode) for seed in SEEDS])
        assert expected.model is not None
        # The last round may still be at work when its jobs have ended.
        at = episode + 1
        wait_until(lambda e=at: federation.read_global(store, "g", e), what=f"round {episode}")  # type: ignore[misc]
        found = model(store, at)["net_state_dict"]
        assert found.keys() == expected.model.keys()
        for name, value in expected.model.items():
            assert torch.equal(found[name], value), (episode, name)
    shown = json.loads(fleet.call("rounds", "g", "--json").stdout)["groups"][0]
    assert all(r["contributors"] == sorted(jobs) for r in shown["rounds"])
    assert [r["rule"] for r in shown["rounds"]] == ["fedavgm", "fedavgm", "fedavg"], "newest first"
