"""Which hosts a run has after it was scaled, and who looks after shards that nobody calls home."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ctl import scaling
from ctl.scaling import Scale
from fsworker.errors import UsageError
from fsworker.loop.intake import HOME_IDLE, Intake
from fsworker.loop.neighbours import Neighbours
from fsworker.loop.roster import LOOK_EVERY, adopted
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Token
from fsworker.protocol.records.run import LaunchMeta, Manifest, WorkerSpec

pytestmark = pytest.mark.unit


def meta(*shards: int, count: int | None = None) -> LaunchMeta:
    """A run with hosts n0, n1, … of these shards, each launched once."""
    workers = tuple(WorkerSpec(f"n{i}", shard, 4) for i, shard in enumerate(shards))
    launches = {w.host: 1 for w in workers}
    return LaunchMeta("/r", "run", workers, count or max(shards) + 1, "m:f", launches=launches)


def homes(change: Scale) -> dict[str, int]:
    return {w.host: w.shard for w in change.meta.workers}


def test_hosts_that_join_get_the_shards_with_the_fewest_workers() -> None:
    change = scaling.plan(meta(0, 1, 1, count=4), (), add={"a": None, "b": None, "c": None})
    assert change.joining == ("a", "b", "c")
    assert homes(change) == {"n0": 0, "n1": 1, "n2": 1, "a": 2, "b": 3, "c": 0}
    assert {w.concurrency for w in change.meta.workers} == {4}
    assert change.meta.launches == {"n0": 1, "n1": 1, "n2": 1, "a": 1, "b": 1, "c": 1}


def test_a_host_that_leaves_makes_room_and_stays_until_it_is_gone() -> None:
    change = scaling.plan(meta(0, 1), (), add={"a": None}, remove=["N1"])
    assert (change.joining, change.leaving) == (("a",), ("n1",))
    assert homes(change) == {"n0": 0, "a": 1, "n1": 1}
    after = scaling.without(change.meta, {"n1"})
    assert [w.host for w in after.workers] == ["n0", "a"]
    assert after.launches["n1"] == 1  # it may come back, with a number that was never used


def test_exactly_these_hosts() -> None:
    change = scaling.plan(meta(0, 1, 2), {"n2"}, exactly=["n1", "n2", "n9"])
    assert change.leaving == ("n0",)
    assert change.joining == ("n2", "n9")  # n2 was drained and is wanted again
    assert change.meta.launches == {"n0": 1, "n1": 1, "n2": 2, "n9": 1}
    assert homes(change)["n9"] == 0
    same = scaling.plan(meta(0, 1), (), exactly=["n1", "n0"])
    assert (same.joining, same.leaving) == ((), ())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"remove": ["x9"]}, "'x9' is not of this run, which has n0, n1"),
        ({"add": {"n0": 1}}, "serves shard 0, not 1"),
        ({"add": {"a": 2}}, "there is no shard 2, the run has 2 (0 to 1)"),
        ({"add": {"n1": None}, "remove": ["n1"]}, "both added and removed"),
        ({"remove": ["n0", "n1"]}, "no host would be left"),
    ],
)
def test_what_makes_no_sense_is_said(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        scaling.plan(meta(0, 1), (), **arguments)
    assert words in str(caught.value)


def test_additions_as_people_write_them() -> None:
    assert scaling.parse_additions(["a", "b:3", "n[1-2]:0", "n[07-08]"]) == {
        "a": None, "b": 3, "n1": 0, "n2": 0, "n07": None, "n08": None,
    }  # fmt: skip
    with pytest.raises(UsageError, match="twice"):
        scaling.parse_additions(["a", "a:1"])


def test_shards_without_a_worker_are_dealt_out() -> None:
    workers = meta(0, 1, 2, count=6).workers
    assert [adopted(workers, (), 6, f"n{i}") for i in range(3)] == [(3,), (4,), (5,)]
    assert [adopted(workers, {"n1"}, 6, f"n{i}") for i in range(3)] == [(1, 4), (), (3, 5)]
    assert adopted(workers, (), 3, "n0") == ()
    assert adopted(workers, (), 6, "stranger") == ()


def test_an_adopted_shard_is_looked_at_like_the_own_one(tmp_path: Path) -> None:
    for folder in (layout.CTL, *map(layout.inbox_dir, range(4))):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / layout.LAUNCH_META).write_bytes(meta(0, 1, 2, 3).to_json())
    store = Store(tmp_path)
    found = Intake(store, Manifest("r", "f", 4, meta(0, 1, 2, 3).workers), "n0", 0)
    neighbours = Neighbours(store, "n0", found)
    now = 0.0
    while now < 30:  # idle for so long that looks at foreign shards are rare
        assert found.next(now, steal=True) is None
        neighbours.turn(now, idle=False)
        now = max(found.due, now)
    (tmp_path / layout.host_file("n3", "stop")).touch()
    now += LOOK_EVERY
    neighbours.turn(now, idle=False)
    batch = layout.batch_id("s", "c0ffee000001", 1)
    (tmp_path / layout.inbox_path(Token(batch, 3))).touch()
    before, calls = now, store.calls["list"]
    while (token := found.next(now, steal=False)) is None:
        now = max(found.home.due, now)
    assert token.batch == batch
    assert now - before <= 2 * HOME_IDLE + 0.01
    assert store.calls["list"] - calls <= 2
