"""Names and texts that cannot be written, or are not ours, stop neither a group nor the others."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
from pathlib import Path

import pytest
import torch

import ctl.cli
import fedavg.cli
from fedavg.aggregator import Aggregator
from fedavg.keeper import GroupKeeper
from fsworker.errors import FormatError, UsageError
from fsworker.protocol import artifacts, federation
from fsworker.protocol.fsops import Store
from fsworker.protocol.groupview import GroupEye
from fsworker.protocol.layout import groups
from fsworker.protocol.records.round import AggregatorBeat, Group
from tests.support.rounds import make_group, upload

pytestmark = pytest.mark.unit

LONE = "%ED%A0%80"
"""A lone surrogate as an encoded name would have it."""


@pytest.fixture
def pair(store: Store) -> Store:
    """A group of three that closes with two, who have uploaded."""
    make_group(store, "abc", quorum=2)
    for job in "bc":
        upload(store, "g", job, 1, 1.0)
    return store


def merged_without(store: Store, job: str) -> str:
    """Merge the open round: why it went on without a job."""
    assert GroupKeeper(store, "g").step().merged
    plan = GroupEye(store, "g").plan(1)
    assert plan is not None and [c.job for c in plan.contributors] == ["b", "c"]
    refusal = federation.read_refusal(store, "g", 1, job)
    assert refusal is not None and refusal.reason in plan.refused[job]
    return refusal.reason


def test_a_record_with_half_a_character_is_refused_by_name(pair: Store) -> None:
    upload(pair, "g", "a", 1, 1.0)
    path = Path(pair.path(f"{groups.upload_dir('g', 1, 'a')}/{artifacts.DONE}"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "base": "\ud800"}))
    reason = merged_without(pair, "a")
    assert reason.startswith("outbox/federation/g/from_worker/after_ep_0001/a/done.json: field 'ba")
    assert r"holds '\ud800', a text with a lone surrogate" in reason


def test_a_file_whose_name_is_no_text_is_named_in_the_refusal(pair: Store) -> None:
    upload(pair, "g", "a", 1, 1.0)
    folder = pair.path(groups.upload_dir("g", 1, "a"))
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff")).touch()
    assert r"/a/\udcff is there, and done.json does not name it" in merged_without(pair, "a")


def test_metadata_that_cannot_be_written_are_refused(store: Store) -> None:
    from safetensors.torch import save_file

    make_group(store, "abc", quorum=2)
    for job in "bc":
        upload(
            store,
            "g",
            job,
            1,
            lambda p: save_file({"w": torch.ones(2)}, p),
            name="checkpoint.safetensors",
        )

    def save(path: str) -> None:
        save_file({"w": torch.ones(2)}, path, metadata={"n": "12345678"})
        data = Path(path).read_bytes()
        Path(path).write_bytes(data.replace(b'"12345678"', b'"\\ud800ab"'))

    upload(store, "g", "a", 1, save, name="checkpoint.safetensors")
    assert "__metadata__ of its header holds more than strings" in merged_without(store, "a")


@pytest.mark.parametrize("name", [LONE, "%FF", "a" * 161, "a" * 255, "%61"])
def test_a_folder_that_is_no_job_is_passed_over(pair: Store, name: str) -> None:
    folder = Path(pair.path(f"{groups.round_uploads_dir('g', 1)}/{name}"))
    folder.mkdir()
    keeper = GroupKeeper(pair, "g")
    assert keeper.step().merged
    assert keeper.eye.refusals(1) == {}
    assert keeper.step().report.state == "idle"


@pytest.mark.parametrize("name", [LONE, "a" * 200, "%67"])
def test_a_folder_that_is_no_group_ends_nobody(
    pair: Store, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    Path(pair.path(f"{groups.FEDERATION}/{name}")).mkdir()
    federation.edit_group(pair, "g", episodes=1)
    Aggregator(pair).run(threading.Event(), poll=0.01, until_finished=True)
    assert federation.read_global(pair, "g", 2) is not None
    assert ctl.cli.main(["rounds", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [g["group"] for g in told["groups"]] == ["g"] and told["broken"] == {}


def test_a_beat_that_fails_ends_no_group(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_group(store, "ab", episodes=1)
    write, failures = AggregatorBeat.to_json, iter([UnicodeError("no")])

    def to_json(beat: AggregatorBeat) -> bytes:
        for error in failures:
            raise error
        return write(beat)

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            for job in "ab":
                upload(store, "g", job, 1, 1.0)
            return False

    monkeypatch.setattr(AggregatorBeat, "to_json", to_json)
    with caplog.at_level("INFO", logger="fedavg.aggregator"):
        Aggregator(store).run(Stop(), until_finished=True)
    assert "unexpected UnicodeError: no" in caplog.text
    assert federation.read_global(store, "g", 2) is not None


def test_a_group_file_with_half_a_character_is_told(
    pair: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(pair.path(groups.group_file("g")))
    path.write_text(json.dumps({**json.loads(path.read_text()), "keys": {"\ud800": "mean"}}))
    with pytest.raises(FormatError, match=r"group\.json: field 'keys' holds"):
        federation.read_group(pair, "g")
    assert fedavg.cli.main(["once"]) == 1
    assert r"g: round 0: failed: " in (told := capsys.readouterr().out) and r"'\ud800'" in told


NO_GROUP = {"empty": "", "too long": "g" * 200, "no text": "\udcff"}


@pytest.mark.parametrize("group", NO_GROUP.values(), ids=NO_GROUP)
def test_what_cannot_be_a_group_is_told_by_every_command(
    store: Store, capsys: pytest.CaptureFixture[str], tmp_path: Path, group: str
) -> None:
    for main, argv in (
        (fedavg.cli.main, ["verify", group]),
        (fedavg.cli.main, ["reopen", group]),
        (fedavg.cli.main, ["replay", group, "1", "-o", str(tmp_path / "o")]),
        (fedavg.cli.main, ["run", group]),
        (ctl.cli.main, ["rounds", group]),
        (ctl.cli.main, ["rounds", group, "--size", "2"]),
        (ctl.cli.main, ["rounds", group, "--quorum", "2"]),
    ):
        assert main(argv) == 2, argv
        told = capsys.readouterr().err
        assert ": no group can have that id: " in told and told.count("\n") == 1
    assert federation.all_groups(store) == []


def test_a_pattern_that_is_no_text_is_refused(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    make_group(store, "ab")
    assert ctl.cli.main(["rounds", "g", "--key", "\udcff=rule"]) == 2
    assert r"field 'keys': pattern '\udcff' is no text" in capsys.readouterr().err
    with pytest.raises(UsageError, match="is no text"):
        federation.create_group(store, Group("h", 1, keys={"\udcff": "mean"}))


def test_a_terminal_that_has_not_all_letters_is_no_reason_to_fail(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation.create_group(store, Group("é", 2))
    screen = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    monkeypatch.setattr(sys, "stdout", screen)
    assert fedavg.cli.main(["once"]) == 0
    assert screen.buffer.getvalue() == b"\\xe9: round 1: idle: nobody has uploaded yet\n"


def test_a_line_break_in_a_groups_name_splits_no_line(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    federation.create_group(store, Group("g\n\x1b[31m", 2))
    assert fedavg.cli.main(["once"]) == 0
    assert capsys.readouterr().out == "g\\n\\x1b[31m: round 1: idle: nobody has uploaded yet\n"
    assert fedavg.cli.main(["verify", "g\n\x1b[31m"]) == 0
    assert capsys.readouterr().out == "g\\n\\x1b[31m has no merged round yet\n"
    assert ctl.cli.main(["rounds", "g\n\x1b[31m", "--quorum", "1"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("g ?[31m: changed quorum\n") and "\ng ?[31m: rule fedavg" in told
