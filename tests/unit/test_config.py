"""Settings: which source wins, what is said about it, and what bad input looks like."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ctl import config, units
from fsworker.errors import UsageError

pytestmark = pytest.mark.unit


def load(tmp_path: Path, toml: str | None = None, **environ: str) -> config.Config:
    if toml is not None:
        (tmp_path / "fleet.toml").write_text(toml, encoding="utf-8")
    return config.load(None, {"HOME": str(tmp_path / "home"), **environ}, str(tmp_path))


def test_a_variable_wins_over_the_old_name_over_the_file_over_the_default(tmp_path: Path) -> None:
    toml = 'workspace = "/from/file"\n'
    both = {"FLEET_WORKSPACE": "/new", "SAO_WS": "/old"}
    found = [
        load(tmp_path, toml, **both).settings["workspace"],
        load(tmp_path, toml, SAO_WS="/old").settings["workspace"],
        load(tmp_path, toml).settings["workspace"],
    ]
    assert [(s.value, s.source) for s in found] == [
        ("/new", "FLEET_WORKSPACE"),
        ("/old", "SAO_WS"),
        ("/from/file", f"{tmp_path}/fleet.toml: workspace"),
    ]


def test_without_anything_set_the_workspace_lies_in_the_state_folder(tmp_path: Path) -> None:
    found = load(tmp_path)
    assert found.get("workspace") == f"{tmp_path}/home/.local/state/shardfleet"
    assert found.source("workspace") == "default"


@pytest.mark.parametrize(
    ("old", "name", "value"),
    [
        ("SAO_REWARD_WORKER_HOSTS", "hosts", "n1 n2"),
        ("SAO_WS", "workspace", "/ws"),
        ("REWARD_ROOT", "root", "/runs"),
    ],
)
def test_old_names_are_read_with_a_note(tmp_path: Path, old: str, name: str, value: str) -> None:
    found = load(tmp_path, **{old: value})
    assert found.get(name) == value
    assert found.notes == (f"{name} is taken from {old}, whose name is FLEET_{name.upper()} now",)


def test_a_new_name_brings_no_note(tmp_path: Path) -> None:
    assert load(tmp_path, FLEET_ROOT="/runs", REWARD_ROOT="/old").notes == ()


def test_an_empty_variable_is_not_set(tmp_path: Path) -> None:
    assert load(tmp_path, FLEET_ROOT="", REWARD_ROOT="/runs").get("root") == "/runs"


def test_the_file_is_found_by_flag_then_variable_then_folder_then_xdg(tmp_path: Path) -> None:
    xdg = tmp_path / "xdg" / "shardfleet" / "fleet.toml"
    xdg.parent.mkdir(parents=True)
    work, flag, variable = tmp_path / "work", tmp_path / "flag.toml", tmp_path / "var.toml"
    work.mkdir()
    for path in (xdg, work / "fleet.toml", flag, variable):
        path.write_text("width = 3\n")
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "xdg"), "FLEET_CONFIG": str(variable)}
    assert config.load(str(flag), environ, str(work)).file == str(flag)
    assert config.load(None, environ, str(work)).file == str(variable)
    del environ["FLEET_CONFIG"]
    assert config.load(None, environ, str(work)).file == str(work / "fleet.toml")
    os.unlink(work / "fleet.toml")
    assert config.load(None, environ, str(work)).file == str(xdg)


def test_a_path_in_the_file_is_relative_to_the_file(tmp_path: Path) -> None:
    found = load(tmp_path, 'hosts_file = "hosts.txt"\n')
    assert found.get("hosts_file") == str(tmp_path / "hosts.txt")


def test_values_of_a_file_are_read_as_they_are_elsewhere(tmp_path: Path) -> None:
    toml = (
        'hosts = ["n1", "n[2-3]"]\nready-timeout = "2m"\ngrace = 5\nfn = "a.b:c, d.e"\n'
        '[env]\nOMP_NUM_THREADS = 1\nMODE = "x=y"\n'
    )
    found = load(tmp_path, toml)
    assert found.get("hosts") == "n1\nn[2-3]"
    assert (found.get("ready_timeout"), found.get("grace")) == (120.0, 5.0)
    assert found.get("fn") == ("a.b:c", "d.e")
    assert found.get("env") == {"OMP_NUM_THREADS": "1", "MODE": "x=y"}


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("concurency = 4", "there is no setting 'concurency': did you mean concurrency?"),
        ("job_slots = -1", "job_slots: -1 is not a whole number from 0 up"),
        ("concurrency = true", "concurrency: True is not a whole number"),
        ("grace = -1", "grace: -1 is not a duration"),
        ("ready_timeout = 0", "ready_timeout: 0 must be above zero"),
        ("root = 7", "root: 7 is not a text"),
        ("hosts = 7", "hosts: 7 is not a list of texts"),
        ("env = {A-B = 1}", "env: 'A-B=1' is not NAME=value"),
        ("width = ", "is not valid TOML"),
    ],
)
def test_bad_input_is_one_sentence_with_file_and_key(tmp_path: Path, toml: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, toml + "\n")
    assert words in str(caught.value)
    assert f"{tmp_path}/fleet.toml" in str(caught.value)


def test_a_bad_variable_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^FLEET_CONCURRENCY: 'many' is not a whole number"):
        load(tmp_path, FLEET_CONCURRENCY="many")


def test_a_file_that_was_asked_for_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--config: there is no file"):
        config.load(str(tmp_path / "none.toml"), {}, str(tmp_path))


def test_a_flag_wins_and_a_silent_one_does_not(tmp_path: Path) -> None:
    found = load(tmp_path, "concurrency = 7\n")
    assert (found.pick("concurrency", 3), found.pick("concurrency", None)) == (3, 7)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5", 1.5), ("90s", 90), ("2h", 7200), ("1h30m", 5400), ("250ms", 0.25),
     ("1d", 86400), (" 5 M ", 300), (4, 4), (0, 0)],
)  # fmt: skip
def test_durations(text: object, seconds: float) -> None:
    assert units.duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1", "1x", "1h30", "5 5", "inf", "nan", "1e3", True])
def test_what_is_no_duration(text: object) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        units.duration(text)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.5])
def test_numbers_that_are_no_duration(value: float) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        units.duration(value)


def test_durations_are_shown_short() -> None:
    shown = [units.human(s) for s in (None, 3.21, 59.96, 250, 7500, 273600)]
    assert shown == ["-", "3.2s", "60.0s", "4m10s", "2h05m", "3d04h"]
