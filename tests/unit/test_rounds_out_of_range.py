"""A round whose rule leaves the range of the model's type: said, not tried again, mended."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ctl.cli
import fedavg.cli
from ctl import render
from fedavg import closing, keeper, publishing
from fedavg.aggregator import Aggregator
from fedavg.agreement import Unmergeable
from fedavg.engine.faults import OutOfRange
from fsworker.protocol import federation
from fsworker.protocol.fsops import Store
from fsworker.protocol.groupview import GroupEye
from fsworker.protocol.layout import groups
from fsworker.protocol.records.artifact import FileDigest
from fsworker.protocol.records.round import Contributor, Group, Plan
from tests.support.roots import make_root
from tests.support.rounds import make_group, model, upload

pytestmark = pytest.mark.unit

FILES = (FileDigest("checkpoint.pt", 3, "1" * 64),)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    root = make_root(tmp_path / "root")
    monkeypatch.setenv("FLEET_ROOT", str(root))
    monkeypatch.chdir(tmp_path)
    return Store(root)


@pytest.fixture
def merges(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rounds that merges were begun of."""
    begun: list[int] = []
    merge = publishing.prepare_merge

    def counted(store: Store, eye: Any, plan: Any, **how: Any) -> Any:
        begun.append(plan.round)
        return merge(store, eye, plan, **how)

    monkeypatch.setattr(publishing, "prepare_merge", counted)
    return begun


def going_too_far(store: Store, *, alone: bool = True) -> Aggregator:
    """A group whose second round would make a step that float32 cannot hold."""
    make_group(store, "ab", rule="fedavgm", options={"lr": 1e38})
    aggregator = Aggregator(store, alone=alone)
    for episode, value in ((1, 1.0), (2, 100.0)):
        for job in "ab":
            upload(store, "g", job, episode, value)
        aggregator.sweep()
    assert "g" in aggregator.errors
    return aggregator


