"""`fedavg once`, `verify`, `replay` and `ctl rounds` on groups of every state."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import ctl.cli
import fedavg.cli
from fedavg import publishing
from fedavg.aggregator import Aggregator
from fedavg.keeper import GroupKeeper
from fsworker.errors import StorageError
from fsworker.protocol import aggregators, federation
from fsworker.protocol.artifacts import Damaged
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import groups
from fsworker.protocol.records.round import Group, GroupReport
from tests.support.rounds import counted, killed_between_plan_and_model, make_group, upload

pytestmark = pytest.mark.unit


@pytest.fixture
def three(store: Store) -> Store:
    """A group of two after three rounds, with what each participant gave: its round's number."""
    make_group(store, "ab", rule="fedavgm", options={"beta": 0.5}, keep_rounds=2)
    keeper = GroupKeeper(store, "g")
    for episode in (1, 2, 3):
        for job, value in (("a", 0.0), ("b", 2.0 * episode)):
            upload(store, "g", job, episode, value)
        assert keeper.step().merged
    keeper.step()
    return store


def json_of(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return value


def states(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [link["found"] for link in json_of(capsys)["rounds"]]


# -- once


def test_once_merges_what_is_ready(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedavg.cli.main(["once"]) == 0
    assert capsys.readouterr().out == "there are no groups\n"
    make_group(store, "ab")
    for job in "ab":
        upload(store, "g", job, 1, 1.0)
    assert fedavg.cli.main(["once", "--json"]) == 0
    assert json_of(capsys)["groups"]["g"]["round"] == 2
    assert federation.read_global(store, "g", 2) is not None


def test_once_says_by_its_exit_code_that_a_group_is_stuck(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    make_group(store, "ab")
    upload(store, "g", "a", 1, float("nan"))
    upload(store, "g", "b", 1, 1.0)
    assert fedavg.cli.main(["once"]) == 1
    assert "g: round 1: stuck: 1 of the 2 that are needed count" in capsys.readouterr().out


def test_a_group_that_is_not_there_is_refused_or_waited_for_aloud(
    store: Store, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    make_group(store, "ab", episodes=1)
    for argv in (["once", "gg"], ["run", "--until-finished", "gg", "g"]):
        assert fedavg.cli.main(argv) == 3
        assert "there is no group 'gg' in" in capsys.readouterr().err
    stop = threading.Event()
    aggregator = Aggregator(store, ["g", "gg"])
    aggregator.sweep()
    aggregator.sweep()
    said = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(said) == 1 and said[0].startswith("there is no group 'gg' in ")
    assert not aggregator.finished
    aggregator.beat()
    assert ctl.cli.main(["rounds"]) == 0
    assert "waits for a group 'gg', which is not there" in capsys.readouterr().out
    federation.create_group(store, Group("gg", 1, episodes=1))
    for group, job in (("g", "a"), ("g", "b"), ("gg", "c")):
        upload(store, group, job, 1, 1.0)
    aggregator.run(stop, poll=0.01, until_finished=True)
    assert aggregator.finished


def test_rounds_say_why_a_group_fails(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    make_group(store, "ab")
    for job in "ab":
        upload(store, "g", job, 1, 1.0)
    record = Path(store.path(groups.group_file("g")))
    record.write_text(record.read_text().replace('"fedavg"', '"nonesuch"'))
    aggregator = Aggregator(store)
    aggregator.sweep()
    aggregator.beat()
    assert ctl.cli.main(["rounds"]) == 1
    told = f"round 1: failed: {record}: field 'rule': there is no merge rule 'nonesuch'"
    assert told in capsys.readouterr().out
    federation.edit_group(store, "g", rule="fedavg")
    aggregator.sweep()
    aggregator.beat(stopped=True)
    assert ctl.cli.main(["rounds", "--json"]) == 0
    assert json_of(capsys)["groups"][0]["state"] != "failed"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"rule": "fedavg"', '"rule": "fedavgg"', "field 'rule': there is no merge rule 'fedavgg'"),
        ('"rule": "fedavg"', '"rule": "krum"', "field 'rule' does not fit the group's size: krum"),
        ('"options": {}', '"options": {"lr": 0}', "field 'options': the rule fedavg has no option"),
        ('"keys": {}', '"keys": {"*": "x"}', "field 'keys': pattern '*': there is no action 'x'"),
        ('"lora": null', '"lora": "x"', "field 'lora' is 'x', which is none of"),
    ],
)
def test_terms_that_cannot_be_are_told_before_anybody_uploads(
    store: Store, capsys: pytest.CaptureFixture[str], old: str, new: str, told: str
) -> None:
    """Somebody edited the file, and no aggregator has looked at it yet; then one does."""
    make_group(store, "ab")
    record = Path(store.path(groups.group_file("g")))
    assert old in record.read_text()
    record.write_text(record.read_text().replace(old, new))
    assert ctl.cli.main(["rounds"]) == 1
    assert f"round 1: failed: {record}: {told}" in capsys.readouterr().out
    assert ctl.cli.main(["rounds", "g", "--json"]) == 1
    assert json_of(capsys)["groups"][0]["why"].startswith(f"{record}: {told}")
    assert fedavg.cli.main(["once"]) == 1
    assert f"g: round 0: failed: {record}: {told}" in capsys.readouterr().out
    record.write_text(record.read_text().replace(new, old))
    assert fedavg.cli.main(["once"]) == ctl.cli.main(["rounds"]) == 0


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"quorum": null', '"quorum": 3', "field 'quorum' must be 1 to 2, not 3"),
        ('"deadline": null', '"deadline": "2h"', "field 'deadline' must be"),
        ('"size": 2', '"size": 2,,', "is not valid JSON"),
    ],
)
def test_a_file_that_is_no_group_is_told_before_anybody_uploads(
    store: Store, capsys: pytest.CaptureFixture[str], old: str, new: str, told: str
) -> None:
    make_group(store, "ab")
    record = Path(store.path(groups.group_file("g")))
    record.write_text(record.read_text().replace(old, new))
    for argv, code in ((["rounds"], 1), (["rounds", "g"], 8)):
        assert ctl.cli.main(argv) == code
        shown = "".join(capsys.readouterr())
        assert str(record) in shown and told in shown


def test_a_root_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedavg.cli.main(["once", "--root", str(tmp_path)]) == 3
    assert "holds no manifest.json" in capsys.readouterr().err


# -- verify


def test_a_chain_that_is_whole(three: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedavg.cli.main(["verify", "g", "--json"]) == 0
    assert states(capsys) == ["good", "good", "good"]
    assert fedavg.cli.main(["verify", "g", "--recompute", "--json"]) == 0
    assert states(capsys) == ["good", "recomputed", "recomputed"]


def alter_model(store: Store) -> None:
    path = Path(store.path(groups.global_dir("g", 3))) / "global_weights.pt"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def alter_plan(store: Store) -> None:
    path = Path(store.path(groups.round_dir("g", 2))) / "plan.json"
    path.write_text(path.read_text().replace('"weight": 1.0', '"weight": 2.0', 1))


def alter_record(store: Store) -> None:
    path = Path(store.path(groups.global_dir("g", 3))) / "merge.json"
    path.write_text(path.read_text().replace('"rule": "fedavgm"', '"rule": "fedavg"'))


def remove_state(store: Store) -> None:
    os.unlink(store.path(groups.global_dir("g", 3) + "/optimizer_state.safetensors"))


def remove_round(store: Store) -> None:
    os.unlink(store.path(groups.global_dir("g", 3) + "/merge.json"))


@pytest.mark.parametrize(
    ("harm", "broken"),
    [
        (alter_model, [2]),
        (alter_plan, [2]),
        (alter_record, [3]),  # its own digest is in the record after it
        (remove_state, [2]),
        (remove_round, [2, 3]),
    ],
)
def test_what_was_altered_is_found(
    three: Store, capsys: pytest.CaptureFixture[str], harm: Any, broken: list[int]
) -> None:
    harm(three)
    assert fedavg.cli.main(["verify", "g", "--json"]) == 8
    found = json_of(capsys)["rounds"]
    assert [link["round"] for link in found if link["found"] == "broken"] == broken, found
    assert fedavg.cli.main(["verify", "g"]) == 8
    assert f"{len(broken)} of 3 rounds of 'g' are broken" in capsys.readouterr().err


# -- replay


def test_kept_uploads_under_another_rule(
    three: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "again.pt"
    assert fedavg.cli.main(["replay", "g", "3", "-o", str(out)]) == 0
    assert out.read_bytes() == three.read(groups.global_dir("g", 4) + "/global_weights.pt")
    assert fedavg.cli.main(["replay", "g", "3", "-o", str(out)]) == 5
    os.unlink(out)
    argv = ["replay", "g", "3", "--rule", "fedavg", "-o", str(out), "--json"]
    capsys.readouterr()
    assert fedavg.cli.main(argv) == 0
    assert json_of(capsys)["jobs"] == ["a", "b"]
    assert float(torch.load(out)["q_net_state_dict"]["0.weight"][0, 0]) == 3.0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again.pt", "root"]
    assert fedavg.cli.main(["replay", "g", "1", "-o", str(tmp_path / "x")]) == 8
    assert fedavg.cli.main(["replay", "g", "9", "-o", str(tmp_path / "x")]) == 3


def test_a_state_is_written_or_refused(
    three: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["replay", "g", "3", "-o", str(tmp_path / "o"), "--state-out", str(tmp_path / "s")]
    assert fedavg.cli.main([*argv, "--rule", "median"]) == 2
    told = capsys.readouterr().err
    assert told == "fedavg: --state-out: median keeps no optimiser state: leave it out\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["root"]
    assert fedavg.cli.main(argv) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["o", "root", "s"]


# -- ctl rounds


def test_rounds_tell_who_is_in_and_who_is_not(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    make_group(store, "abc", size=4, quorum=2, deadline=600.0)
    upload(store, "g", "a", 1, 1.0)
    upload(store, "g", "b", 1, float("nan"))
    fedavg.cli.main(["once"])
    capsys.readouterr()
    assert ctl.cli.main(["rounds", "--json"]) == 0
    (group,) = json_of(capsys)["groups"]
    people = {p["job"]: (p["state"], p["reason"]) for p in group["participants"]}
    assert people["a"][0] == "in" and people["c"] == ("missing", "has not uploaded")
    assert people["b"][0] == "refused" and "not finite" in people["b"][1]
    assert "(1 more)" in people and group["due"].endswith("+00:00")
    assert ctl.cli.main(["rounds"]) == 0
    shown = capsys.readouterr().out
    assert "round 1: waiting: 1 of the 2 that are needed count" in shown
    assert "deadline 10m00s" in shown and "has ended: fedavg run --root" in shown


def test_terms_change_while_a_group_runs(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    make_group(store, "abc", rule="fedavgm", options={"beta": 0.5})
    upload(store, "g", "a", 1, 1.0)
    argv = ["rounds", "g", "--quorum", "1", "--deadline", "2h", "--late", "delta"]
    assert ctl.cli.main(argv) == 0
    group = federation.read_group(store, "g")
    assert (group.quorum, group.deadline, group.late) == (1, 7200.0, "delta")
    assert ctl.cli.main(["rounds", "g", "--rule", "fedadam", "--option", "lr=0.5"]) == 0
    assert ctl.cli.main(["rounds", "g", "--deadline", "none", "--quorum", "all"]) == 0
    group = federation.read_group(store, "g")
    assert (group.rule, group.options) == ("fedadam", {"lr": 0.5})
    assert (group.quorum, group.deadline) == (None, None)
    assert ctl.cli.main(["rounds", "g", "--rule", "median"]) == 0
    assert federation.read_group(store, "g").options == {}


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["rounds", "--quorum", "1"], 2, "name the one group"),
        (["rounds", "g", "--quorum", "9"], 2, "'quorum' must be 1 to 2"),
        (["rounds", "g", "--quorum", "x"], 2, "whole number"),
        (["rounds", "g", "--deadline", "soon"], 2, "duration"),
        (["rounds", "g", "--option", "lr"], 2, "NAME=NUMBER"),
        (["rounds", "g", "--rule", "fedadam", "--option", "lr=-1"], 2, "must be above 0"),
        (["rounds", "g", "--rule", "fedadam", "--option", "lr=Infinity"], 2, "must be finite"),
        (["rounds", "g", "--key", "*.step=most"], 2, "there is no action 'most'"),
        (["rounds", "nobody"], 3, "no group 'nobody'"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    store: Store, capsys: pytest.CaptureFixture[str], argv: list[str], code: int, words: str
) -> None:
    make_group(store, "ab")
    assert ctl.cli.main(argv) == code
    told = capsys.readouterr().err
    assert words in told and told.count("\n") == 1


def test_closed_rounds_and_their_times_are_shown(
    three: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ctl.cli.main(["rounds", "g", "--json", "--last", "2"]) == 0
    (group,) = json_of(capsys)["groups"]
    assert [closed["round"] for closed in group["rounds"]] == [3, 2]
    assert all(closed["merged_s"] >= 0 <= closed["waited_s"] for closed in group["rounds"])
    assert ctl.cli.main(["rounds", "g"]) == 0
    assert "waited" in capsys.readouterr().out


def test_a_group_that_cannot_be_read_hides_no_other(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    make_group(store, "ab")
    store.mkdir(groups.group_dir("x"))
    store.put(groups.group_file("x"), b"null")
    assert ctl.cli.main(["rounds", "--json"]) == 1
    found = json_of(capsys)
    assert [g["group"] for g in found["groups"]] == ["g"] and "JSON object" in found["broken"]["x"]


def test_a_group_is_made_on_its_own_terms(store: Store) -> None:
    argv = ["rounds", "g", "--size", "3", "--rule", "median", "--quorum", "2", "--lora", "product"]
    assert ctl.cli.main([*argv, "--key", "*.step=max"]) == 0
    group = federation.read_group(store, "g")
    assert (group.size, group.rule, group.quorum, group.lora) == (3, "median", 2, "product")
    assert group.keys == {"*.step": "max"} and group.episodes is None
    make_group(store, "abc", episodes=7)  # as the jobs of the group do when they are submitted
    group = federation.read_group(store, "g")
    assert (group.rule, group.episodes) == ("median", 7)
    assert ctl.cli.main(["rounds", "g", "--size", "4"]) == 5


def test_a_full_disk_is_told_by_its_file_and_nothing_is_left(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    federation.create_group(store, Group("g", 2))
    there = sorted(os.walk(store.root))
    put = Store.put

    def full(self: Store, rel: str, data: bytes, *, durable: bool = True) -> None:
        if rel.rpartition("/")[2] in (groups.GROUP_FILE, groups.MEMBER_FILE):
            put(self, rel, b"")  # as a disk does that has room for a name and for nothing else
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path(rel))
        put(self, rel, data, durable=durable)

    monkeypatch.setattr(Store, "put", full)
    assert ctl.cli.main(["rounds", "h", "--size", "3"]) == 7
    path = store.path(groups.group_file("h"))
    words = f"ctl: cannot write {path}: No space left on device: free space on that filesystem\n"
    assert capsys.readouterr().err == words
    assert sorted(os.walk(store.root)) == there
    with pytest.raises(StorageError, match=r"cannot write .*/members/0001/member\.json: No sp"):
        federation.join(store, "g", "a")
    assert os.listdir(store.path(groups.members_dir("g"))) == []


KRUM = ["--rule", "krum", "--option", "f=1"]


def test_a_rule_that_no_round_of_the_group_can_be_closed_by_is_refused(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ctl.cli.main(["rounds", "g", "--size", "4", *KRUM]) == 2
    told = capsys.readouterr().err
    assert "field 'rule' does not fit the group's size: krum against 1 hostile" in told
    assert "needs 5 of them, here are 4" in told and told.count("\n") == 1
    assert federation.all_groups(store) == [], "its jobs would find other terms"
    assert ctl.cli.main(["rounds", "g", "--size", "5", *KRUM]) == 0
    assert ctl.cli.main(["rounds", "g", "--size", "5", "--option", "f=0"]) == 0
    assert ctl.cli.main(["rounds", "g", "--option", "f=2"]) == 2
    assert federation.read_group(store, "g").options == {"f": 0}


def test_what_is_shown_of_a_rule_that_does_not_fit_is_what_the_aggregator_does(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    make_group(store, "abcde", quorum=1, deadline=3600.0, rule="krum", options={"f": 1})
    for job in "abcd":
        upload(store, "g", job, 1, 1.0)
    upload(store, "g", "e", 1, 1.0, samples=0.0)
    assert fedavg.cli.main(["once"]) == 1
    told = capsys.readouterr().out.partition("stuck: ")[2].strip()
    assert told.startswith("rule krum cannot be applied yet: krum against 1 hostile participants")
    assert "change the rule or its options (ctl rounds g --rule" in told and "quorum" not in told
    assert ctl.cli.main(["rounds", "g", "--json"]) == 1
    [group] = json_of(capsys)["groups"]
    assert (group["state"], group["why"]) == ("stuck", told)
    assert ctl.cli.main(["rounds", "g", "--option", "f=0"]) == 0
    assert fedavg.cli.main(["once"]) == 0 and counted(store, 1) == [(job, 1) for job in "abcd"]


def test_a_group_that_was_made_with_such_a_rule_is_told_and_helped(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """As an older version took it: its uploads are in, and it is read as ever."""
    make_group(store, "abcd", quorum=1)
    for job in "abcd":
        upload(store, "g", job, 1, 1.0)
    old = replace(federation.read_group(store, "g"), rule="krum", options={"f": 1})
    store.publish(groups.group_file("g"), old.to_json())
    assert federation.read_group(store, "g") == old
    for say in (["rounds", "g"], ["rounds"]):
        assert ctl.cli.main(say) == 1
        assert "round 1: failed" in (told := capsys.readouterr().out)
        assert "krum against 1 hostile participants needs 5 of them, here are 4" in told
    assert fedavg.cli.main(["once"]) == 1
    assert "needs 5 of them, here are 4; take another" in capsys.readouterr().out
    assert ctl.cli.main(["rounds", "g", "--rule", "median"]) == 0
    assert fedavg.cli.main(["once"]) == 0 and len(counted(store, 1)) == 4


# -- reopen


def test_a_round_whose_plan_is_damaged_is_closed_anew(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    killed_between_plan_and_model(store, monkeypatch)
    store.put(f"{groups.round_dir('g', 1)}/plan.json", bytes(100))
    assert fedavg.cli.main(["once"]) == 1
    assert "fedavg reopen g closes round 1 anew" in capsys.readouterr().out
    assert fedavg.cli.main(["reopen", "g"]) == 0
    assert fedavg.cli.main(["once"]) == 0 and fedavg.cli.main(["verify", "g"]) == 0


def test_what_else_is_damaged_takes_no_plan_back(store: Store) -> None:
    make_group(store, "ab")
    store.put(groups.group_file("g"), b"null")
    assert fedavg.cli.main(["reopen", "g"]) == 8


def test_a_round_whose_uploads_are_lost_is_closed_anew(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_group(store, "abc", quorum=2)
    for job in "abc":
        upload(store, "g", job, 1, 1.0)
    assert fedavg.cli.main(["reopen", "g"]) == 3

    def lost(*args: Any) -> None:
        os.unlink(store.path(groups.upload_dir("g", 1, "a") + "/checkpoint.pt"))
        raise Damaged("it is lost")

    # As where there are no locks: who has one takes the plan back by itself.
    unlocked = Aggregator(store, alone=False)
    with monkeypatch.context() as patched:
        patched.setattr(publishing, "publish_prepared", lost)
        unlocked.sweep()
    unlocked.sweep()
    assert "there is no checkpoint" in str(unlocked.errors["g"])
    assert fedavg.cli.main(["reopen", "g"]) == 0
    assert fedavg.cli.main(["once"]) == 0
    found = federation.read_global(store, "g", 2)
    assert found is not None
    assert fedavg.cli.main(["verify", "g"]) == 0
    assert fedavg.cli.main(["reopen", "g"]) == 3


@pytest.mark.parametrize(
    ("stopped", "state", "silent", "code"),
    [
        (False, "waiting", 0.0, 10),
        (False, "waiting", 30.0, 0),
        (False, "merging", 30.0, 10),
        (False, "merging", 1000.0, 0),
        (True, "waiting", 0.0, 0),
    ],
)
def test_without_locks_nothing_is_taken_back_beside_an_aggregator_that_beats(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    stopped: bool, state: str, silent: float, code: int,
) -> None:  # fmt: skip
    make_group(store, "ab", quorum=2)
    for job in "ab":
        upload(store, "g", job, 1, 1.0)
    fails = StorageError("the merge fails")
    with monkeypatch.context() as patched:
        patched.setattr(publishing, "publish_prepared", lambda *_, **__: raising(fails))
        aggregator = Aggregator(store, alone=False)
        aggregator.sweep()
    aggregator.reports["g"] = GroupReport(1, state)
    aggregator.beat()
    if stopped:
        aggregator.beat(stopped=True)
    (sign,) = aggregators.signs(store, time.time)
    beat = store.path(sign.file)
    changed = os.stat(beat).st_mtime - silent
    os.utime(beat, (changed, changed))

    def without_locks(*args: object) -> None:
        raise NotImplementedError("no locks here")

    monkeypatch.setattr("fedavg.aggregator.take", without_locks)
    assert fedavg.cli.main(["reopen", "g"]) == code
    told = capsys.readouterr()
    assert ("is open again" in told.out) is (code == 0)
    if code:
        assert "has no locks: stop it first; one that was killed counts as gone in" in told.err


def raising(error: Exception) -> None:
    raise error
