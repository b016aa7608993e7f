"""Walking the chain of merges: what is broken is told, and what is not is never called so."""

from __future__ import annotations

import os
import re
import resource
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fedavg.cli
from fedavg import publishing, verifying
from fedavg.keeper import GroupKeeper
from fsworker.errors import StorageError
from fsworker.protocol import archive, artifacts, federation
from fsworker.protocol.fsops import Store
from fsworker.protocol.groupview import GroupEye
from fsworker.protocol.layout import groups, names
from fsworker.protocol.records.round import Retired, sha256
from tests.support.roots import make_root
from tests.support.rounds import make_group, saves, upload

pytestmark = pytest.mark.unit


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(make_root(tmp_path / "root"))


def merged(store: Store, rounds: int, **terms: Any) -> GroupKeeper:
    make_group(store, "ab", **terms)
    keeper = GroupKeeper(store, "g", threads=1)
    for episode in range(1, rounds + 1):
        for job in "ab":
            upload(store, "g", job, episode, float(episode))
        assert keeper.step().merged
    keeper.step()
    return keeper


def found(store: Store, **how: Any) -> list[str]:
    return [link.found for link in verifying.walk(store, "g", **how)]


# -- what was retired


def test_what_was_retired_stays_so_when_more_is_to_be_kept(store: Store) -> None:
    keeper = merged(store, 5, keep_rounds=1)
    assert found(store) == ["retired"] * 3 + ["good"] * 2
    federation.edit_group(store, "g", keep_rounds=4)
    assert found(store) == ["retired"] * 3 + ["good"] * 2
    keeper.step()
    GroupKeeper(store, "g").step()  # a new process knows it too
    assert found(store) == ["retired"] * 3 + ["good"] * 2
    os.unlink(store.path(groups.global_dir("g", 5) + "/global_weights.pt"))
    assert found(store) == ["retired"] * 3 + ["broken", "good"]


