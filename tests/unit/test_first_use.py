"""What somebody sees who uses `ctl` for the first time: helps, notes, tables, completion."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import click
import pytest

from ctl import cli, planning, rootchild
from ctl.commands import status
from ctl.rootchild import RootChild
from ctl.statusview import HostStatus
from fsworker.errors import UsageError
from fsworker.protocol import layout
from fsworker.protocol.records.run import LaunchMeta, Manifest, WorkerSpec

pytestmark = pytest.mark.unit

COMMANDS = cli.cli.list_commands(click.Context(cli.cli))


def env(folder: Path, **more: str) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("FLEET_", "SAO_", "REWARD_"))}
    return {**clean, "PYTHONPATH": os.getcwd(), "HOME": str(folder), "COLUMNS": "100", **more}


def ctl(folder: Path, *args: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ctl", *args],
        capture_output=True, text=True, cwd=folder, env=env(folder, **more), timeout=240,
        check=False,
    )  # fmt: skip


def make_run(root: Path, run_id: str, *hosts: str) -> None:
    workers = tuple(WorkerSpec(h, i) for i, h in enumerate(hosts))
    for folder in layout.FOLDERS:
        (root / folder).mkdir(parents=True)
    at = "2026-11-30T00:07:15+00:00"
    manifest = Manifest(run_id, "a.b", len(hosts), workers, created_at=at)
    meta = LaunchMeta(
        str(root), run_id, workers, len(hosts), "a.b", launches=dict.fromkeys(hosts, 1)
    )
    (root / layout.MANIFEST).write_bytes(manifest.to_json())
    (root / layout.LAUNCH_META).write_bytes(meta.to_json())


@pytest.mark.parametrize("name", COMMANDS)
def test_defaults_are_written_alike(name: str) -> None:
    command = cli.cli.get_command(click.Context(cli.cli), name)
    assert command
    context = click.Context(command)
    below: list[click.Command | None] = [command]
    if isinstance(command, click.Group):
        below = [command.get_command(context, each) for each in command.list_commands(context)]
        assert below
    for one in below:
        assert one is not None
        text = " ".join(one.get_help(click.Context(one)).split())
        assert "[default: (" not in text
        assert not re.search(r"\[\d+\]", text)
        for option in one.params:
            if option.type.name == "duration" and isinstance(option.default, float):
                assert re.search(r"\[default: \d+[smh]\]", option.help), option.name


def test_the_exit_codes_of_signals_are_in_the_help(tmp_path: Path) -> None:
    text = ctl(tmp_path, "--help").stdout
    assert {"129", "130", "141", "143"} <= set(re.findall(r"\d+", text))


def test_old_variables_are_noted_in_one_line(tmp_path: Path) -> None:
    told = ctl(
        tmp_path, "config", SAO_WS=str(tmp_path), REWARD_ROOT=str(tmp_path),
        SAO_REWARD_WORKER_HOSTS="n1 n2",
    )  # fmt: skip
    (line,) = told.stderr.splitlines()
    for name in ("SAO_WS", "REWARD_ROOT", "SAO_REWARD_WORKER_HOSTS", "FLEET_HOSTS", "FLEET_ROOT"):
        assert name in line


def on_terminal(folder: Path, columns: int, *args: str) -> str:
    """What `ctl ARGS` shows on a terminal of that width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    full = env(folder, TERM="xterm")
    del full["COLUMNS"]
    argv = [sys.executable, "-m", "ctl", *args]
    child = subprocess.Popen(argv, stdout=theirs, stderr=subprocess.STDOUT, stdin=theirs, env=full)
    os.close(theirs)
    data = b""
    try:
        while chunk := os.read(ours, 65536):
            data += chunk
    except OSError:
        pass  # its other side is closed
    os.close(ours)
    assert child.wait(120) == 0, data
    return re.sub(r"\x1b\[[0-9;]*m", "", data.decode()).replace("\r", "")


