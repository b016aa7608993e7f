"""Run roots: where they lie, which places are refused, which run a verb means."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ctl import config, current, roots
from fsworker.errors import FormatError, NotRunning, Refused, UnknownState, UsageError
from fsworker.protocol import layout
from fsworker.protocol.records.run import LaunchMeta, Manifest, WorkerSpec

pytestmark = pytest.mark.unit


def make_run(root: Path, run_id: str = "r1") -> Path:
    workers = (WorkerSpec("n1", 0),)
    (root / "ctl").mkdir(parents=True)
    manifest = Manifest(run_id, "a.b", 1, workers)
    (root / layout.MANIFEST).write_bytes(manifest.to_json())
    meta = LaunchMeta(str(root), run_id, workers, 1, "a.b", launches={"n1": 1})
    (root / layout.LAUNCH_META).write_bytes(meta.to_json())
    return root


def settings(tmp_path: Path, **environ: str) -> config.Config:
    base = {"HOME": str(tmp_path), "FLEET_WORKSPACE": str(tmp_path / "ws")}
    return config.load(None, base | environ, str(tmp_path))


def test_a_run_id_is_the_time_in_utc_and_eight_hex_digits() -> None:
    at = datetime(2026, 10, 25, 2, 30, 0, tzinfo=UTC)
    assert re.fullmatch(r"20261025_023000_[0-9a-f]{8}", roots.new_run_id(at))
    assert roots.new_run_id(at) != roots.new_run_id(at)


@pytest.mark.parametrize(
    ("base", "experiment", "trial", "root"),
    [
        ("/runs", "e", "t", "/runs/e/t/id1"),
        ("/runs/", "e", "t", "/runs/e/t/id1"),
        ("/runs/e/t/id1", "e", "t", "/runs/e/t/id1"),
        ("/runs/id1/", "e", "t", "/runs/id1"),
        ("/runs", None, None, "/runs"),
        ("/srv/a b/run'1 $HOME", None, None, "/srv/a b/run'1 $HOME"),
    ],
)
def test_where_a_run_lies(base: str, experiment: str | None, trial: str | None, root: str) -> None:
    assert roots.run_root(base, experiment, trial, "id1") == root


def test_a_run_id_with_odd_characters_is_a_folder_all_the_same() -> None:
    assert roots.run_root("/r", "e", "t", "run 50%done") == "/r/e/t/run 50%done"


def test_experiment_and_trial_go_together() -> None:
    with pytest.raises(UsageError, match="--experiment and --trial go together"):
        roots.run_root("/runs", "e", None, "id1")


def test_a_root_that_no_record_could_name_is_refused() -> None:
    with pytest.raises(Refused, match=r"the root '/runs\\udcff' is no UTF-8: name another folder"):
        roots.run_root("/runs\udcff", None, None, "id1")


@pytest.mark.parametrize("part", ["", ".", "..", "a/b", "a\0b", "a\nb", "-rf", ".x", "x" * 300])
def test_parts_that_are_no_folder_name(part: str) -> None:
    with pytest.raises(UsageError, match="cannot be a folder name"):
        roots.check_part(part, "--trial")


@pytest.mark.parametrize("text", ["", "  ", "/", "//", "/a/../b", "../x", "/a/..", "/a\nb", "/./"])
def test_spellings_of_a_root_that_are_refused(text: str) -> None:
    with pytest.raises(Refused):
        roots.check_root_text(text)


def test_places_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    make_run(tmp_path / "run")
    (tmp_path / "link").symlink_to(tmp_path / "run")
    inside = [tmp_path / "run" / "sub" / "deep", tmp_path / "link" / "sub"]
    for place in ["/proc/x", "/dev/shm/../fd", str(tmp_path), *map(str, inside)]:
        with pytest.raises(Refused):
            roots.check_place(place)
    roots.check_place(str(tmp_path / "run"))
    roots.check_place(str(tmp_path / "other"))


def test_a_folder_is_ours_by_marker_or_manifest_only(tmp_path: Path) -> None:
    by_manifest = make_run(tmp_path / "run")
    by_marker = tmp_path / "half"
    by_marker.mkdir()
    (by_marker / layout.MARKER).write_bytes(roots.marker_bytes("r1"))
    foreign = {
        "npm": '{"name": "x"}', "list": "[]", "broken": "{", "marker": '{"kind": "other"}',
    }  # fmt: skip
    for name, text in foreign.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / layout.MANIFEST).write_text(text)
        (tmp_path / name / layout.MARKER).write_text(text)
    assert roots.is_ours(str(by_manifest))
    assert roots.is_ours(str(by_marker))
    assert not any(roots.is_ours(str(tmp_path / name)) for name in [*foreign, "missing"])


def test_below_the_prefix_is_judged_by_the_real_path(tmp_path: Path) -> None:
    prefix, outside = tmp_path / "runs", tmp_path / "runs2"
    (prefix / "a").mkdir(parents=True)
    outside.mkdir()
    (prefix / "out").symlink_to(outside)
    below = {p: roots.is_below(str(prefix), str(prefix / p)) for p in ("a", "new/x", "out", "")}
    assert below == {"a": True, "new/x": True, "out": False, "": True}
    assert not roots.is_below(str(prefix), str(outside))


def test_which_run_a_verb_means(tmp_path: Path) -> None:
    run, other = make_run(tmp_path / "runs" / "r1"), make_run(tmp_path / "other")
    current.write(str(tmp_path / "ws"), {"root": str(other)})
    ours = current.paths(str(tmp_path / "ws"))[0]
    as_prefix = settings(tmp_path, FLEET_ROOT=str(tmp_path / "runs"))
    as_run = settings(tmp_path, FLEET_ROOT=str(run))
    assert roots.find_root("/x", as_run) == ("/x", "--root")
    assert roots.find_root(None, as_run) == (str(run), "FLEET_ROOT")
    assert roots.find_root(None, as_prefix) == (str(other), ours)


def test_without_a_current_run_the_sentence_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NotRunning, match=r"there is no current run in .*: give --root"):
        roots.find_root(None, settings(tmp_path))


def test_the_current_run_is_written_under_both_names(tmp_path: Path) -> None:
    meta = {"root": "/r", "run_id": "x", "workers": []}
    current.write(str(tmp_path), meta)
    for name in ("shardfleet-current.json", "sao-reward-current.json"):
        assert json.loads((tmp_path / "tmp" / name).read_text()) == meta


def test_a_current_run_of_the_earlier_script_is_read(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    old = tmp_path / "tmp" / "sao-reward-current.json"
    old.write_text('{"root": "/r", "workers": []}')
    assert current.read(str(tmp_path)) == ("/r", str(old))


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", '{"root": ""}', '{"root": "a"}', "{\0"])
def test_a_damaged_current_run_names_its_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "tmp").mkdir()
    path = tmp_path / "tmp" / "shardfleet-current.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=str(path)):
        current.read(str(tmp_path))


def test_only_the_run_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    current.write(str(tmp_path), {"root": "/r"})
    current.forget(str(tmp_path), "/other")
    assert current.read(str(tmp_path))[0] == "/r"
    current.forget(str(tmp_path), "/r")
    with pytest.raises(NotRunning):
        current.read(str(tmp_path))


def test_opening_a_run_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(NotRunning, match="there is no such folder"):
        roots.open_run(str(tmp_path / "none"))
    with pytest.raises(NotRunning, match="it holds no manifest"):
        roots.open_run(str(tmp_path / "empty"))
    with pytest.raises(NotRunning):
        roots.open_run(str(tmp_path / "file"))


def test_a_manifest_of_a_newer_major_version_names_both(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    text = (run / layout.MANIFEST).read_text().replace('"format": "1.0"', '"format": "2.3"')
    (run / layout.MANIFEST).write_text(text)
    with pytest.raises(FormatError, match=r"version 2\.3.*version 1\.0"):
        roots.open_run(str(run))


def test_a_root_that_does_not_answer_is_unknown_not_absent(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / layout.MANIFEST).unlink()
    (run / layout.MANIFEST).mkdir()
    with pytest.raises(UnknownState, match=f"cannot read {run}/manifest.json"):
        roots.open_run(str(run))
