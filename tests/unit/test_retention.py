"""A group that runs for weeks fills neither the disk nor the memory of its aggregator."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedavg.keeper import GroupKeeper
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import groups
from tests.support.rounds import make_group, upload

pytestmark = pytest.mark.unit


def test_what_is_known_of_old_rounds_goes_with_their_files(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir(mode=0o700)
    store = Store(tmp_path / "root")
    make_group(store, "abc", quorum=2, keep_rounds=2)
    keeper = GroupKeeper(store, "g", threads=1)
    for episode in range(1, 6):
        for job, samples in (("a", 1), ("b", 1), ("c", 0)):
            upload(store, "g", job, episode, 1.0, samples=samples)
        assert keeper.step().merged
        keeper.step()
    assert sorted(store.scan(groups.refusals_dir("g"))) == ["after_ep_0004", "after_ep_0005"]
    eye = keeper.eye
    assert eye.refusals(4).keys() == eye.refusals(5).keys() == {"c"}
    assert {number for number, _ in eye._refusals} == {4, 5}
    assert {number for number, _ in eye._uploads} == {4, 5}
    assert min(eye._plans) == min(eye._globals) == 4
    assert {number for number, _ in keeper._judge._verdicts} == {4, 5}