def test_roots_are_whole_in_a_narrow_terminal(tmp_path: Path) -> None:
    prefix = tmp_path / "a_prefix_that_is_far_too_long_for_any_terminal_of_78_columns"
    ids = ["20261130_000715_0123abcd", "20261130_000716_4567cdef"]
    for run_id in ids:
        make_run(prefix / "experiment" / "trial" / run_id, run_id, "n1")
    lines = on_terminal(tmp_path, 78, "runs", "--root", str(prefix)).splitlines()
    for run_id in ids:
        (row,) = [line for line in lines if line.startswith(f"experiment/trial/{run_id} ")]
        assert len(row) <= 78
        assert "not running  11-30 00:07  1" in row
    make_run(prefix / "other", "a-name-of-its-own", "n1")
    text = on_terminal(tmp_path, 78, "runs", "--root", str(prefix))
    assert all(f"experiment/trial/{run_id} " in text for run_id in ids)
    assert "\nother " in text and "…" not in text


def test_a_stopped_host_is_not_called_not_ready_in_the_table() -> None:
    host = HostStatus("n1", 0, "not_ready", "stopped")
    assert status._row(host)[1:3] == ("stopped", "-")
    assert host.fields()["reason"] == "not_ready"  # scripts go by it
    assert status._row(HostStatus("n1", 0, "not_ready", "starting"))[2] == "not_ready"


@pytest.mark.parametrize("name", ["grade.py:f", "./grade.py:f", "lib/grade:f"])
def test_a_file_for_a_function_is_told_what_to_write(name: str) -> None:
    with pytest.raises(UsageError, match=r"names a file: .* grade:f, .* --repo"):
        planning.check_functions([name])


@pytest.mark.parametrize("name", ["grade:f", "pkg.grade.f", "py.grade:f"])
def test_a_module_is_no_file(name: str) -> None:
    assert planning.check_functions([name]) == (name,)


def test_who_names_no_root_is_told_how_to(tmp_path: Path) -> None:
    (tmp_path / "runs" / "r1").mkdir(parents=True)
    more = {"FLEET_ROOT": str(tmp_path / "runs"), "FLEET_LAUNCHER": "local"}
    told = ctl(tmp_path, "start", "--fn", "m:f", "--hosts", "n1", **more)
    assert told.returncode == 5
    assert f"give --root {tmp_path}/runs/NAME" in told.stderr
    named = ctl(tmp_path, "start", "--fn", "m:f", "--root", more["FLEET_ROOT"], **more)
    assert "name an empty or a new folder" in named.stderr


def complete(folder: Path, words: str, **more: str) -> list[str]:
    asked = {"_CTL_COMPLETE": "bash_complete", "COMP_WORDS": words}
    asked["COMP_CWORD"] = str(len(words.split(" ")) - 1)
    done = ctl(folder, **asked, **more)
    assert done.stderr == ""
    return [line.split(",")[1] for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize("verb", ["restart-host", "logs", "drain"])
def test_hosts_of_the_run_are_completed(tmp_path: Path, verb: str) -> None:
    make_run(tmp_path / "run", "r", "node1", "node2", "other")
    root = {"FLEET_ROOT": str(tmp_path / "run")}
    assert complete(tmp_path, f"ctl {verb} no", **root) == ["node1", "node2"]
    assert complete(tmp_path, f"ctl {verb} --root {tmp_path}/run o") == ["other"]


def test_allowed_hosts_are_completed_where_there_is_no_run(tmp_path: Path) -> None:
    more = {"SAO_REWARD_WORKER_HOSTS": "n1 n2 m1"}
    assert complete(tmp_path, "ctl logs n", **more) == ["n1", "n2"]
    assert complete(tmp_path, "ctl logs n") == []
    (tmp_path / "fleet.toml").write_text("damaged")
    assert complete(tmp_path, "ctl logs n", **more) == []


def test_what_a_detached_watcher_says_on_stderr_is_bounded(tmp_path: Path) -> None:
    make_run(tmp_path / "run", "r", "n1")
    child = RootChild(str(tmp_path / "run"))
    child.record("a line\n", "")
    path = tmp_path / "run" / layout.WATCH_ERR
    assert not path.exists()
    path.write_bytes(b"a warning of every sweep\n" * 100_000)
    child.record("another line\n", "")
    assert path.stat().st_size < rootchild.STDERR_LIMIT
    assert path.read_bytes().endswith(b"a warning of every sweep\n")
