"""Who counts in a round and when it closes, as a table; and what a group's places are."""

from __future__ import annotations

import itertools
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsworker.errors import FormatError, NotRunning, Refused, UsageError
from fsworker.protocol import federation, rounds
from fsworker.protocol.fsops import Store
from fsworker.protocol.records.artifact import Done, FileDigest, tree_digest
from fsworker.protocol.records.round import (
    Contributor,
    Final,
    Group,
    Merge,
    Plan,
    Refusal,
    Retired,
    Times,
    Waiting,
)
from fsworker.protocol.rounds import Observation, Problem, Upload

pytestmark = pytest.mark.unit

FILES = (FileDigest("checkpoint.pt", 3, "1" * 64),)
STATE = (FileDigest("optimizer_state.safetensors", 3, "2" * 64),)
BASE, OLD = "b" * 64, "a" * 64


def done(job: str, episode: int = 3, **fields: Any) -> Done:
    return replace(Done(job, 1, "0" * 12, episode, FILES, base=BASE), **fields)


def upload(job: str, episode: int = 3, bad: str = "", **fields: Any) -> Upload:
    found = Upload(job, episode, done(job, episode, **fields))
    return found.refused(bad, f"it is {bad}") if bad else found


def look(group: Group, uploads: list[Upload], **fields: Any) -> Observation:
    return Observation(group, 3, uploads, **{"since": 100.0, "now": 100.0, **fields})


G = Group("g", 4)
ABCD = [upload(j) for j in "abcd"]
ODD_RULE = lambda n: None if n % 2 else "it wants an odd number"  # noqa: E731

# group, uploads, now, expected state
TABLE = [
    (G, [], 0, "idle"),
    (G, ABCD[:3], 100, "waiting"),
    (G, ABCD, 100, "closing"),
    (G, [*ABCD[:3], upload("d", bad="unsafe")], 100, "stuck"),
    (replace(G, quorum=3), ABCD[:3], 100, "closing"),
    (replace(G, quorum=3), ABCD[:2], 10**9, "waiting"),
    (replace(G, quorum=3), [*ABCD[:3], upload("d", bad="unsafe")], 100, "closing"),
    (replace(G, quorum=3, deadline=60), ABCD[:3], 159.9, "waiting"),
    (replace(G, quorum=3, deadline=60), ABCD[:3], 160, "closing"),
    (replace(G, quorum=3, deadline=60), ABCD, 100, "closing"),
    (replace(G, quorum=3, deadline=60), [*ABCD[:3], upload("d", bad="late")], 100, "closing"),
    (replace(G, quorum=3, deadline=60), ABCD[:2], 161, "overdue"),
    (replace(G, quorum=3, deadline=60), [*ABCD[:2], upload("d", bad="x")], 161, "overdue"),
    (replace(G, quorum=3, deadline=0), ABCD[:3], 100, "closing"),
    (replace(G, deadline=60), ABCD[:3], 10**9, "overdue"),
    (replace(G, quorum=1), [upload("a", bad="x")], 100, "waiting"),
    (replace(G, quorum=1), [upload(j, bad="x") for j in "abcd"], 100, "stuck"),
    # one job on two hosts, or with an upload of an earlier round, is one participant
    (G, [*ABCD[:3], upload("a"), upload("b", 2)], 100, "waiting"),
    # uploads of rounds that are not open yet, and late ones where those are refused, do not count
    (G, [*ABCD[:3], upload("d", 4)], 100, "waiting"),
    (G, [*ABCD[:3], upload("d", 2)], 100, "waiting"),
    (replace(G, late="delta"), [*ABCD[:3], upload("d", 2)], 100, "closing"),
]


@pytest.mark.parametrize(("group", "uploads", "now", "state"), TABLE)
def test_when_a_round_closes(group: Group, uploads: list[Upload], now: float, state: str) -> None:
    assert rounds.decide(look(group, uploads, now=now)).state == state


@pytest.mark.parametrize(("group", "uploads", "now", "state"), TABLE)
def test_no_order_of_arrival_matters(
    group: Group, uploads: list[Upload], now: float, state: str
) -> None:
    orders = itertools.islice(itertools.permutations(uploads), 30)
    assert len({repr(rounds.decide(look(group, list(o), now=now))) for o in orders}) == 1


