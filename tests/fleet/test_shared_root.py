"""A run that a group shares, and one that nobody shares; started under the umask 0077."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ctlrun import ECHO, REPO, Ctl
from tests.support.waiting import with_environ

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.skipif(os.geteuid() != 0, reason="acting as two users needs root"),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed"),
]

ANNA, BELA, STRANGER = 60001, 60002, 60003
GROUP, OTHERS = 100, 65534


def python_for_all() -> str:
    """An interpreter like ours that other users may run, too."""
    here = os.path.realpath(sys.executable)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for path in (here, f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        folders = [path, *map(str, Path(path).parents)]
        if os.path.exists(path) and all(os.stat(f).st_mode & stat.S_IXOTH for f in folders):
            return path
    pytest.skip(f"no {version} that other users may run")


class Shared(Ctl):
    """`ctl` as one of several users."""

    def as_user(self, uid: int, *args: str, gid: int = GROUP) -> subprocess.CompletedProcess[str]:
        argv = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups"]
        libraries = sysconfig.get_paths()["purelib"]
        env = {**self.env, "PYTHONPATH": f"{REPO}:{libraries}", "PYTHONDONTWRITEBYTECODE": "1"}
        env["HOME"] = env["FLEET_WORKSPACE"] = str(self.folder / str(uid))
        return subprocess.run(
            [*argv, python_for_all(), "-m", "ctl", *args],
            capture_output=True, text=True, env=env, cwd="/", timeout=240, check=False, umask=0o077,
        )  # fmt: skip


@pytest.fixture
def ctl() -> Iterator[Shared]:
    # Not below pytest's own folder, which only its owner can pass through.
    folder = Path(tempfile.mkdtemp(prefix="shared-"))
    folder.chmod(0o755)
    for uid in (ANNA, BELA, STRANGER):
        (folder / str(uid)).mkdir()
        os.chown(folder / str(uid), uid, GROUP)
    with Shared(folder) as calls:
        os.chown(calls.runs, -1, GROUP)
        calls.runs.chmod(0o2770)
        yield calls
    shutil.rmtree(folder)


def test_a_colleague_reads_restarts_stops_and_cleans(ctl: Shared) -> None:
    root = str(ctl.runs / "exp" / "t" / "id1")
    args = ("--experiment", "exp", "--trial", "t", "--run-id", "id1", "--fn", ECHO)
    start = ctl.as_user(ANNA, "start", *args, "--group", "users")
    assert start.returncode == 0, start.stderr
    modes = {stat.S_IMODE(os.stat(p).st_mode) for p, _, _ in os.walk(ctl.runs)}
    assert modes == {0o2770}
    files = [os.path.join(p, n) for p, _, names in os.walk(root) for n in names]
    assert {stat.S_IMODE(os.stat(f).st_mode) for f in files} == {0o660}
    assert {os.stat(f).st_gid for f in files} == {GROUP}
    for verb in ("status", "restart-host", "status", "stop", "cleanup"):
        extra = ("localhost",) if verb == "restart-host" else ()
        done = ctl.as_user(BELA, verb, *extra, "--root", root)
        assert done.returncode == 0, (verb, done.stderr)
    assert not os.path.exists(root)
    assert with_environ(ctl.entry) == []


def test_who_is_not_in_the_group_is_told_the_path(ctl: Shared) -> None:
    root = ctl.runs / "run"
    start = ctl.as_user(ANNA, "start", "--root", str(root), "--fn", ECHO, "--group", "users")
    assert start.returncode == 0, start.stderr
    for verb in ("status", "stop"):
        done = ctl.as_user(STRANGER, verb, "--root", str(root), gid=OTHERS)
        assert (done.returncode, done.stdout) == (4, "")
        assert f"cannot read {root}" in done.stderr
    assert ctl.as_user(ANNA, "stop").returncode == 0


def test_a_private_root_stays_private_to_the_group_too(ctl: Shared) -> None:
    root = ctl.runs / "run"
    start = ctl.as_user(ANNA, "start", "--root", str(root), "--fn", ECHO)
    assert start.returncode == 0, start.stderr
    assert stat.S_IMODE(root.stat().st_mode) & 0o077 == 0
    done = ctl.as_user(BELA, "status", "--root", str(root))
    assert done.returncode == 4
    assert f"cannot read {root}" in done.stderr
    assert ctl.as_user(ANNA, "stop").returncode == 0


def test_a_private_parent_is_refused_and_stays_private(ctl: Shared) -> None:
    parent = ctl.folder / str(ANNA)
    parent.chmod(0o700)
    start = ctl.as_user(ANNA, "start", "--root", f"{parent}/run", "--fn", ECHO, "--group", "users")
    assert start.returncode == 5
    assert f"group users cannot pass through {parent} (mode 0700)" in start.stderr
    assert os.listdir(parent) == []
    assert stat.S_IMODE(parent.stat().st_mode) == 0o700
