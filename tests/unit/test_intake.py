"""Where a worker looks for work, how often, and which batch it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsworker.loop.intake import FOREIGN_IDLE, HOME_IDLE, LOST_RACES, Intake, arrange
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Token
from fsworker.protocol.records.run import Manifest, WorkerSpec

pytestmark = pytest.mark.unit

CLIENT = "c0ffee000001"


def token(seq: int, shard: int = 0) -> Token:
    return Token(layout.batch_id("s", CLIENT, seq), shard)


def intake(path: Path, waiting: dict[int, int], host: str = "n0") -> tuple[Store, Intake]:
    """An intake over inboxes that hold that many batches each."""
    for shard, count in waiting.items():
        (path / layout.inbox_dir(shard)).mkdir(parents=True)
        for seq in range(count):
            (path / layout.inbox_path(token(seq, shard))).touch()
    workers = tuple(WorkerSpec(f"n{i}", 0) for i in range(2))
    store = Store(path)
    return store, Intake(store, Manifest("r", "f", len(waiting), workers), host, 0)


def seqs(tokens: list[Token]) -> list[int]:
    return [layout.seq_of(t.batch) for t in tokens]


def test_oldest_first_by_number_and_sharers_apart() -> None:
    tokens = [token(i) for i in (10, 9, 2, 1, 100)]
    assert seqs(arrange(tokens)) == [1, 2, 9, 10, 100]
    assert seqs(arrange(tokens, newest_first=True)) == [100, 10, 9, 2, 1]
    assert seqs(arrange(tokens, rank=1, sharers=2)) == [2, 10, 1, 9, 100]


def test_a_listing_is_used_up_before_the_next(tmp_path: Path) -> None:
    store, found = intake(tmp_path, {0: 5})
    taken = []
    for now in range(5):
        candidate = found.next(now / 100, steal=True)
        assert candidate
        taken.append(candidate)
        found.took(candidate, won=True, now=now / 100)
    assert store.calls["list"] == 1
    assert sorted(seqs(taken)) == [0, 1, 2, 3, 4]


def test_home_first_then_one_foreign_shard_a_look_newest_first(tmp_path: Path) -> None:
    store, found = intake(tmp_path, {0: 1, 1: 0, 2: 3})
    first = found.next(0.0, steal=True)
    assert first and first.shard == 0
    found.took(first, won=True, now=0.0)
    (tmp_path / layout.inbox_path(first)).unlink()
    assert found.next(1.0, steal=True) is None  # home is empty, and so is shard 1
    assert store.calls["list"] == 3
    stolen = found.next(2.0, steal=True)
    assert stolen and (stolen.shard, layout.seq_of(stolen.batch)) == (2, 2)


def test_lost_races_make_a_new_listing(tmp_path: Path) -> None:
    store, found = intake(tmp_path, {0: 50})
    now = 0.0
    for _ in range(LOST_RACES):
        candidate = found.next(now, steal=False)
        assert candidate
        found.took(candidate, won=False, now=now)
    assert found.next(now, steal=False) is None  # not at once: perhaps nobody lets us
    assert found.next(now + 1, steal=False)
    assert store.calls["list"] == 2


def test_an_idle_minute_is_within_the_budget(tmp_path: Path) -> None:
    store, found = intake(tmp_path, {0: 0, 1: 0, 2: 0})
    now, end = 0.0, 60.0
    while now < end:
        found.next(now, steal=True)
        now = max(found.due, now + 1e-6)
    before = store.calls["list"]
    end += 60.0
    while now < end:
        assert found.next(now, steal=True) is None
        now = max(found.due, now + 1e-6)
    looks = (store.calls["list"] - before) / 60.0
    beats, stop_intent, own_folder = 2 / 2.0, 1 / 2.0, 1 / 30.0
    assert 1 / HOME_IDLE - 0.1 < looks < 1 / HOME_IDLE + 1 / FOREIGN_IDLE + 0.1
    assert looks + beats + stop_intent + own_folder <= 5.0


def test_success_makes_it_look_soon_again(tmp_path: Path) -> None:
    _, found = intake(tmp_path, {0: 0})
    now = 0.0
    for _ in range(40):
        found.next(now, steal=True)
        now = found.due
    found.hurry(now)
    assert found.due <= now + 0.01


def test_a_missing_inbox_is_an_empty_one(tmp_path: Path) -> None:
    _, found = intake(tmp_path, {0: 0})
    (tmp_path / layout.inbox_dir(0)).rmdir()
    assert found.next(0.0, steal=True) is None


def test_what_must_be_passed_over_is_not_listed_all_the_time(tmp_path: Path) -> None:
    store, found = intake(tmp_path, {0: 0, 1: 0})
    for seq in range(2000):
        waiting = Token(layout.batch_id("s", CLIENT, seq), 0, needs="0123456789ab")
        (tmp_path / layout.inbox_path(waiting)).touch()
    found.sift = lambda shard, tokens: [t for t in tokens if not t.needs]
    now, begun = 0.0, store.calls["list"]
    while now < 1.0:
        assert found.next(now, steal=False) is None
        found.hurry(now)
        now = max(found.due, now + 0.001)
    assert store.calls["list"] - begun <= 11, "a look at 2,000 names gives 0.1 s of rest"
    (tmp_path / layout.inbox_path(token(5000))).touch()
    assert found.next(now + 0.11, steal=False) == token(5000)


@pytest.mark.parametrize("shards", [1, 3])
def test_who_has_no_foreign_shard_sleeps_all_the_same(tmp_path: Path, shards: int) -> None:
    _, found = intake(tmp_path, dict.fromkeys(range(shards), 0))
    found.adopt(range(1, shards))
    now, looks = 0.0, 0
    while now < 60.0:
        assert found.next(now, steal=True) is None
        assert found.due > now
        now, looks = found.due, looks + 1
    assert looks <= 60 / HOME_IDLE + 30