def test_a_rule_that_does_not_fit_waits_for_one_more_or_is_stuck() -> None:
    group = replace(G, quorum=2)
    waiting = rounds.decide(look(group, ABCD[:2], fits=ODD_RULE))
    assert waiting.state == "waiting" and "odd number" in waiting.why
    assert rounds.decide(look(group, ABCD[:3], fits=ODD_RULE)).closes
    assert rounds.decide(look(group, ABCD, fits=ODD_RULE)).state == "stuck"


@pytest.mark.parametrize(
    ("group", "count", "advice"),
    [
        (G, 3, "lower the quorum"),
        (replace(G, quorum=1), 0, "change the terms that they were refused by"),
        (
            replace(G, quorum=1, rule="krum"),
            2,
            "change the rule or its options (ctl rounds g --rule NAME --option K=V)",
        ),
        (
            replace(G, rule="krum"),
            2,
            "change the rule or its options (ctl rounds g --rule NAME --option K=V) "
            "and lower the quorum",
        ),
        (replace(G, rule="krum"), 3, "lower the quorum"),
    ],
)
def test_what_helps_is_what_is_said(group: Group, count: int, advice: str) -> None:
    uploads = [*ABCD[:count], *(upload(u.job, bad="unsafe") for u in ABCD[count:])]
    found = rounds.decide(look(group, uploads))
    assert found.state == "stuck"
    assert found.why.endswith(f"nobody else is to come: {advice}, or end the group")


def test_everybody_who_is_not_in_is_named() -> None:
    uploads = [upload("a"), upload("b"), upload("c", bad="not finite")]
    found = rounds.decide(look(replace(G, quorum=2), uploads, members=["a", "b", "c", "d"]))
    assert found.missing == ("d",) and found.unknown == 0
    assert found.refused == {"c": Problem("not finite", "it is not finite")}
    assert [c.job for c in found.contributors] == ["a", "b"]
    some = rounds.decide(look(replace(G, quorum=2), uploads, members=["a"]))
    assert (some.missing, some.unknown) == ((), 1)


def test_strangers_do_not_crowd_out_members() -> None:
    uploads = [upload(j) for j in ("a", "b", "y", "z")]
    group = replace(G, size=3, quorum=3)
    members = ["y", "z", "x"]
    found = rounds.decide(look(group, uploads, members=members))
    assert (found.state, found.missing) == ("waiting", ("x",))
    assert [c.job for c in found.contributors] == ["y", "z"]
    free = rounds.decide(look(group, uploads, members=["y", "z"]))
    assert [c.job for c in free.contributors] == ["a", "y", "z"]
    assert rounds.stranger("a", members, group) is not None
    assert rounds.stranger("a", ["y", "z"], group) is None
    assert rounds.stranger("x", members, group) is None


def test_the_deadline_counts_from_the_first_upload() -> None:
    group = replace(G, deadline=60, quorum=1)
    assert rounds.decide(look(group, ABCD[:1])).due == 160
    assert rounds.decide(look(group, [], since=None)).due is None
    assert rounds.decide(look(G, ABCD[:1])).due is None


def test_a_late_upload_goes_in_with_the_base_that_it_started_from() -> None:
    group = replace(G, late="delta", quorum=2)
    uploads = [upload("a"), upload("b"), upload("c", 2, base=OLD)]
    found = rounds.decide(look(group, uploads))
    assert [(c.job, c.episode, c.base) for c in found.contributors] == [
        ("a", 3, BASE), ("b", 3, BASE), ("c", 2, OLD),
    ]  # fmt: skip


def test_of_a_late_and_a_new_upload_of_one_job_the_new_one_counts() -> None:
    group = replace(G, late="delta", quorum=1)
    found = rounds.decide(look(group, [upload("a", 2, base=OLD), upload("a")]))
    assert [(c.job, c.episode) for c in found.contributors] == [("a", 3)]
    found = rounds.decide(look(group, [upload("a", 2, base=OLD), upload("a", bad="unsafe")]))
    assert [(c.job, c.episode) for c in found.contributors] == [("a", 2)]


@pytest.mark.parametrize(
    ("samples", "weights"),
    [([None, None], [1, 1]), ([10, 20], [10, 20]), ([10, None], [1, 1])],
)
def test_the_weight_is_the_sample_count_or_the_same_for_all(
    samples: list[float | None], weights: list[float]
) -> None:
    uploads = [upload(j, samples=n) for j, n in zip("ab", samples, strict=True)]
    found = rounds.decide(look(replace(G, quorum=2), uploads))
    assert [c.weight for c in found.contributors] == weights


