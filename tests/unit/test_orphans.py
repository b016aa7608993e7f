"""Whose claims an idle worker returns, and whose it leaves alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fsworker.loop import orphans
from fsworker.loop.orphans import BEATS_A_LOOK, LOOK_EVERY, OVER_FOR, SUCCESSOR_PATIENCE, Orphans
from fsworker.protocol import layout, ledger
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Owner, Token
from fsworker.protocol.records.run import Heartbeat

pytestmark = pytest.mark.unit

OLD, NEW = "0" * 12, "1" * 12


class Scene:
    """Claims of other hosts, their heartbeats, and one idle worker's looks."""

    def __init__(self, path: Path) -> None:
        for folder in (*layout.FOLDERS, layout.inbox_dir(0)):
            (path / folder).mkdir(parents=True, exist_ok=True)
        self.store = Store(path)
        self.orphans = Orphans(self.store, "me")
        self.now = 0.0
        self.hosts: set[str] | None = None

    def hold(self, owner: Owner, seq: int = 1) -> Token:
        batch = layout.batch_id("s", "c0ffee000001", seq)
        self.store.run(ledger.enlist(owner))
        token = Token(batch, 0, 2, 1)
        self.store.put(layout.claim_path(owner, token), b"")
        return token

    def beat(self, host: str = "n1", incarnation: str = NEW, **fields: object) -> None:
        beat = Heartbeat(host, 1, incarnation, 1, 0.0)
        beat = replace(beat, **fields)  # type: ignore[arg-type]
        self.store.publish(layout.status_path(host), beat.to_json())

    def moved_after(self, seconds: float) -> int:
        """How many batches are returned by looks during so many seconds."""
        end, moved = self.now + seconds, 0
        while self.now < end:
            moved += self.orphans.turn(self.now, self.hosts)
            self.now += 5.0
        return moved


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


LONG = 3 * LOOK_EVERY + OVER_FOR


def test_a_life_that_was_replaced_is_over_and_nobody_is_blamed(scene: Scene) -> None:
    token = scene.hold(Owner("n1", OLD))
    scene.beat(ready=True)
    assert scene.moved_after(LONG) == 1
    assert scene.store.scan(layout.inbox_dir(0)) == [f"{token.batch}.2.1"]
    assert scene.store.scan(layout.CLAIMS) == []


def test_it_is_looked_at_twice(scene: Scene) -> None:
    scene.hold(Owner("n1", NEW))
    scene.beat(incarnation=OLD, ready=True)  # the new life has not beaten yet
    while not scene.orphans._suspicions:
        assert scene.moved_after(5.0) == 0
    scene.beat(incarnation=NEW, ready=True)
    assert scene.moved_after(LONG) == 0


def test_a_new_life_may_first_return_them_itself(scene: Scene) -> None:
    scene.hold(Owner("n1", OLD))
    scene.beat(ready=False)
    assert scene.moved_after(SUCCESSOR_PATIENCE - 10) == 0
    assert scene.moved_after(LONG) == 1


@pytest.mark.parametrize("fields", [{"ready": True}, {"ready": False}, {"draining": True}])
def test_a_current_life_is_never_touched(scene: Scene, fields: dict[str, bool]) -> None:
    scene.hold(Owner("n1", NEW))
    scene.beat(**fields)
    scene.hosts = {"me", "n1"}
    assert scene.moved_after(10 * SUCCESSOR_PATIENCE) == 0


def test_a_life_that_said_that_it_stopped_is_over(scene: Scene) -> None:
    scene.hold(Owner("n1", NEW))
    scene.beat(stopped=True)
    assert scene.moved_after(LONG) == 1


def test_a_host_without_a_beat_or_with_a_bad_one_is_left_alone(scene: Scene) -> None:
    scene.hold(Owner("n1", NEW), 1)
    scene.hold(Owner("n2", NEW), 2)
    scene.store.publish(layout.status_path("n2"), b"nonsense")
    scene.hold(Owner("me", OLD), 3)
    assert scene.moved_after(10 * SUCCESSOR_PATIENCE) == 0


def test_a_host_that_was_removed_is_over_once_it_is_silent(scene: Scene) -> None:
    scene.hold(Owner("n1", NEW))
    scene.hosts = {"me"}
    for seq in range(100):
        scene.beat(seq=seq, ready=True)
        assert scene.moved_after(5.0) == 0
    assert scene.moved_after(2 * LONG) == 1


def test_looks_stay_within_the_budget_however_many_hosts_there_are(scene: Scene) -> None:
    for number in range(3 * BEATS_A_LOOK):
        scene.hold(Owner(f"n{number}", OLD), number)
        scene.beat(f"n{number}", ready=True)
    scene.store.calls.clear()
    seconds = 8 * 60.0
    moved = scene.moved_after(seconds)
    assert moved > BEATS_A_LOOK
    looks = scene.store.calls["list"] + scene.store.calls["open"] - 2 * moved
    assert looks / seconds < 2.5


def test_trouble_with_the_root_is_survived(scene: Scene, tmp_path: Path) -> None:
    scene.hold(Owner("n1", OLD))
    scene.beat(ready=True)
    (tmp_path / layout.CLAIMS).rename(tmp_path / "away")
    assert scene.moved_after(LONG) == 0
    (tmp_path / "away").rename(tmp_path / layout.CLAIMS)
    assert scene.moved_after(LONG) == 1
    assert orphans.OVER_FOR >= 30
