"""Plans on their way to a model: who is killed, undone, outrun or without a disk in between."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

import fedavg.cli
from fedavg import closing, keeper, publishing
from fedavg.agreement import Unmergeable
from fedavg.blame import Candidates
from fedavg.engine.crew import work_off
from fsworker.errors import StorageError
from fsworker.protocol import federation, fsfolders, rounds
from fsworker.protocol.fsops import Store
from fsworker.protocol.groupview import GroupEye
from fsworker.protocol.layout import groups
from tests.support.rounds import (
    alter,
    counted,
    keep,
    killed_between_plan_and_model,
    make_group,
    model,
    refusals,
    saves,
    swept,
    upload,
    weights,
)

pytestmark = pytest.mark.unit


def prepared(store: Store) -> list[str]:
    """What was merged and is not published, or was not removed."""
    return [n for n in federation.names(store, groups.globals_dir("g")) if n.startswith(".tmp")]


# -- a plan is the commit, and its model is ready then


def test_a_plan_is_published_when_its_model_is_ready(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_group(store, "ab")
    for job in "ab":
        upload(store, "g", job, 1, 1.0)
    prepare, seen = publishing.prepare_merge, []

    def watched(store: Store, eye: Any, plan: Any, **how: Any) -> str:
        found = prepare(store, eye, plan, **how)
        seen.append(GroupEye(store, "g").plan(1))
        return found

    monkeypatch.setattr(publishing, "prepare_merge", watched)
    swept(store)
    assert seen == [None] and counted(store, 1) == [("a", 1), ("b", 1)]


def test_one_that_is_altered_between_the_plan_and_the_model(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_between_plan_and_model(store, monkeypatch)
    alter(store, "a", "changed")
    assert swept(store).errors == {}
    assert counted(store, 1) == [("b", 1), ("c", 1)] and refusals(store, 1) == {"a": "damaged"}
    assert fedavg.cli.main(["verify", "g", "--recompute"]) == 0
    assert len([n for n in store.scan(groups.rounds_dir("g")) if n.startswith(".void~")]) == 1


def test_a_plan_is_taken_back_by_nobody_who_may_not_be_alone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_between_plan_and_model(store, monkeypatch)
    alter(store, "a", "changed")
    assert "other content" in str(swept(store, alone=False).errors["g"])
    assert "a" in dict(counted(store, 1))


def test_the_plan_of_another_one_is_carried_out(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one merges a and b, another closes the round with a, b and c, and is killed."""
    make_group(store, "abc", quorum=2)
    for job in "ab":
        upload(store, "g", job, 1, 1.0)
    close, prepare, beside = closing.close, publishing.prepare_merge, []

    def kill(*args: Any) -> None:
        raise KeyboardInterrupt

    def seen(*args: Any, **how: Any) -> str:
        beside.append(prepared(store))
        return prepare(*args, **how)

    def outrun(*args: Any) -> Any:
        monkeypatch.setattr(closing, "close", close)
        upload(store, "g", "c", 1, 7.0)
        with monkeypatch.context() as patched:
            patched.setattr(publishing, "publish_prepared", kill)
            with pytest.raises(KeyboardInterrupt):
                keeper.GroupKeeper(store, "g", alone=False).step()
        return close(*args)

    monkeypatch.setattr(closing, "close", outrun)
    monkeypatch.setattr(publishing, "prepare_merge", seen)
    keep(store)
    assert [len(found) for found in beside] == [0, 1, 0], "ours makes room before it merges anew"
    assert [job for job, _ in counted(store, 1)] == ["a", "b", "c"]
    assert model(store, 2)["q_net_state_dict"]["0.weight"][0, 0] == 3.0
    assert fedavg.cli.main(["verify", "g", "--recompute"]) == 0 and prepared(store) == []


