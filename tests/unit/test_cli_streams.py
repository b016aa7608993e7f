"""The command line where its surroundings are bad: streams, encodings, folders, early signals."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fsworker.protocol import layout
from fsworker.protocol.records.run import LaunchMeta, Manifest, WorkerSpec

pytestmark = pytest.mark.unit

CTL = f"{shlex.quote(sys.executable)} -m ctl"
Done = subprocess.CompletedProcess[str]


def lay(root: Path) -> Path:
    """A run that was never started on its one host."""
    workers = (WorkerSpec("n1", 0),)
    for folder in (*layout.FOLDERS, layout.inbox_dir(0)):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "manifest.json").write_bytes(Manifest("r", "a.b", 1, workers).to_json())
    meta = LaunchMeta(str(root), "r", workers, 1, "a.b", launches={"n1": 1})
    (root / "ctl" / "launch_meta.json").write_bytes(meta.to_json())
    return root


def shell(folder: Path, line: str, **more: str) -> Done:
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("FLEET_", "SAO_"))}
    env = {**plain, "PYTHONPATH": os.getcwd(), "HOME": str(folder), **more}
    return subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, cwd=folder, env=env, timeout=240,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize("args", ["status --json", "status", "runs --json", "config", "--help"])
def test_a_full_disk_behind_stdout_is_one_sentence(tmp_path: Path, args: str) -> None:
    root = lay(tmp_path / "runs" / "r1")
    words = f"{args} --root {root}" if "status" in args else args
    done = shell(tmp_path, f"{CTL} {words} >/dev/full", FLEET_ROOT=str(tmp_path / "runs"))
    assert done.returncode == 7, done.stderr
    assert done.stderr.startswith("ctl: cannot write the output: No space left on device")
    assert len(done.stderr.splitlines()) == 1


def test_an_error_that_stdout_cannot_take_is_said_on_stderr(tmp_path: Path) -> None:
    done = shell(tmp_path, f"{CTL} status --json --root /nonexistent/r >/dev/full")
    assert (done.returncode, done.stdout) == (7, "")
    assert done.stderr.startswith("ctl: there is no run at /nonexistent/r")
    assert len(done.stderr.splitlines()) == 1
    assert shell(tmp_path, f"{CTL} status --root /none >/dev/full 2>/dev/full").returncode == 3


@pytest.mark.parametrize("args", ["status", "status --json", "status --root /none"])
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_closed_streams_change_no_exit_code(tmp_path: Path, args: str, closed: str) -> None:
    root = lay(tmp_path / "run")
    line = f"{CTL} {args}" if "/none" in args else f"{CTL} {args} --root {root}"
    open_, done = shell(tmp_path, line), shell(tmp_path, f"{line} {closed}")
    assert open_.returncode == done.returncode == 3
    assert "Traceback" not in done.stdout + done.stderr
    if closed == ">&-":
        assert done.stderr == open_.stderr
    elif closed == "2>&-":
        assert done.stdout == open_.stdout


@pytest.mark.parametrize("args", ["status", "status --json", "logs n1"])
def test_from_a_folder_that_was_removed(tmp_path: Path, args: str) -> None:
    root = lay(tmp_path / "run")
    (root / "ctl" / "n1.log").write_text("first\n")
    command = f"{CTL} {args} --root {root}"
    gone = shell(tmp_path, f"mkdir gone; cd gone; rmdir ../gone; {command}")
    here = shell(tmp_path, command)
    assert (gone.returncode, gone.stderr) == (here.returncode, here.stderr)
    assert gone.stdout == here.stdout != ""


def test_from_a_folder_that_was_removed_a_relative_path_is_refused(tmp_path: Path) -> None:
    for args in ("status --root run", "--config c.toml status"):
        done = shell(tmp_path, f"mkdir gone; cd gone; rmdir ../gone; {CTL} {args}")
        assert done.returncode == 2
        assert "unexpected" not in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_names_that_the_locale_cannot_hold(tmp_path: Path) -> None:
    root = lay(tmp_path / "ü1")
    for more in ({"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"PYTHONUTF8": "1"}):
        for args in (f"status --root {root}", f"status --json --root {root}", "status --root /ü/x"):
            done = shell(tmp_path, f"{CTL} {args}", LC_ALL="C", **more)
            assert done.returncode == 3, done.stderr
            assert "unexpected" not in done.stderr
            for line in done.stdout.splitlines():
                assert json.loads(line)
        told = json.loads(shell(tmp_path, f"{CTL} status --json --root {root}", **more).stdout)
        assert told["meta"]["root"] == str(root)


INTERRUPTED = """
import os, signal, sys
seen, at = 0, int(sys.argv.pop(1))

def hook(event, args):
    global seen
    seen += 1
    if seen == at:
        os.kill(os.getpid(), signal.SIGINT)

import ctl.entry
sys.addaudithook(hook)
sys.argv[1:] = ["status", "--root", sys.argv[1]]
code = ctl.entry.main()
os.write(1, b"\\n%d" % seen)
sys.exit(code)
"""
"""What Python tells its auditors (imports, files, and what is executed) is our clock: no machine is
too slow or too fast for an interrupt to come at the moment that is meant."""


def test_an_interrupt_at_any_time_leaves_without_a_traceback(tmp_path: Path) -> None:
    """Most of these come while modules are imported; before our first line Python answers."""
    root, env = lay(tmp_path / "run"), {**os.environ, "PYTHONPATH": os.getcwd()}

    def interrupted(at: int) -> subprocess.CompletedProcess[bytes]:
        argv = [sys.executable, "-c", INTERRUPTED, str(at), str(root)]
        return subprocess.run(argv, env=env, capture_output=True, timeout=240, check=False)

    whole = interrupted(0)
    assert whole.returncode == 3
    last = int(whole.stdout.split()[-1])
    for at in range(1, last, last // 14):
        ended = interrupted(at)
        assert (ended.returncode, ended.stderr) == (130, b"ctl: interrupted\n"), (at, ended)
    for at in (last, last + 2):  # when all is told: Python may have let go of its handlers
        ended = interrupted(at)
        assert b"Traceback" not in ended.stderr and ended.returncode in (3, 130, -signal.SIGINT)