def test_what_is_removed_amid_the_walk_or_half_is_retired(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verifying goes on beside an aggregator that cleans up, or was killed when it did."""
    merged(store, 4, keep_rounds=2, rule="fedavgm")
    eye, real = GroupEye(store, "g"), artifacts.verify_files
    first = eye.model(3)
    assert first is not None and len(first.merge.files + first.merge.state) == 2

    def removed_meanwhile(store: Store, folder: str, *args: Any, **how: Any) -> None:
        if folder == first.folder:
            store.publish(groups.retired_file("g"), Retired(4).to_json())
            store.remove(f"{folder}/global_weights.pt")
        real(store, folder, *args, **how)

    monkeypatch.setattr(artifacts, "verify_files", removed_meanwhile)
    federation.edit_group(store, "g", keep_rounds=5)
    assert found(store) == ["retired"] * 2 + ["good"] * 2
    monkeypatch.undo()
    assert found(store) == ["retired"] * 2 + ["good"] * 2


def merge_another(store: Store, keeper: GroupKeeper, episode: int) -> None:
    for job in "ab":
        upload(store, "g", job, episode, float(episode))
    assert keeper.step().merged
    keeper.step()


def test_what_a_round_was_made_of_may_go_while_it_is_computed_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base goes with the uploads, which were there when this was looked at."""
    keeper = merged(store, 2, keep_rounds=1)
    real = publishing.compute

    def raced(*args: Any, **how: Any) -> Any:
        monkeypatch.setattr(publishing, "compute", real)
        merge_another(store, keeper, 3)
        return real(*args, **how)

    monkeypatch.setattr(publishing, "compute", raced)
    first, second = list(verifying.walk(store, "g", recompute=True))
    assert publishing.compute is real, "it was raced"
    assert (first.found, second.found) == ("good", "good")
    base = store.path(groups.global_dir("g", 2))
    assert second.why == f"not recomputed: {base}/global_weights.pt is missing"


def test_a_base_that_is_lost_and_not_retired_is_no_race(store: Store) -> None:
    merged(store, 2, keep_rounds=3)
    os.unlink(store.path(groups.global_dir("g", 2) + "/global_weights.pt"))
    assert found(store, recompute=True) == ["broken", "broken"]


def test_records_that_are_put_together_amid_a_look_are_found(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The merge record was read from its folder, and the plan is not in one any more."""
    monkeypatch.setattr(archive, "SPAN", 3)
    keeper = merged(store, 4, keep_rounds=1)
    real = GroupEye.plan

    def raced(self: GroupEye, number: int) -> Any:
        monkeypatch.setattr(GroupEye, "plan", real)
        merge_another(store, keeper, 5)
        return real(self, number)

    monkeypatch.setattr(GroupEye, "plan", raced)
    assert found(store) == ["retired"] * 3 + ["good"]
    assert archive.archived(store, "g") == [1]


def test_the_record_of_what_was_retired_only_grows(store: Store) -> None:
    keeper = merged(store, 3, keep_rounds=1)
    assert GroupEye(store, "g").retired() == 3
    store.publish(groups.retired_file("g"), Retired(9).to_json())
    for job in "ab":
        upload(store, "g", job, 4, 1.0)
    assert keeper.step().merged
    keeper.step()
    assert GroupEye(store, "g").retired() == 9


def test_no_room_for_the_record_keeps_nothing_from_being_removed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = store.publish

    def full(rel: str, data: bytes, **how: Any) -> None:
        if rel == groups.retired_file("g"):
            raise OSError(28, "No space left on device")
        real(rel, data, **how)

    monkeypatch.setattr(store, "publish", full)
    merged(store, 3, keep_rounds=1)
    assert found(store) == ["retired", "good", "good"]


@pytest.mark.parametrize("garbled", [True, False])
def test_a_record_of_what_was_retired_that_cannot_be_read_stops_no_round(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, garbled: bool
) -> None:
    path = groups.retired_file("g")
    keeper = merged(store, 3, keep_rounds=1)
    store.publish(path, b"{" if garbled else Retired(9).to_json())
    real = store.read

    def fails(rel: str, *args: Any) -> bytes:
        if rel == path and not garbled:
            raise OSError(5, "Input/output error")
        return real(rel, *args)

    with monkeypatch.context() as patched:
        patched.setattr(store, "read", fails)
        merge_another(store, keeper, 4)
    assert store.scan(groups.global_dir("g", 3)) == ["merge.json"], "it went all the same"
    said = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(said) == 1 and store.path(path) in said[0]
    # What is garbled tells nobody anything; what could not be read may say more than is known.
    assert GroupEye(store, "g").retired() == (4 if garbled else 9)


# -- what a model is called


def named(store: Store, name: str) -> list[str]:
    """Publish a round whose first upload has this name: what is in its folder beside the record."""
    make_group(store, "ab")
    upload(store, "g", "a", 1, 1.0, name=name)
    upload(store, "g", "b", 1, 2.0)
    assert GroupKeeper(store, "g").step().merged
    return sorted(set(os.listdir(store.path(groups.global_dir("g", 2)))) - {groups.MERGE_FILE})


@pytest.mark.parametrize(
    ("upload_name", "model_name"),
    [
        ("checkpoint.pth", "global_weights.pth"),
        ("mine.step-1000", "global_weights.step-1000"),
        ("checkpoint", "global_weights"),
        ("checkpoint." + "x" * 40, "global_weights." + "x" * 40),
        ("checkpoint." + "x" * 41, "global_weights"),
        ("checkpoint." + "x" * 244, "global_weights"),
        ("checkpoint." + "\N{GREEK SMALL LETTER ALPHA}" * 122, "global_weights"),
        ("checkpoint.a b", "global_weights"),
    ],
)
def test_a_model_takes_over_an_ending_and_nothing_that_is_none(
    store: Store, upload_name: str, model_name: str
) -> None:
    assert named(store, upload_name) == [model_name]
    assert found(store, recompute=True) == ["recomputed"]
    upload(store, "g", "a", 2, 3.0)
    upload(store, "g", "b", 2, 4.0)
    assert GroupKeeper(store, "g").step().merged, "the next round starts from it"


def test_a_model_that_an_older_version_called_otherwise_is_recomputed_under_its_name(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(names, "_ENDING", re.compile(".*"))
        assert named(store, "checkpoint.a b") == ["global_weights.a b"]
    assert found(store, recompute=True) == ["recomputed"]


# -- what cannot be told


def test_no_room_to_compute_again_is_no_fault_of_the_model(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_group(store, "ab")
    for job in "ab":
        upload(store, "g", job, 1, saves({"w": torch.zeros(1 << 15)}))
    GroupKeeper(store, "g").step()
    argv = ["verify", "g", "--recompute", "--root", store.root]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, before[1]))
    try:
        assert fedavg.cli.main(argv) == 7
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "TMPDIR" in capsys.readouterr().err

    def nowhere(**how: Any) -> None:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", nowhere)
    assert fedavg.cli.main(argv) == 7
    assert "TMPDIR" in capsys.readouterr().err


def test_a_model_that_cannot_be_read_is_not_called_broken(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    merged(store, 2)
    real = artifacts.verify_files

    def fails(store: Store, folder: str, *args: Any, **how: Any) -> None:
        if folder == groups.global_dir("g", 3):
            raise StorageError(f"cannot read {folder}: Input/output error")
        real(store, folder, *args, **how)

    monkeypatch.setattr(artifacts, "verify_files", fails)
    assert fedavg.cli.main(["verify", "g", "--root", store.root]) == 7
    told = capsys.readouterr()
    assert told.out == "round 1: good\n", "what was found before that is said"
    assert "Input/output error" in told.err


# -- records that contradict each other


@pytest.mark.parametrize("field", ["base", "previous"])
def test_a_plan_that_starts_from_another_model_than_its_merge_is_found(
    store: Store, field: str
) -> None:
    """The newest round, of which no later record has a digest: these two are all there is."""
    merged(store, 2)
    eye = GroupEye(store, "g")
    plan, model = eye.plan(2), eye.model(3)
    assert plan is not None and model is not None
    fields: dict[str, Any] = {field: sha256(b"another model")}
    other = replace(plan, **fields)
    store.put(f"{groups.round_dir('g', 2)}/plan.json", other.to_json())
    record = replace(model.merge, plan=sha256(other.to_json()))
    store.put(f"{model.folder}/merge.json", record.to_json())
    links = list(verifying.walk(store, "g"))
    assert [link.found for link in links] == ["good", "broken"]
    assert links[1].why == "its plan starts from another model"