def test_a_plan_that_was_taken_back_meanwhile_is_not_carried_out(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_between_plan_and_model(store, monkeypatch)
    prepare = publishing.prepare_merge

    def slow(*args: Any, **how: Any) -> str:
        found = prepare(*args, **how)
        monkeypatch.setattr(publishing, "prepare_merge", prepare)
        closing.reopen(store, "g", 1)
        return found

    monkeypatch.setattr(publishing, "prepare_merge", slow)
    step = keeper.GroupKeeper(store, "g", alone=False).step()
    assert step.merged and GroupEye(store, "g").newest() is None and prepared(store) == []
    assert swept(store).errors == {}
    assert fedavg.cli.main(["verify", "g", "--recompute"]) == 0


@pytest.mark.parametrize("closed", [False, True])
def test_a_publication_that_fails_leaves_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    if closed:
        killed_between_plan_and_model(store, monkeypatch)
    else:
        make_group(store, "ab")
        for job in "ab":
            upload(store, "g", job, 1, 1.0)
    rename = store.rename

    def full(old: str, new: str) -> None:
        if new == groups.global_dir("g", 2):
            raise OSError(errno.ENOSPC, "No space left on device")
        rename(old, new)

    with monkeypatch.context() as patched:
        patched.setattr(store, "rename", full)
        assert isinstance(swept(store).errors["g"], StorageError)
    assert prepared(store) == []
    assert swept(store).errors == {} and GroupEye(store, "g").newest() is not None


def test_what_a_plan_refused_counts_once_it_is_carried_out(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """a and b have another layout than c and d; they close the round, and b is altered then."""
    make_group(store, "abcd", quorum=2, deadline=3600.0)
    for job in "abcd":
        save = saves(weights(2.0, size=4 if job in "ab" else 8))
        upload(store, "g", job, 1, save)

    def kill(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("fedavg.refusing.carry_out", kill)
        with pytest.raises(KeyboardInterrupt):
            keeper.GroupKeeper(store, "g").step()
    assert [job for job, _ in counted(store, 1)] == ["a", "b"]
    alter(store, "b", "cut")
    assert swept(store).errors == {}
    assert [job for job, _ in counted(store, 1)] == ["c", "d"]
    assert refusals(store, 1) == {"a": "misshapen", "b": "damaged"}


# -- what cannot be read


Unreadable = Callable[[str], None]


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> Unreadable:
    """Has the disk give errors for what is below a path."""
    digest, real_open = fsfolders.digest, os.open

    def break_off(bad: str) -> None:
        def broken_digest(store: Store, rel: str) -> tuple[int, str]:
            if rel.startswith(bad):
                raise OSError(errno.EIO, "Input/output error")
            return digest(store, rel)

        def broken_open(path: str, *args: Any, **how: Any) -> int:
            if bad in str(path):
                raise OSError(errno.EIO, "Input/output error")
            return real_open(path, *args, **how)

        monkeypatch.setattr(fsfolders, "digest", broken_digest)
        monkeypatch.setattr(os, "open", broken_open)

    return break_off


def test_the_others_go_on_without_what_cannot_be_read_any_more(
    store: Store, unreadable: Unreadable
) -> None:
    make_group(store, "abc", quorum=2, deadline=3600.0)
    upload(store, "g", "a", 1, 1.0)
    aggregator = swept(store)
    unreadable(groups.upload_dir("g", 1, "a"))
    for job in "bc":
        upload(store, "g", job, 1, 2.0)
    aggregator.sweep()
    assert "Input/output error" in str(aggregator.errors["g"]), "for the deadline is waited for"
    federation.edit_group(store, "g", deadline=0.0)
    while aggregator.sweep():
        pass
    assert aggregator.errors == {} and counted(store, 1) == [("b", 1), ("c", 1)]
    assert refusals(store, 1) == {}, "it may be read the next time"


def test_a_round_that_needs_what_cannot_be_read_waits_for_it(
    store: Store, unreadable: Unreadable, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_group(store, "ab")
    upload(store, "g", "a", 1, 1.0)
    aggregator = swept(store)
    upload(store, "g", "b", 1, 2.0)
    unreadable(groups.upload_dir("g", 1, "a"))
    aggregator.sweep()
    assert isinstance(aggregator.errors["g"], StorageError)
    assert GroupEye(store, "g").plan(1) is None and refusals(store, 1) == {}
    monkeypatch.undo()
    assert swept(store).errors == {} and counted(store, 1) == [("a", 1), ("b", 1)]


def test_a_plan_is_kept_whose_upload_cannot_be_read(
    store: Store, unreadable: Unreadable, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_between_plan_and_model(store, monkeypatch)
    unreadable(groups.upload_dir("g", 1, "a"))
    assert isinstance(swept(store).errors["g"], StorageError)
    assert [job for job, _ in counted(store, 1)] == ["a", "b", "c"]


@pytest.mark.parametrize("what", ["global_weights", "merge.json"])
def test_the_model_that_only_a_late_one_started_from_stops_nobody(
    store: Store, unreadable: Unreadable, what: str
) -> None:
    make_group(store, "abc", quorum=2, late="delta")
    for job in "abc":
        upload(store, "g", job, 1, 1.0)
    swept(store)
    for job in "ab":
        upload(store, "g", job, 2, 5.0)
    swept(store)
    upload(store, "g", "c", 2, 1.0)
    for job in "ab":
        upload(store, "g", job, 3, 9.0)
    unreadable(f"{groups.global_dir('g', 2)}/{what}")
    assert swept(store).errors == {} and counted(store, 3) == [("a", 3), ("b", 3)]


def test_what_nobody_can_read_is_told(store: Store, unreadable: Unreadable) -> None:
    make_group(store, "ab", quorum=1)
    for job in "ab":
        upload(store, "g", job, 1, 1.0)
    swept(store)
    for job in "ab":
        upload(store, "g", job, 2, 2.0)
    unreadable(groups.global_dir("g", 2))
    assert isinstance(swept(store).errors["g"], StorageError)
    assert GroupEye(store, "g").plan(2) is None and refusals(store, 2) == {}


# -- what is written to while it is merged


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Has something happen once, while a merge reads its inputs."""

    def act_once(act: Callable[[], None]) -> None:
        def acting(*args: Any) -> None:
            monkeypatch.setattr("fedavg.merging.work_off", work_off)
            act()
            work_off(*args)

        monkeypatch.setattr("fedavg.merging.work_off", acting)

    return act_once


def test_an_upload_that_is_touched_while_it_is_merged_is_merged_again(
    store: Store, meanwhile: Callable[[Callable[[], None]], None]
) -> None:
    make_group(store, "ab")
    for job in "ab":
        upload(store, "g", job, 1, 1.0)
    path = store.path(groups.upload_dir("g", 1, "a") + "/checkpoint.pt")
    meanwhile(lambda: os.utime(path))  # as ctl renew does
    aggregator = swept(store)
    assert "changed while it was being read" in str(aggregator.errors["g"])
    assert GroupEye(store, "g").plan(1) is None and refusals(store, 1) == {}
    while aggregator.sweep():
        pass
    assert aggregator.errors == {} and counted(store, 1) == [("a", 1), ("b", 1)]


def test_an_upload_that_is_altered_while_it_is_merged_is_in_no_model(
    store: Store, meanwhile: Callable[[Callable[[], None]], None]
) -> None:
    make_group(store, "abc", quorum=2, deadline=3600.0)
    for job in "abc":
        upload(store, "g", job, 1, 1.0)
    meanwhile(lambda: alter(store, "a", "changed"))
    aggregator = swept(store)
    assert GroupEye(store, "g").plan(1) is None
    federation.edit_group(store, "g", deadline=0.0)
    while aggregator.sweep():
        pass
    assert counted(store, 1) == [("b", 1), ("c", 1)] and refusals(store, 1) == {"a": "damaged"}
    assert fedavg.cli.main(["verify", "g", "--recompute"]) == 0


# -- whom a merge failed for


def test_who_differs_from_the_others_is_refused_by_the_plan(store: Store) -> None:
    make_group(store, "ab")
    for job in "ab":
        upload(store, "g", job, 1, 1.0)
    view = GroupEye(store, "g").look()
    given = Candidates(store, 1, view.uploads)
    decision = rounds.decide(view.observation(0.0))
    plan = closing.make_plan(view, decision)
    assert given.drop(plan, Unmergeable("w is odd", participant="a")) is None
    assert [u.problem and u.problem.kind for u in given.uploads] == ["misshapen", None]
    with pytest.raises(Unmergeable):
        given.drop(plan, Unmergeable("w is odd", participant="a"))  # who is out already
