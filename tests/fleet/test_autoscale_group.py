"""`examples/autoscale` in a group of two over four rounds, as its README has it."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fsworker.protocol import federation
from fsworker.protocol.fsops import Store
from tests.support.ctlrun import REPO, Ctl
from tests.support.jobs import JobFleet
from tests.support.rounds import model
from tests.support.waiting import wait_until

pytestmark = pytest.mark.fleet

HERE = REPO / "examples" / "autoscale"
SEEDS = (1, 2)


@pytest.fixture
def ctl(tmp_path: Path) -> Iterator[Ctl]:
    with Ctl(tmp_path) as found:
        yield found


def submission(seed: int) -> list[str]:
    """What the README submits for each seed."""
    text = (HERE / "README.md").read_text().replace("\\\n", " ")
    found = re.search(r"^ +(ctl job submit --id pair\$seed .*)$", text, re.MULTILINE)
    assert found is not None
    line = found[1].replace("$seed", str(seed)).replace("$A", str(HERE))
    words = shlex.split(line)
    return [sys.executable if word == "python" else word for word in words[1:]]


@pytest.mark.timeout(600)
def test_two_agents_learn_one_policy_in_four_rounds(ctl: Ctl) -> None:
    fleet = JobFleet(ctl, "h1", "h2", options=("--federation",))
    for seed in SEEDS:
        done = fleet.call(*submission(seed))
        assert done.returncode == 0, done.stderr
    jobs = [f"pair{seed}" for seed in SEEDS]
    for job in jobs:
        result = fleet.over(job, 400)
        assert (result["status"], result["episodes_completed"]) == ("success", 4), result
    store = Store(str(fleet.root))
    wait_until(lambda: federation.read_global(store, "pair", 5), what="the last round")
    shown = json.loads(fleet.call("rounds", "pair", "--json").stdout)["groups"][0]
    assert [(r["round"], r["contributors"]) for r in shown["rounds"]] == [
        (number, jobs) for number in (4, 3, 2, 1)
    ]
    last = [torch.load(upload(fleet, job), weights_only=True) for job in jobs]
    merged = model(store, 5, "pair")
    weights = [flat(state) for state in (*last, merged)]
    assert not torch.equal(weights[0], weights[1]), "each has seen other chances"
    torch.testing.assert_close(weights[2], (weights[0] + weights[1]) / 2)


def upload(fleet: JobFleet, job: str) -> Path:
    return fleet.root / "outbox/federation/pair/from_worker/after_ep_0004" / job / "checkpoint.pt"


def flat(state: dict[str, Any]) -> torch.Tensor:
    """All weights of the policy in a row."""
    return torch.cat([value.flatten() for _, value in sorted(state["q_net_state_dict"].items())])