@pytest.mark.parametrize(
    ("record", "base", "kind"),
    [
        (done("a"), BASE, None),
        (done("a"), None, None),
        (done("a", base=None), None, None),
        (done("a", base=None), BASE, "stale"),
        (done("a", base=OLD), BASE, "stale"),
        (done("b"), BASE, "damaged"),
        (done("a", 4), BASE, "damaged"),
        (done("a", samples=-1.0), BASE, "samples"),
        (done("a", samples=1e300), BASE, "samples"),
        (done("a", samples=0.0), BASE, "samples"),
        (done("a", samples=10.0), BASE, None),
    ],
)
def test_what_a_record_alone_tells(record: Done, base: str | None, kind: str | None) -> None:
    found = rounds.record_problem("a", 3, record, base)
    assert (found.kind if found else None) == kind


@pytest.mark.parametrize(
    ("late", "episode", "newest", "refused"),
    [("reject", 2, 3, True), ("delta", 2, 3, False), ("delta", 1, 3, False), ("delta", 1, 4, True)],
)
def test_what_becomes_of_late_uploads(late: str, episode: int, newest: int, refused: bool) -> None:
    group = replace(G, late=late, keep_rounds=3)
    assert (rounds.late_problem("a", episode, newest, group) is not None) == refused


def test_the_newest_rounds_are_kept() -> None:
    assert rounds.retired(5, 3, [5, 1, 2, 3, 7]) == [1, 2]
    assert rounds.retired(2, 3, [1, 2]) == []


@given(
    st.lists(
        st.builds(
            upload,
            st.sampled_from("abcdefg"),
            st.integers(1, 4),
            st.sampled_from(["", "", "unsafe"]),
            samples=st.none() | st.floats(1, 100),
        )
    ),
    st.builds(
        Group,
        st.just("g"),
        st.integers(2, 5),
        quorum=st.none() | st.integers(1, 2),
        deadline=st.none() | st.floats(0, 10),
        late=st.sampled_from(["reject", "delta"]),
    ),
    st.lists(st.sampled_from("abcdefg"), max_size=2, unique=True),
    st.floats(100, 120),
)
def test_what_always_holds(
    uploads: list[Upload], group: Group, members: list[str], now: float
) -> None:
    found = rounds.decide(look(group, uploads, members=members, now=now))
    jobs = [c.job for c in found.contributors]
    assert jobs == sorted(set(jobs))
    assert len(jobs) + len(found.refused) + len(found.missing) + found.unknown == group.size
    assert not set(jobs) & (set(found.refused) | set(found.missing))
    if found.closes:
        assert len(jobs) >= group.needed
        in_time = group.deadline is None or now >= 100 + group.deadline
        assert in_time or len(jobs) + len(found.refused) >= group.size


# -- records


