"""Which aggregators are at work, by their signs of life; and that no plan is taken from one."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import fedavg.cli
from ctl import groupstatus
from fedavg import publishing
from fedavg.aggregator import Aggregator
from fedavg.keeper import GroupKeeper
from fsworker.errors import StorageError
from fsworker.protocol import aggregators, federation
from fsworker.protocol.aggregators import Sign
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import groups
from fsworker.protocol.records.round import AggregatorBeat, GroupReport
from tests.support.rounds import make_group, upload

pytestmark = pytest.mark.unit

NOW = 1e9


def beat_of(pid: int, state: str = "waiting", *, stopped: bool = False) -> AggregatorBeat:
    return AggregatorBeat("h", pid, f"{pid:012x}", 1, 0.0, {"g": GroupReport(1, state)}, stopped)


def left(store: Store, beat: AggregatorBeat, age: float, *, alone: bool = False) -> str:
    """The file of an aggregator that beat `age` seconds before NOW."""
    os.makedirs(store.path(groups.FEDERATION), exist_ok=True)
    file = aggregators.beat_file(beat.incarnation, alone=alone)
    store.publish(file, beat.to_json())
    os.utime(store.path(file), (NOW - age, NOW - age))
    return file


def pids(store: Store) -> list[int]:
    return [sign.beat.pid for sign in aggregators.signs(store, lambda: NOW)]


# -- signs


@pytest.mark.parametrize(
    ("state", "stopped", "age", "alive"),
    [
        ("waiting", False, 20.0, True),
        ("waiting", False, 21.0, False),
        ("waiting", True, 0.0, False),
        ("merging", False, 900.0, True),
        ("merging", False, 901.0, False),
        ("reading", False, 900.0, True),
        ("merging", True, 0.0, False),
    ],
)
def test_who_is_alive(state: str, stopped: bool, age: float, alive: bool) -> None:
    assert Sign("x", beat_of(1, state, stopped=stopped), age).alive is alive


def test_who_lives_comes_first_and_then_who_was_last(store: Store) -> None:
    left(store, beat_of(1), 50.0)
    left(store, beat_of(2, stopped=True), 1.0, alone=True)
    left(store, beat_of(3), 2.0)
    left(store, beat_of(4, "merging"), 60.0)
    assert pids(store) == [4, 3, 2, 1]


def test_nobody_asks_for_the_time_where_nobody_beat(store: Store) -> None:
    assert aggregators.signs(store, lambda: pytest.fail("asked")) == []


def test_what_is_removed_while_it_is_read_is_none(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = left(store, beat_of(1), 0.0)
    left(store, beat_of(2), 0.0)
    real = store.read_with_mtime

    def raced(rel: str, *args: Any) -> Any:
        if rel == file:
            store.remove(file)
        return real(rel, *args)

    monkeypatch.setattr(store, "read_with_mtime", raced)
    assert pids(store) == [2]


def test_what_cannot_be_read_is_an_error_and_told_as_none(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    left(store, beat_of(1), 0.0)

    def fails(*args: Any) -> Any:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(store, "read_with_mtime", fails)
    with pytest.raises(StorageError, match="Input/output error"):
        aggregators.signs(store, lambda: NOW)
    assert groupstatus.aggregator(store).fields() is None


def test_who_starts_removes_what_those_left_that_ended(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = [left(store, beat_of(1, stopped=True), 1.0), left(store, beat_of(2), 3601.0)]
    stay = [left(store, beat_of(3, "merging"), 3599.0), left(store, beat_of(4), 0.0),
            left(store, beat_of(5, stopped=True), 9999.0, alone=True)]  # fmt: skip
    garbled = groups.unlocked_beat("f" * 12)
    store.publish(garbled, b"{")
    monkeypatch.setattr(store, "server_time", lambda folder: NOW)
    mine = Aggregator(store, alone=False)
    mine.beat()
    own = groups.unlocked_beat(mine._incarnation)
    there = {f"{groups.FEDERATION}/{name}" for name in store.scan(groups.FEDERATION)}
    assert {*stay, garbled, own} <= there and there.isdisjoint(gone)


def test_who_stood_by_until_it_was_told_to_end_takes_back_no_beat(store: Store) -> None:
    os.makedirs(store.path(groups.FEDERATION))
    stop, leader = threading.Event(), Aggregator(store)
    leader.beat()
    before = store.read(groups.AGGREGATOR_BEAT)
    stop.set()
    for alone in (False, True):
        Aggregator(store, alone=alone).run(stop)
    assert store.scan(groups.FEDERATION) == [".aggregator.json"]
    assert store.read(groups.AGGREGATOR_BEAT) == before


# -- reopening without locks


@pytest.fixture
def closed(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A root without locks, with a round that is closed and whose aggregator was killed then."""
    make_group(store, "abc", quorum=2, deadline=3600.0)
    for job in "abc":
        upload(store, "g", job, 1, 1.0)

    def killed(*args: object, **how: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(publishing, "publish_prepared", killed)
        GroupKeeper(store, "g").step()

    def without_locks(*args: object) -> None:
        raise NotImplementedError("no locks here")

    monkeypatch.setattr("fedavg.aggregator.take", without_locks)
    return store


def amid_the_merge(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Have the next merge do this once its model is computed, and before it is published."""
    real = publishing.prepare_merge

    def merging(*args: Any, **how: Any) -> str:
        monkeypatch.setattr(publishing, "prepare_merge", real)
        prepared = real(*args, **how)
        act()
        return prepared

    monkeypatch.setattr(publishing, "prepare_merge", merging)


def reopen() -> int:
    return fedavg.cli.main(["reopen", "g"])


def test_where_nobody_ever_beat_a_plan_is_taken_back(closed: Store) -> None:
    assert store_names(closed) == []
    assert reopen() == 0
    assert fedavg.cli.main(["once"]) == fedavg.cli.main(["verify", "g"]) == 0
    assert federation.read_global(closed, "g", 2) is not None


def store_names(store: Store) -> list[str]:
    return [name for name in store.scan(groups.FEDERATION) if name.startswith(".aggregator")]


def test_no_plan_is_taken_from_once(closed: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one for cron."""
    codes: list[int] = []
    amid_the_merge(monkeypatch, lambda: codes.append(reopen()))
    assert fedavg.cli.main(["once"]) == 0 and codes == [10]
    assert fedavg.cli.main(["verify", "g"]) == 0
    (sign,) = aggregators.signs(closed, time.time)
    assert sign.beat.stopped and sign.beat.groups["g"].round == 2
    assert reopen() == 3, "it has ended, and nothing is closed that is not merged"


def test_once_that_is_interrupted_says_that_it_ended(
    closed: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> None:
        assert groupstatus.aggregator(closed).alive
        raise KeyboardInterrupt

    amid_the_merge(monkeypatch, interrupted)
    assert fedavg.cli.main(["once"]) == 130
    assert not groupstatus.aggregator(closed).alive
    assert reopen() == 0


@pytest.mark.parametrize("how", ["never at work", "ended", "idle", "killed"])
def test_no_plan_is_taken_from_the_one_of_two_that_merges(
    closed: Store, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    merging, other = Aggregator(closed, alone=False), Aggregator(closed, alone=False)
    codes: list[int] = []

    def meanwhile() -> None:
        if how != "never at work":
            other.reports["g"] = GroupReport(1, "waiting")
            other.beat()
        if how != "idle":
            other.beat(stopped=how != "killed")
        if how == "killed":
            path = closed.path(groups.unlocked_beat(other._incarnation))
            changed = os.stat(path).st_mtime - 30
            os.utime(path, (changed, changed))
        codes.append(reopen())
        seen = groupstatus.aggregator(closed)
        assert seen.alive and seen.beat is not None
        assert seen.beat.incarnation == merging._incarnation

    amid_the_merge(monkeypatch, meanwhile)
    merging.catch_up(9)
    assert codes == [10]
    assert fedavg.cli.main(["verify", "g"]) == 0


def test_one_of_an_earlier_version_beats_in_the_file_of_the_lock(
    closed: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a lock or without."""
    closed.publish(groups.AGGREGATOR_BEAT, beat_of(7, "merging").to_json())
    Aggregator(closed, alone=False).beat()
    assert reopen() == 10
    assert "an aggregator on h (pid 7) beat" in capsys.readouterr().err
