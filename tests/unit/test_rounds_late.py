"""Late uploads that count, by numbers that were worked out beside the rule."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fedavg.keeper import GroupKeeper
from fsworker.protocol.fsops import Store
from fsworker.protocol.groupview import GroupEye
from tests.support.rounds import make_group, model, refusals, upload

pytestmark = pytest.mark.unit


def value(store: Store, episode: int) -> float:
    return float(model(store, episode)["q_net_state_dict"]["0.weight"][0, 0])


def test_fedbuff_weighs_a_change_by_the_rounds_that_it_is_late(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir(mode=0o700)
    store = Store(tmp_path / "root")
    terms = {"rule": "fedbuff", "options": {"lr": 0.5}, "late": "delta", "keep_rounds": 3}
    make_group(store, "abc", quorum=2, **terms)
    rounds = [
        ({"a": 1.0, "b": 3.0}, 2.0),  # no model to move yet: the mean
        ({"a": 6.0, "b": 4.0}, 2.0 + 0.5 * (4.0 + 2.0) / 2),
        ({"a": 4.5, "b": 5.5}, 3.5 + 0.5 * (1.0 + 2.0) / 2),
    ]
    for episode, (uploads, expected) in enumerate(rounds, 1):
        for job, number in uploads.items():
            upload(store, "g", job, episode, number)
        assert GroupKeeper(store, "g", threads=1).step().merged
        assert value(store, episode + 1) == pytest.approx(expected, rel=1e-6)
    upload(store, "g", "c", 2, 8.0)  # it is 6 from the 2.0 that it started from, two rounds ago
    upload(store, "g", "b", 3 + 1, 5.25)  # and this 1 from the 4.25 of now
    assert GroupKeeper(store, "g", threads=1).step().merged
    plan = GroupEye(store, "g").plan(4)
    assert plan is not None and [(c.job, c.episode) for c in plan.contributors] == [
        ("b", 4), ("c", 2),
    ]  # fmt: skip
    expected = 4.25 + 0.5 * (1.0 + 6.0 / math.sqrt(1 + 2)) / 2
    assert value(store, 5) == pytest.approx(expected, rel=1e-6)


def test_a_newer_late_upload_counts_though_an_older_one_has(tmp_path: Path) -> None:
    """c is always one round behind."""
    (tmp_path / "root").mkdir(mode=0o700)
    store = Store(tmp_path / "root")
    make_group(store, "abc", quorum=2, late="delta", keep_rounds=3)
    for job in "abc":
        upload(store, "g", job, 1, 1.0)
    assert GroupKeeper(store, "g", threads=1).step().merged
    counted = []
    for episode in (2, 3, 4):
        if episode > 2:
            upload(store, "g", "c", episode - 1, 1.0)
        for job in "ab":
            upload(store, "g", job, episode, 1.0)
        assert GroupKeeper(store, "g", threads=1).step().merged
        plan = GroupEye(store, "g").plan(episode)
        assert plan is not None
        counted.append([c.episode for c in plan.contributors if c.job == "c"])
    assert counted == [[], [2], [3]]
    assert refusals(store, 2) == refusals(store, 3) == {}