CONTRIBUTOR = Contributor("a", 3, 10.0, tree_digest(FILES), FILES, BASE)
RECORDS = [
    Group("g", 4, "fedadam", {"lr": 0.1}, 3, 60.0, 9, 2, "delta", {"*.step": "max"}, "product"),
    Plan("g", 3, "fedavg", (CONTRIBUTOR,), {"x": 1}, refused={"b": "NaN"}, missing=("c",)),
    Merge("g", 3, "fedavg", FILES, tree_digest(FILES), "1" * 64, state=STATE,
          state_digest=tree_digest(STATE)),
    Refusal("g", 3, "a", "unsafe", "it names posix.system"),
    Waiting(3, 1.5),
    Retired(3),
    Times(1.5, 2.5),
    Final("g", 3, "outbox/federation/g/to_worker/before_ep_0004", "1" * 64),
]  # fmt: skip


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: type(r).__name__)
def test_a_record_comes_back(record: Any) -> None:
    assert type(record).from_json(record.to_json(), "x.json") == record


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"size": 0}, "'size' must be 1"),
        ({"quorum": 0}, "'quorum' must be 1 to 4"),
        ({"quorum": 5}, "'quorum' must be 1 to 4"),
        ({"deadline": -1.0}, "'deadline'"),
        ({"episodes": 0}, "'episodes'"),
        ({"keep_rounds": 0}, "'keep_rounds'"),
        ({"late": "never"}, "'late'"),
    ],
)
def test_what_no_group_can_be(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    wrong = replace(G, **fields)
    with pytest.raises(FormatError, match=words):
        Group.from_json(wrong.to_json(), "group.json")
    with pytest.raises(UsageError, match=words):
        federation.create_group(Store(tmp_path), wrong)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rule": "nope"}, "there is no merge rule 'nope'"),
        ({"options": {"lr": 1.0}}, "fedavg has no option 'lr': it has none"),
        ({"rule": "krum", "options": {"q": 1}}, "krum has no option 'q': it has f"),
        ({"rule": "fedadam", "options": {"lr": -1}}, "lr = -1 of the rule fedadam must be above 0"),
        ({"rule": "fedadam", "options": {"lr": "1"}}, "field 'options': lr = '1' of the rule"),
        ({"keys": {"*.step": "most"}}, "field 'keys': pattern '..step': there is no action 'most'"),
        ({"lora": "sum"}, "field 'lora' is 'sum', which is none of: product, factors"),
    ],
)
def test_a_rule_that_there_is_not_is_refused_when_it_is_asked_for(
    tmp_path: Path, fields: dict[str, Any], words: str
) -> None:
    store, wrong = Store(tmp_path), replace(G, **fields)
    with pytest.raises(UsageError, match=words):
        federation.create_group(store, wrong)
    federation.create_group(store, G)
    with pytest.raises(UsageError, match=words):
        federation.edit_group(store, "g", **fields)
    assert Group.from_json(wrong.to_json(), "group.json") == wrong, "a newer one may know it"


def test_a_merge_whose_digests_contradict_each_other_is_damaged() -> None:
    for fields in ({"digest": "0" * 64}, {"state": STATE}, {"state_digest": "0" * 64}):
        wrong = replace(Merge("g", 3, "fedavg", FILES, tree_digest(FILES)), **fields)
        with pytest.raises(FormatError, match="digest"):
            Merge.from_json(wrong.to_json(), "merge.json")


def test_a_plan_without_contributors_is_none() -> None:
    with pytest.raises(FormatError, match="nobody"):
        Plan.from_json(Plan("g", 1, "fedavg", ()).to_json(), "plan.json")


# -- places


def test_a_group_has_as_many_places_as_participants(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert federation.create_group(store, replace(G, size=2)).size == 2
    assert federation.create_group(store, replace(G, size=2, rule="median")).rule == "fedavg"
    with pytest.raises(Refused, match="has 2 participants, not 3"):
        federation.create_group(store, replace(G, size=3))
    assert [federation.join(store, "g", j) for j in ("a", "b", "a")] == [1, 2, 1]
    with pytest.raises(Refused, match="one too many"):
        federation.join(store, "g", "c")
    federation.leave(store, "g", "a")
    assert federation.join(store, "g", "c") == 1
    assert federation.members(store, "g") == {1: "c", 2: "b"}
    assert federation.all_groups(store) == ["g"]
    with pytest.raises(NotRunning, match="no group 'h'"):
        federation.join(store, "h", "a")


def test_jobs_that_join_at_once_get_different_places(tmp_path: Path) -> None:
    federation.create_group(Store(tmp_path), replace(G, size=4))
    jobs = ["a", "b", "c", "d", "e", "f", "a", "b"]
    gate, got = threading.Barrier(len(jobs)), []

    def run(job: str) -> None:
        gate.wait()
        try:
            got.append((job, federation.join(Store(tmp_path), "g", job)))
        except Refused:
            got.append((job, 0))

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    members = federation.members(Store(tmp_path), "g")
    assert len(members) <= 4 and {job for job, place in got if place} == set(members.values())
    # A job that came twice may have held a second place for a moment, and one more was refused.
    assert len(set(members.values())) == len(members) >= 3
    assert os.listdir(tmp_path / "outbox/federation") == ["g"]


def test_a_group_is_changed_while_it_runs(tmp_path: Path) -> None:
    store = Store(tmp_path)
    federation.create_group(store, G)
    changed = federation.edit_group(store, "g", quorum=2, deadline=5.0, rule="median")
    assert (
        federation.read_group(store, "g")
        == changed
        == replace(G, quorum=2, deadline=5.0, rule="median")
    )
    with pytest.raises(UsageError, match="size"):
        federation.edit_group(store, "g", size=9)
    with pytest.raises(UsageError, match="quorum"):
        federation.edit_group(store, "g", quorum=9)
