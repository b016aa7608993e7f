"""The rounds of a group on real torch files: who is in, who is refused, what is published."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ctl import groupstatus
from fedavg import publishing, verifying
from fedavg.aggregator import Aggregator, leadership
from fedavg.keeper import GroupKeeper
from fsworker.errors import Busy
from fsworker.protocol import archive, federation, fsfolders
from fsworker.protocol.fsops import Store
from fsworker.protocol.groupview import GroupEye
from fsworker.protocol.layout import groups
from fsworker.protocol.records.round import Merge, sha256
from tests.support.rounds import (
    Shell,
    keep,
    make_group,
    model,
    published,
    refusals,
    saves,
    upload,
    weights,
)

pytestmark = pytest.mark.unit


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "root").mkdir(mode=0o700)
    return Store(tmp_path / "root")


def value(store: Store, episode: int) -> float:
    return float(model(store, episode)["q_net_state_dict"]["0.weight"][0, 0])


# -- a round


def test_a_round_is_merged_when_all_are_in(store: Store) -> None:
    make_group(store, "ab")
    upload(store, "g", "a", 1, 1.0)
    step = keep(store)
    assert (step.report.state, step.report.round) == ("waiting", 1)
    upload(store, "g", "b", 1, 2.0)
    step = keep(store)
    assert (step.report.state, step.report.round) == ("idle", 2)
    merged = model(store, 2)
    assert torch.equal(merged["q_net_state_dict"]["0.bias"], torch.tensor([0.0, 1.5]))
    assert torch.equal(merged["target_net_state_dict"]["0.bias"], torch.tensor([1.0, 2.5]))
    assert merged["steps"] == 100
    found = federation.read_global(store, "g", 2)
    plan = GroupEye(store, "g").plan(1)
    assert found is not None and plan is not None
    assert found.merge.plan == sha256(plan.to_json())
    assert [c.job for c in plan.contributors] == ["a", "b"]
    federation_files = os.listdir(store.path(groups.global_dir("g", 2)))
    assert sorted(federation_files) == ["global_weights.pt", "merge.json"]


def test_rounds_are_a_chain(store: Store) -> None:
    make_group(store, "ab", episodes=3)
    for episode in (1, 2, 3):
        for job in "ab":
            upload(store, "g", job, episode, float(episode))
        step = keep(store)
    assert step.report.state == "finished" and step.finished
    eye = GroupEye(store, "g")
    chain = [eye.model(n) for n in (2, 3, 4)]
    previous = None
    for found in chain:
        assert found is not None
        assert (found.merge.previous, found.merge.round) == (previous, found.episode - 1)
        previous = found.record_digest
    final = eye.final()
    assert final is not None and final.folder == groups.global_dir("g", 4)
    assert value(store, 4) == 3.0


def test_sample_counts_are_weights(store: Store) -> None:
    make_group(store, "abc", quorum=2)
    upload(store, "g", "a", 1, 0.0, samples=10)
    upload(store, "g", "b", 1, 3.0, samples=20)
    upload(store, "g", "c", 1, 9.0, samples=0)
    keep(store)
    assert value(store, 2) == 2.0 and refusals(store, 1) == {"c": "samples"}


def test_with_no_samples_at_all_the_old_model_stays(store: Store) -> None:
    make_group(store, "ab", quorum=1)
    for job in "ab":
        upload(store, "g", job, 1, 1.0, samples=0)
    step = keep(store)
    assert step.report.state == "stuck"
    assert store.scan(groups.group_dir("g")).count("to_worker") == 0


def misshapen() -> dict[str, Any]:
    model = weights(1.0)
    model["q_net_state_dict"]["0.weight"] = torch.ones(5, 2)
    return model


def lacking() -> dict[str, Any]:
    model = weights(1.0)
    del model["q_net_state_dict"]["0.bias"]
    return model


def retyped() -> dict[str, Any]:
    model = weights(1.0)
    model["q_net_state_dict"]["0.weight"] = torch.ones(4, 2, dtype=torch.float64)
    return model


def garbage(path: str) -> None:
    Path(path).write_bytes(b"no checkpoint" * 100)


BAD: list[tuple[str, Callable[[], object]]] = [
    ("not finite", lambda: weights(float("nan"))),
    ("not finite", lambda: weights(float("inf"))),
    ("misshapen", misshapen),
    ("misshapen", lacking),
    ("misshapen", retyped),
    ("unsafe", lambda: {"q_net_state_dict": Shell("touch HERE")}),
]


@pytest.mark.parametrize(("kind", "make"), BAD)
@pytest.mark.parametrize("episode", [1, 2])
@pytest.mark.filterwarnings("ignore")
def test_who_is_bad_is_refused_by_name_and_stops_nobody(
    store: Store, tmp_path: Path, kind: str, make: Callable[[], object], episode: int
) -> None:
    make_group(store, "abc", quorum=2)
    for done in range(1, episode):
        for job in "abc":
            upload(store, "g", job, done, 1.0)
        keep(store)
    upload(store, "g", "a", episode, saves(make()))
    upload(store, "g", "b", episode, 2.0)
    upload(store, "g", "c", episode, 4.0)
    keep(store)
    assert refusals(store, episode) == {"a": kind}
    assert value(store, episode + 1) == 3.0
    plan = GroupEye(store, "g").plan(episode)
    assert plan is not None and plan.refused["a"].startswith(kind)
    assert not os.path.exists("HERE")


@pytest.mark.parametrize("rule", ["fedadagrad", "fedadam", "fedyogi"])
@pytest.mark.parametrize("value", [1e25, -1e25])
def test_a_value_that_cannot_be_squared_stops_no_round(
    store: Store, rule: str, value: float
) -> None:
    make_group(store, "abc", quorum=2, rule=rule)
    for job in "abc":
        upload(store, "g", job, 1, 1.0)
    keep(store)
    for job, weight in (("a", 1.0), ("b", 1.5), ("c", value)):
        upload(store, "g", job, 2, weight)
    assert keep(store).report.round == 3
    refusal = GroupEye(store, "g").refusals(2)["c"]
    assert refusal.kind == "not finite" and f"{value:g}" in refusal.reason


def test_bytes_that_are_no_checkpoint_or_no_more_what_was_digested(store: Store) -> None:
    make_group(store, "abcd", quorum=2)
    upload(store, "g", "a", 1, garbage)
    upload(store, "g", "b", 1, 1.0)
    path = Path(store.path(groups.upload_dir("g", 1, "b"))) / "checkpoint.pt"
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    for job in "cd":
        upload(store, "g", job, 1, 2.0)
    keep(store)
    assert refusals(store, 1)["b"] == "damaged" and refusals(store, 1)["a"] != "unsafe"
    assert value(store, 2) == 2.0


def test_who_started_from_another_model_is_stale(store: Store) -> None:
    make_group(store, "abc", quorum=2)
    for job in "abc":
        upload(store, "g", job, 1, 1.0)
    keep(store)
    upload(store, "g", "a", 2, 9.0, base="e" * 64)
    upload(store, "g", "b", 2, 2.0)
    upload(store, "g", "c", 2, 2.0)
    keep(store)
    assert refusals(store, 2) == {"a": "stale"} and value(store, 3) == 2.0


def test_a_record_of_another_job_and_a_stranger_are_refused(store: Store) -> None:
    make_group(store, "abc", quorum=2)
    upload(store, "g", "a", 1, 9.0, says="b")
    upload(store, "g", "x", 1, 9.0)
    upload(store, "g", "b", 1, 2.0)
    upload(store, "g", "c", 1, 2.0)
    keep(store)
    assert refusals(store, 1) == {"a": "damaged", "x": "stranger"} and value(store, 2) == 2.0


def test_a_participant_on_two_hosts_counts_once(store: Store) -> None:
    make_group(store, "ab")
    assert upload(store, "g", "a", 1, 1.0)
    assert not upload(store, "g", "a", 1, 9.0, attempt=2)
    assert keep(store).report.state == "waiting"
    upload(store, "g", "b", 1, 3.0)
    keep(store)
    assert value(store, 2) == 2.0


def test_checkpoints_without_a_net_pass_and_their_lists_may_grow(store: Store) -> None:
    make_group(store, "ab")
    for episode in (1, 2):
        for job in "ab":
            numbers = [float(n) for n in range(episode)]
            state = {"agent": "greedy", "rewards": numbers, "total_reward": sum(numbers)}
            write = lambda path, s=state: Path(path).write_text(json.dumps(s))  # noqa: E731
            upload(store, "g", job, episode, write, name="checkpoint.json")  # type: ignore[arg-type]
        assert keep(store).report.round == episode + 1
    path = f"{groups.global_dir('g', 3)}/global_weights.json"
    assert json.loads(store.read(path))["rewards"] == [0.0, 1.0]


def shards(path: str, value: float) -> None:
    os.mkdir(path)
    names = {"x": "model-00001-of-00002.safetensors", "y": "model-00002-of-00002.safetensors"}
    for key, name in names.items():
        save_file({key: torch.full((3,), value)}, f"{path}/{name}")
    index = {"metadata": {"total_size": 24}, "weight_map": names}
    Path(path, "model.safetensors.index.json").write_text(json.dumps(index))


def test_a_folder_of_shards_is_merged_to_a_folder_of_shards(store: Store) -> None:
    make_group(store, "ab")
    for job, value in (("a", 1.0), ("b", 3.0)):
        upload(store, "g", job, 1, partial(shards, value=value), name="checkpoint")
    keep(store)
    folder = store.path(f"{groups.global_dir('g', 2)}/global_weights")
    assert len(os.listdir(folder)) == 3
    merged = load_file(f"{folder}/model-00002-of-00002.safetensors")
    assert torch.equal(merged["y"], torch.full((3,), 2.0))


# -- late ones


def test_a_late_upload_is_refused_and_told_why(store: Store) -> None:
    make_group(store, "abc", quorum=2)
    for job in "ab":
        upload(store, "g", job, 1, 1.0)
    keep(store)
    upload(store, "g", "c", 1, 9.0)
    keep(store)
    assert refusals(store, 1) == {"c": "late"} and value(store, 2) == 1.0


def test_a_late_upload_counts_as_a_change_of_the_model_that_it_started_from(store: Store) -> None:
    make_group(store, "abc", quorum=2, late="delta")
    for job in "abc":
        upload(store, "g", job, 1, 1.0)
    keep(store)  # 1
    for job in "ab":
        upload(store, "g", job, 2, 5.0)
    keep(store)  # 5
    upload(store, "g", "c", 2, 2.0)  # + 1 since its base
    upload(store, "g", "a", 3, 7.0)  # + 2 since its base
    keep(store)
    assert value(store, 4) == 5.0 + (1.0 + 2.0) / 2
    plan = GroupEye(store, "g").plan(3)
    assert plan is not None and [(c.job, c.episode) for c in plan.contributors] == [
        ("a", 3), ("c", 2),
    ]  # fmt: skip
    assert keep(store).report.state == "idle" and refusals(store, 2) == {}


# -- rules


def test_the_state_of_a_rule_goes_from_round_to_round(store: Store) -> None:
    make_group(store, "ab", rule="fedavgm", options={"beta": 0.5})
    for episode, given in ((1, 1.0), (2, 2.0), (3, 2.0)):
        for job in "ab":
            upload(store, "g", job, episode, given)
        keep(store)
    # x1 = 1 (the mean), v = 1, x2 = 2; v = 0.5 + 0, x3 = 2.5
    assert (value(store, 2), value(store, 3), value(store, 4)) == (1.0, 2.0, 2.5)
    eye = GroupEye(store, "g")
    first, second = eye.model(2), eye.model(3)
    assert first is not None and second is not None
    assert first.merge.state == () and second.merge.state_digest is not None


def test_a_rule_may_change_between_rounds_and_starts_its_state_anew(store: Store) -> None:
    make_group(store, "ab", rule="fedavgm")
    for episode, rule in ((1, "fedavgm"), (2, "median"), (3, "fedadam"), (4, "fedavgm")):
        federation.edit_group(store, "g", rule=rule)
        for job in "ab":
            upload(store, "g", job, episode, 1.0)
        assert keep(store).report.round == episode + 1
    found = GroupEye(store, "g").plan(4)
    assert found is not None and (found.rule, found.state) == ("fedavgm", None)


def test_a_rule_that_does_not_fit_waits(store: Store) -> None:
    make_group(store, "abcde", rule="krum", options={"f": 1}, quorum=2)
    for job in "abcd":
        upload(store, "g", job, 1, 1.0)
    step = keep(store)
    assert step.report.state == "waiting" and "krum" in step.report.why
    upload(store, "g", "e", 1, 1.0)
    assert keep(store).report.round == 2


def test_a_rule_that_is_none_is_told_and_mended(store: Store) -> None:
    """Nobody can set such a rule, but a group of a newer version may name one."""
    make_group(store, "ab")
    record = Path(store.path(groups.group_file("g")))
    record.write_text(record.read_text().replace('"fedavg"', '"nonesuch"'))
    for job in "ab":
        upload(store, "g", job, 1, 1.0)
    aggregator = Aggregator(store)
    aggregator.sweep()
    assert "nonesuch" in aggregator.reports["g"].why and "g" in aggregator.errors
    federation.edit_group(store, "g", rule="fedavg")
    assert aggregator.sweep() and aggregator.errors == {}


# -- the deadline


def test_the_deadline_is_that_of_the_file_server_and_survives_a_restart(store: Store) -> None:
    make_group(store, "abc", quorum=1, deadline=3600.0)
    upload(store, "g", "a", 1, 1.0)
    done = store.path(groups.upload_dir("g", 1, "a") + "/done.json")
    written = os.stat(done).st_mtime
    assert keep(store).report.state == "waiting"
    since = federation.read_bytes(store, groups.waiting_file("g"))
    os.utime(done, (1, 1))  # a later change of the file changes nothing
    step = keep(store)
    assert step.report.state == "waiting"
    assert step.decision is not None and step.decision.due == pytest.approx(written + 3600, abs=0.1)
    assert federation.read_bytes(store, groups.waiting_file("g")) == since
    federation.edit_group(store, "g", deadline=0.0)
    assert keep(store).report.round == 2
    times = GroupEye(store, "g").times(1)
    assert times is not None and times.closed >= times.since > 1


# -- retention


def test_what_is_old_goes_and_the_chain_stays(store: Store) -> None:
    make_group(store, "ab", keep_rounds=2)
    for episode in range(1, 6):
        for job in "ab":
            upload(store, "g", job, episode, float(episode))
        keep(store)
    folder = groups.group_dir("g")
    assert sorted(store.scan(f"{folder}/from_worker")) == ["after_ep_0004", "after_ep_0005"]
    assert len(store.scan(f"{folder}/rounds")) == 5
    kept = {
        n: sorted(store.scan(f"{folder}/to_worker/{n}")) for n in store.scan(f"{folder}/to_worker")
    }
    assert len(kept) == 5
    with_weights = [n for n, names in kept.items() if "global_weights.pt" in names]
    assert sorted(with_weights) == ["before_ep_0004", "before_ep_0005", "before_ep_0006"]
    assert all("merge.json" in names for names in kept.values())


def test_the_records_of_old_rounds_are_put_together(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "SPAN", 3)
    make_group(store, "ab", keep_rounds=2)
    folder = groups.group_dir("g")
    rounds, models = f"{folder}/rounds", f"{folder}/to_worker"
    remove, most = fsfolders.remove_tree, 0

    def remove_some(store: Store, path: str, **how: Any) -> bool:
        if path.endswith("before_ep_0003") and killed:
            raise Shut
        return remove(store, path, **how)

    class Shut(Exception): ...

    for episode in range(1, 13):
        for job in "ab":
            upload(store, "g", job, episode, float(episode))
        killed = episode == 6  # in the middle of the first removal
        with monkeypatch.context() as patch, pytest.raises(Shut) if killed else nullcontext():
            patch.setattr(fsfolders, "remove_tree", remove_some)
            keep(store)
        most = max(most, len(store.scan(rounds)) if not killed else 0)
    assert sorted(store.scan(f"{folder}/archive")) == ["0001.json", "0004.json", "0007.json"]
    assert (len(store.scan(rounds)), len(store.scan(models)), most) == (3, 3, 5)
    closed = groupstatus.look(store, "g", groupstatus.Aggregator(), 12).closed
    assert [one.plan.round for one in closed] == [*range(12, 0, -1)]
    ghost = f"{rounds}/0002"  # of an aggregator that slept for weeks
    fsfolders.make_folders(store, ghost)
    store.put(f"{ghost}/plan.json", b"{}")
    found = [link.found for link in verifying.walk(store, "g")]
    assert found == ["retired"] * 9 + ["good"] * 3
    old = GroupEye(store, "g").old(2)
    assert old is not None and old.plan.round == 2 and old.times is not None
    keep(store)
    assert "0002" not in store.scan(rounds)
    path = Path(store.path(groups.archive_file("g", 4)))
    path.write_text(path.read_text().replace('\\"weight\\": 1.0', '\\"weight\\": 2.0'))
    links = list(verifying.walk(store, "g"))
    assert [link.round for link in links if link.found == "broken"] == [4, 5, 6]
    assert "made by another plan" in links[3].why


def test_a_retired_round_is_not_published_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An aggregator wakes that slept through many rounds, just before it closed the first."""
    make_group(store, "ab", keep_rounds=1)
    for job in "ab":
        upload(store, "g", job, 1, 1.0)
    sleeper, real, before = GroupKeeper(store, "g"), publishing.prepare_merge, {}

    def sleep(*args: Any, **how: Any) -> str:
        prepared = real(*args, **how)
        monkeypatch.setattr(publishing, "prepare_merge", real)
        keep(store)
        for episode in (2, 3, 4):
            for job in "ab":
                upload(store, "g", job, episode, 1.0)
            keep(store)
        before.update(published(store))
        return prepared

    monkeypatch.setattr(publishing, "prepare_merge", sleep)
    assert sleeper.step().report.why == "another one closed it, or took its plan back"
    assert published(store) == before
    assert GroupKeeper(store, "g").step().report.round == 5