def test_it_is_told_with_what_to_do_and_merged_once(
    store: Store,
    merges: list[int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    aggregator = going_too_far(store)
    for _ in range(3):
        assert not aggregator.sweep()
    assert merges == [1, 2]
    aggregator.beat()
    assert ctl.cli.main(["rounds", "g"]) == 1
    said = capsys.readouterr().out
    assert "failed: round 2 cannot be merged by fedavgm: fedavgm takes" in said
    assert "ctl rounds g --rule NAME, or --option lr=…" in said and "reopen" not in said
    monkeypatch.setattr(render, "on_terminal", lambda: True)
    ctl.cli.main(["status"])
    assert "group g: failed: round 2 cannot be merged by fedavgm" in capsys.readouterr().out
    ctl.cli.main(["status", "--json"])
    assert "g" in json.loads(capsys.readouterr().out)["aggregator"]["troubles"]
    aggregator.beat(stopped=True)
    ctl.cli.main(["status"])
    assert "group g" not in capsys.readouterr().out


def test_a_model_that_is_too_large_itself_is_not_laid_at_an_honest_door_alone(store: Store) -> None:
    """An upload of round 2 just fits, and is published; who is far from that is right."""
    make_group(store, "abc", rule="fedavgm", options={"lr": 3.0}, quorum=1, deadline=3600.0)
    aggregator = Aggregator(store)
    for episode, first in ((1, 1.0), (2, 3.3e38), (3, 1.0)):
        for job in "abc":
            upload(store, "g", job, episode, first if job == "c" else 1.0)
        aggregator.sweep()
    told = str(aggregator.errors["g"])
    assert "the model that the round started from may be what is too large; ctl rounds g" in told
    federation.edit_group(store, "g", rule="median", options={})
    while aggregator.sweep():
        pass
    assert aggregator.errors == {}
    assert float(model(store, 4)["q_net_state_dict"]["0.weight"][0, 0]) == 1.0


FIRST_PLAN = Plan("g", 1, "fedavg", tuple(Contributor(j, 1, 1.0, "1" * 64, FILES) for j in "abc"))


@pytest.mark.parametrize(
    ("plan", "base", "quorum"),
    [
        (FIRST_PLAN, False, True),
        (replace(FIRST_PLAN, base="b" * 64), True, True),
        (replace(FIRST_PLAN, rule="krum", options={"f": 0}), False, False),
        (replace(FIRST_PLAN, contributors=FIRST_PLAN.contributors[:1]), False, False),
    ],
    ids=["a first round", "a later one", "Krum of three", "one alone"],
)
def test_only_what_may_help_is_said(plan: Plan, base: bool, quorum: bool) -> None:
    error = OutOfRange("it is too large: a is the farthest", farthest="a")
    told = str(closing.without_anybody(error, plan))
    assert ("the model that the round started from" in told) == base
    assert ("quorum" in told) == quorum and "ctl rounds g --rule NAME" in told


def test_other_groups_go_on(store: Store) -> None:
    aggregator = going_too_far(store)
    federation.create_group(store, Group("h", 1))
    upload(store, "h", "x", 1, 1.0)
    assert aggregator.sweep()
    assert federation.read_global(store, "h", 2) and not federation.read_global(store, "g", 3)


@pytest.mark.parametrize("terms", [["--rule", "median"], ["--option", "lr=0.5"]])
def test_other_terms_are_all_that_it_takes(
    store: Store, merges: list[int], terms: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    aggregator = going_too_far(store)
    ctl.cli.main(["rounds", "g", *terms])
    while aggregator.sweep():
        pass
    assert aggregator.errors == {} and merges == [1, 2, 2]
    assert float(model(store, 3)["q_net_state_dict"]["0.weight"][0, 0]) == pytest.approx(
        100.0 if terms == ["--rule", "median"] else 50.5
    )
    capsys.readouterr()
    assert fedavg.cli.main(["verify", "g", "--recompute", "--json"]) == 0
    links = json.loads(capsys.readouterr().out)["rounds"]
    assert [link["found"] for link in links] == ["recomputed"] * 2
    assert [n for n in store.scan(groups.rounds_dir("g")) if n.startswith(".")] == []


def test_one_look_mends_it_too(store: Store) -> None:
    """As from cron, where each process knows nothing of the one before."""
    going_too_far(store)
    federation.edit_group(store, "g", options={"lr": 1.0})
    assert fedavg.cli.main(["once"]) == 0
    assert federation.read_global(store, "g", 3)


def test_terms_that_are_no_better_are_tried_once(store: Store, merges: list[int]) -> None:
    aggregator = going_too_far(store)
    federation.edit_group(store, "g", options={"lr": 1e37})
    while aggregator.sweep():
        pass
    aggregator.sweep()
    assert merges == [1, 2, 2] and "g" in aggregator.errors


def test_who_may_not_be_alone_mends_it_too(store: Store) -> None:
    """No plan was published that would have to be taken back."""
    aggregator = going_too_far(store, alone=False)
    assert "reopen" not in str(aggregator.errors["g"])
    assert GroupEye(store, "g").plan(2) is None
    federation.edit_group(store, "g", rule="median", options={})
    assert aggregator.sweep() and federation.read_global(store, "g", 3)


def closed_by_another(store: Store, monkeypatch: pytest.MonkeyPatch) -> Aggregator:
    """A round that is closed with a plan which cannot be merged here; the merges are told."""
    aggregator = going_too_far(store)
    other = keeper.GroupKeeper(store, "g")

    hidden = f"{groups.globals_dir('g')}/.tmp~none"
    with monkeypatch.context() as patched:
        patched.setattr(publishing, "prepare_merge", lambda *args, **how: hidden)
        patched.setattr(publishing, "publish_prepared", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            other.step()
    assert GroupEye(store, "g").plan(2) is not None
    return aggregator


def test_a_plan_of_another_that_cannot_be_merged_is_taken_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    aggregator = closed_by_another(store, monkeypatch)
    while aggregator.sweep():
        pass
    assert GroupEye(store, "g").plan(2) is None
    assert "--option lr=…" in str(aggregator.errors["g"])
    federation.edit_group(store, "g", options={"lr": 1.0})
    assert aggregator.sweep() and federation.read_global(store, "g", 3)
    assert len([n for n in store.scan(groups.rounds_dir("g")) if n.startswith(".void~")]) == 1


def test_but_not_by_who_may_not_be_alone(
    store: Store, monkeypatch: pytest.MonkeyPatch, merges: list[int]
) -> None:
    closed_by_another(store, monkeypatch)
    aggregator, before = Aggregator(store, alone=False), len(merges)
    for _ in range(3):
        assert not aggregator.sweep()
    assert len(merges) == before + 1
    assert str(aggregator.errors["g"]).endswith("stop all aggregators, and: fedavg reopen g")
    federation.edit_group(store, "g", rule="median", options={})
    assert not aggregator.sweep() and GroupEye(store, "g").plan(2) is not None
    assert fedavg.cli.main(["reopen", "g"]) == 0
    assert fedavg.cli.main(["once"]) == 0
    assert federation.read_global(store, "g", 3)


def test_a_round_that_another_one_published_is_left_alone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has another version of torch, say; and a lock that lies."""
    make_group(store, "ab")
    own, other = keeper.GroupKeeper(store, "g"), keeper.GroupKeeper(store, "g")
    for job in "ab":
        upload(store, "g", job, 1, 1.0)
    merge = publishing.prepare_merge

    def spoilt(*args: Any, **how: Any) -> Any:
        monkeypatch.setattr(publishing, "prepare_merge", merge)
        assert other.step().merged
        raise Unmergeable("out of range")

    monkeypatch.setattr(publishing, "prepare_merge", spoilt)
    assert own.step().merged
    assert GroupEye(store, "g").plan(1) is not None
    for job in "ab":
        upload(store, "g", job, 2, 1.0)
    with monkeypatch.context() as patched:  # it is closed, and whoever did it was killed
        patched.setattr(publishing, "publish_prepared", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            own.step()
    monkeypatch.setattr(publishing, "prepare_merge", spoilt)
    assert own.step().merged
    assert GroupEye(store, "g").plan(2) is not None
    assert own.step().report.round == 3
