"""A worker that goes through what it found in a foreign shard, while work comes to its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsworker.loop.intake import HOME_IDLE, Intake
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Token
from fsworker.protocol.records.run import Manifest, WorkerSpec

pytestmark = pytest.mark.unit


def put(path: Path, shard: int, *seqs: int) -> None:
    for seq in seqs:
        token = Token(layout.batch_id("s", "c0ffee000001", seq), shard)
        (path / layout.inbox_path(token)).touch()


@pytest.fixture
def intake(tmp_path: Path) -> Intake:
    """Of the worker of shard 0, with nothing at home and much in shard 1."""
    for shard in range(2):
        (tmp_path / layout.inbox_dir(shard)).mkdir(parents=True)
    put(tmp_path, 1, *range(200))
    workers = tuple(WorkerSpec(f"n{i}", i) for i in range(2))
    return Intake(Store(tmp_path), Manifest("r", "f", 2, workers), "n0", 0)


def take(intake: Intake, now: float) -> int:
    """The shard of the batch that is taken now."""
    found = intake.next(now, steal=True)
    assert found is not None
    intake.took(found, won=True, now=now)
    return found.shard


def test_what_comes_home_is_taken_before_the_rest_of_a_foreign_listing(
    intake: Intake, tmp_path: Path
) -> None:
    assert take(intake, 0.0) == 1
    put(tmp_path, 0, 500, 501)
    assert take(intake, 0.01) == 1
    assert [take(intake, HOME_IDLE + now) for now in (0.01, 0.02)] == [0, 0]


def test_home_is_looked_at_right_before_a_foreign_shard(intake: Intake, tmp_path: Path) -> None:
    intake.foreign.due = 100.0
    now = 0.0
    while now < 10.0:
        assert intake.next(now, steal=True) is None
        now = intake.due
    put(tmp_path, 0, 500)
    intake.foreign.due = now - HOME_IDLE / 2
    assert intake.home.due > intake.foreign.due
    assert take(intake, now - HOME_IDLE / 2) == 0


def test_while_nothing_comes_home_the_listing_is_used_up(intake: Intake) -> None:
    """And looks at home are no more than those of a worker that is idle."""
    store, seconds = intake._store, 2.0
    taken = [take(intake, n * seconds / 200) for n in range(200)]
    assert taken == [1] * 200
    assert store.calls["list"] <= 2 + seconds / HOME_IDLE


def test_a_home_that_cannot_be_listed_stops_nothing(intake: Intake, tmp_path: Path) -> None:
    assert take(intake, 0.0) == 1
    (tmp_path / layout.inbox_dir(0)).rmdir()
    (tmp_path / layout.inbox_dir(0)).touch()
    assert [take(intake, n * 1.0) for n in range(1, 9)] == [1] * 8
