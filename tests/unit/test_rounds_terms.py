"""A group's terms that are changed amid a round, and late uploads at the moment when it closes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedavg import admission, publishing
from fedavg.judging import Judge
from fedavg.keeper import GroupKeeper
from fsworker.protocol import federation
from fsworker.protocol.fsops import Store
from fsworker.protocol.groupview import GroupEye
from fsworker.protocol.layout import groups
from fsworker.protocol.records.round import Refusal
from fsworker.protocol.rounds import Problem
from tests.support.rounds import make_group, model, upload

pytestmark = pytest.mark.unit

LARGE = 1e25
"""A value that a mean bears, and no rule that squares it."""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "root").mkdir(mode=0o700)
    return Store(tmp_path / "root")


def after_one_round(store: Store, **fields: object) -> None:
    make_group(store, "abc", **fields)
    keeper = GroupKeeper(store, "g")
    for job in "abc":
        upload(store, "g", job, 1, 1.0)
    assert keeper.step().merged


def refused(store: Store, episode: int = 2) -> dict[str, str]:
    return {job: told.kind for job, told in GroupEye(store, "g").refusals(episode).items()}


def value(store: Store, episode: int) -> float:
    return float(model(store, episode)["q_net_state_dict"]["0.weight"][0, 0])


@pytest.mark.parametrize("restarted", [False, True])
def test_who_was_refused_by_a_rule_counts_by_another(store: Store, restarted: bool) -> None:
    after_one_round(store, rule="fedadam")
    keeper = GroupKeeper(store, "g")
    upload(store, "g", "a", 2, LARGE)
    keeper.step()
    assert refused(store) == {"a": "not finite"}
    federation.edit_group(store, "g", rule="fedavg")
    if restarted:
        keeper = GroupKeeper(store, "g")
    step = keeper.step()
    assert refused(store) == {} and step.report.admitted == ("a",)
    for job in "bc":
        upload(store, "g", job, 2, 1.0)
    assert keeper.step().merged
    assert value(store, 3) == pytest.approx(LARGE / 3, rel=1e-6)
    keeper.step()
    assert refused(store) == {}


def test_who_counted_by_a_rule_is_refused_by_another(store: Store) -> None:
    after_one_round(store, quorum=2)
    keeper = GroupKeeper(store, "g")
    upload(store, "g", "a", 2, LARGE)
    assert keeper.step().report.admitted == ("a",)
    federation.edit_group(store, "g", rule="fedyogi")
    assert keeper.step().report.admitted == ()
    assert refused(store) == {"a": "not finite"}
    for job in "bc":
        upload(store, "g", job, 2, 1.0)
    assert keeper.step().merged and value(store, 3) == 1.0


def test_what_becomes_of_a_key_is_one_of_the_terms(store: Store) -> None:
    after_one_round(store)
    keeper = GroupKeeper(store, "g")
    upload(store, "g", "a", 2, float("inf"))
    keeper.step()
    assert refused(store) == {"a": "not finite"}
    federation.edit_group(store, "g", keys={"*": "base"})
    assert keeper.step().report.admitted == ("a",) and refused(store) == {}
    federation.edit_group(store, "g", keys={})
    assert keeper.step().report.admitted == () and refused(store) == {"a": "not finite"}


def factors(path: str) -> None:
    """What a low-rank adapter is saved as."""
    torch.save({"l.lora_A.weight": torch.ones(2, 6), "l.lora_B.weight": torch.ones(5, 2)}, path)


@pytest.mark.parametrize("restarted", [False, True])
def test_not_all_rules_merge_products(store: Store, restarted: bool) -> None:
    make_group(store, "ab", rule="median", lora="product")
    keeper = GroupKeeper(store, "g")
    upload(store, "g", "a", 1, factors)
    keeper.step()
    assert refused(store, 1) == {"a": "misshapen"}
    for rule, kinds in (("fedavg", {}), ("median", {"a": "misshapen"})):
        federation.edit_group(store, "g", rule=rule)
        if restarted:
            keeper = GroupKeeper(store, "g")
        assert keeper.step().report.admitted == (() if kinds else ("a",))
        assert refused(store, 1) == kinds


def test_what_the_merge_finds_is_found_by_the_terms_of_then(store: Store) -> None:
    """Numbers that are not finite; bytes that are damaged are so by any terms."""
    after_one_round(store, rule="fedadam")
    upload(store, "g", "a", 2, LARGE / 1e20)
    view = GroupEye(store, "g").look()
    (seen,) = view.uploads
    other = replace(view, group=replace(view.group, rule="fedavg", options={}))
    judge = Judge(store, "g", lambda report: None)
    for kind, holds in ((admission.NOT_FINITE, False), ("damaged", True)):
        assert judge.judged(view, seen).problem is None
        found = judge.overrule(view.group, seen, Problem(kind, "as the merge says"))
        assert judge.judged(view, seen).problem == found
        assert not admission.outdated(found, view.group)
        assert admission.outdated(found, other.group) is not holds
        judge.judged(other, seen)  # read again


def test_nothing_is_read_again_by_terms_that_make_no_difference(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_one_round(store, rule="fedadam")
    keeper = GroupKeeper(store, "g")
    upload(store, "g", "a", 2, LARGE)
    upload(store, "g", "b", 2, 1.0)
    keeper.step()
    before = store.read(groups.refusal_file("g", 2, "a"))
    monkeypatch.setattr(admission, "examine", lambda *args: pytest.fail("read again"))
    federation.edit_group(store, "g", rule="fedyogi", quorum=3, deadline=7.0)
    assert keeper.step().report.admitted == ("b",)
    assert store.read(groups.refusal_file("g", 2, "a")) == before


def test_who_is_refused_by_any_terms_stays_refused(store: Store) -> None:
    after_one_round(store, rule="fedadam")
    keeper = GroupKeeper(store, "g")
    upload(store, "g", "a", 2, 1.0, base="e" * 64)
    keeper.step()
    federation.edit_group(store, "g", rule="fedavg")
    keeper.step()
    assert refused(store) == {"a": "stale"}


def test_two_aggregators_of_which_one_has_not_heard(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One judges by terms that it read before they were changed; the round is closed by the new."""
    after_one_round(store, rule="fedadam")
    late, prompt = GroupKeeper(store, "g", alone=False), GroupKeeper(store, "g", alone=False)
    upload(store, "g", "a", 2, LARGE)
    view = late.eye.look()
    federation.edit_group(store, "g", rule="fedavg")
    assert prompt.step().report.admitted == ("a",)
    late._admitted(view)
    assert refused(store) == {"a": "not finite"}
    assert prompt.step().report.admitted == ("a",) and refused(store) == {}
    for job in "bc":
        upload(store, "g", job, 2, 1.0)
    late._admitted(view)
    with monkeypatch.context() as patched:  # it is killed once the round is closed
        patched.setattr(publishing, "publish_prepared", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prompt.step()
    plan = GroupEye(store, "g").plan(2)
    belated = Refusal("g", 2, "a", "not finite", "by other terms", terms="x")
    store.publish(groups.refusal_file("g", 2, "a"), belated.to_json())
    assert late.step().merged and plan is not None and GroupEye(store, "g").plan(2) == plan
    assert refused(store) == {} and value(store, 3) > 1e24


def test_a_late_upload_counts_whichever_look_closes_the_round(store: Store) -> None:
    """Late ones are looked for now and then, and always before a round is closed."""
    make_group(store, "abc", quorum=2, late="delta")
    keeper = GroupKeeper(store, "g")
    for job in "ab":
        upload(store, "g", job, 1, 1.0)
    assert keeper.step().merged
    keeper.step()
    upload(store, "g", "c", 1, 5.0)
    for job in "ab":
        upload(store, "g", job, 2, 1.0)
    assert keeper.step().merged
    plan = keeper.eye.plan(2)
    assert plan is not None
    late = [(c.job, c.episode) for c in plan.contributors]
    kind = {"c": GroupEye(store, "g").refusals(1).get("c")}
    assert late == [("a", 2), ("b", 2)] and kind["c"] is not None, "it had no model to start from"
    upload(store, "g", "c", 2, 4.0)
    assert keeper.step().report.state in ("idle", "waiting")
    for job in "ab":
        upload(store, "g", job, 3, 1.0)
    assert keeper.step().merged
    plan = keeper.eye.plan(3)
    assert plan is not None and ("c", 2) in [(c.job, c.episode) for c in plan.contributors]