def test_what_a_killed_one_left_is_removed(store: Store) -> None:
    make_group(store, "ab")
    for path in ("to_worker/.tmp~1-x~before_ep_0002", "rounds/.tmp~1-x~0001"):
        fsfolders.make_folders(store, f"{groups.group_dir('g')}/{path}")
        store.put(f"{groups.group_dir('g')}/{path}/half", b"x")
    store.put(f"{groups.group_dir('g')}/.tmp~1-x~group.json", b"of a command at work")
    keep(store)
    assert store.scan(f"{groups.group_dir('g')}/to_worker") == []
    assert store.scan(f"{groups.group_dir('g')}/rounds") == []
    assert ".tmp~1-x~group.json" in store.scan(groups.group_dir("g"))


def test_retention_and_merging_follow_no_link_out_of_the_root(store: Store, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    (precious / "a").mkdir(parents=True)
    for path in ("x", "done.json", "a/done.json", "a/x"):
        (precious / path).write_bytes(b"precious")
    make_group(store, "abc", keep_rounds=1, quorum=2)
    for episode in (1, 2, 3, 4):
        if episode == 1:
            fsfolders.make_folders(store, groups.round_uploads_dir("g", 1))
            os.symlink(precious, store.path(groups.upload_dir("g", 1, "c")))
        for job in "ab":
            upload(store, "g", job, episode, 1.0)
        keep(store)
        if episode == 1:
            assert refusals(store, 1)["c"] == "damaged"
        if episode == 2:
            folder = store.path(groups.round_uploads_dir("g", 2))
            os.rename(folder, tmp_path / "away")
            os.symlink(precious, folder)
    found = sorted(str(p.relative_to(precious)) for p in precious.rglob("*") if p.is_file())
    assert found == ["a/done.json", "a/x", "done.json", "x"]
    uploads = store.scan(groups.uploads_dir("g"))
    assert uploads == ["after_ep_0004"]


def test_what_its_record_does_not_name_is_not_merged(store: Store) -> None:
    make_group(store, "abc", quorum=2)
    for job in "abc":
        upload(store, "g", job, 1, 1.0)
    folder = groups.upload_dir("g", 1, "a")
    store.put(f"{folder}/more.pt", b"slipped in")
    store.put(f"{groups.upload_dir('g', 1, 'b')}/.nfs0001", b"left by a server")
    keep(store)
    assert refusals(store, 1) == {"a": "damaged"}


# -- the process


def test_one_group_that_fails_stops_no_other(store: Store) -> None:
    make_group(store, "ab")
    store.mkdir(groups.group_dir("broken"))
    store.put(groups.group_file("broken"), b"{")
    for job in "ab":
        upload(store, "g", job, 1, 1.0)
    aggregator = Aggregator(store)
    assert aggregator.sweep()
    assert aggregator.reports["broken"].state == "failed"
    assert "group.json is not valid JSON" in aggregator.reports["broken"].why
    assert federation.read_global(store, "g", 2) is not None


def test_only_one_leads_and_the_other_takes_over(store: Store) -> None:
    with leadership(store) as alone:
        assert alone
        with pytest.raises(Busy), leadership(store):
            pass
    with leadership(store) as alone:
        assert alone


def test_it_ends_when_it_is_told_to_and_says_so(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    make_group(store, "ab", episodes=1)
    for job in "ab":
        upload(store, "g", job, 1, 1.0)
    aggregator, stop = Aggregator(store), threading.Event()
    aggregator.run(stop, poll=0.01, until_finished=True)
    assert aggregator.finished
    beat = federation.read_bytes(store, groups.AGGREGATOR_BEAT)
    assert beat is not None and b'"stopped": true' in beat and b'"finished"' in beat


def test_a_merge_record_reads_back_as_it_was_written(store: Store) -> None:
    make_group(store, "ab")
    for job in "ab":
        upload(store, "g", job, 1, 1.0)
    keep(store)
    path = f"{groups.global_dir('g', 2)}/merge.json"
    data = store.read(path)
    assert Merge.from_json(data, path).to_json() == data
