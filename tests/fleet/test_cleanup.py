"""Deleting a run: everything of it, nothing else, and never half in silence."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ctl import removal, roots
from fsworker.errors import StorageError
from fsworker.protocol import layout
from fsworker.protocol.records.run import Heartbeat, Manifest, WorkerSpec
from tests.support.ctlrun import Ctl

pytestmark = pytest.mark.fleet

BEAT = Heartbeat("n1", 4711, "0123456789ab", 5, 0.0, launch=1, ready=True, wrapped=True)


@pytest.fixture
def ctl(tmp_path: Path) -> Iterator[Ctl]:
    with Ctl(tmp_path) as calls:
        yield calls


def make_run(root: Path) -> Path:
    """A run that has ended, with something in every folder."""
    root.mkdir(parents=True)
    (root / layout.MARKER).write_bytes(roots.marker_bytes("r1"))
    for folder in (*layout.FOLDERS, "outbox/jobs/j1/attempts/1~0123456789ab/deep"):
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / "some.file").write_text("x")
    manifest = Manifest("r1", "a.b", 1, (WorkerSpec("n1", 0),))
    (root / layout.MANIFEST).write_bytes(manifest.to_json())
    return root


def digest(folder: Path) -> str:
    """All names, kinds and bytes below a folder."""
    seen = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        seen.update(repr((str(path), path.lstat().st_mode, path.lstat().st_mtime)).encode())
        seen.update(path.read_bytes() if path.is_file() else b"")
    return seen.hexdigest()


@pytest.fixture
def precious(tmp_path: Path) -> Iterator[Path]:
    """Data that no cleanup may touch."""
    folder = tmp_path / "precious"
    (folder / "sub").mkdir(parents=True)
    (folder / "thesis.tex").write_text("years of work")
    (folder / "sub" / "data.bin").write_bytes(bytes(1000))
    before = digest(folder)
    yield folder
    assert digest(folder) == before


def test_links_in_a_root_go_and_what_they_point_at_stays(ctl: Ctl, precious: Path) -> None:
    root = make_run(ctl.runs / "run")
    (root / "inbox" / "0").symlink_to(precious)
    (root / "data").symlink_to(precious)
    (root / "file").symlink_to(precious / "thesis.tex")
    (root / "dangling").symlink_to(ctl.folder / "nothing")
    (root / "up").symlink_to("..")
    done = ctl("cleanup", "--root", str(root))
    assert done.returncode == 0, done.stderr
    assert not root.exists()


def test_a_root_that_is_a_link_is_removed_with_its_link(ctl: Ctl, precious: Path) -> None:
    real, link = make_run(ctl.runs / "real"), ctl.runs / "link"
    (real / "outbox" / "data").symlink_to(precious)
    link.symlink_to(real)
    done = ctl("cleanup", "--root", str(link))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"removing {real}"  # the real path, first
    assert os.listdir(ctl.runs) == []


def test_a_root_that_is_a_link_to_the_outside_is_refused(ctl: Ctl, precious: Path) -> None:
    outside = make_run(ctl.folder / "outside")
    for target in (precious, outside):
        link = ctl.runs / "link"
        link.symlink_to(target)
        done = ctl("cleanup", "--root", str(link))
        assert (done.returncode, link.is_symlink()) == (5, True)
        assert f"(really {target})" in done.stderr
        link.unlink()
    assert (outside / layout.MANIFEST).exists()


def test_what_is_no_run_of_ours_is_refused(ctl: Ctl, precious: Path) -> None:
    run = make_run(ctl.runs / "run")
    other = ctl.runs / "other"
    other.mkdir()
    (other / "keep").write_text("x")
    inside = ctl.runs / "precious"
    shutil.copytree(precious, inside)
    outside = make_run(ctl.folder / "outside")
    cases = [
        f"{run}/../other", "", "/", str(other), str(inside), str(outside), str(ctl.runs),
        str(run / layout.CTL), f"{run}/..", ".", "..", str(run / layout.MANIFEST),
    ]  # fmt: skip
    for root in cases:
        done = ctl("cleanup", "--root", root)
        assert done.returncode == 5, (root, done.stdout, done.stderr)
        assert done.stdout == ""
    assert (other / "keep").exists() and (outside / layout.MANIFEST).exists()
    assert (run / layout.MANIFEST).exists() and (inside / "thesis.tex").exists()


def test_fresh_heartbeats_are_refused_until_they_are_old_or_say_goodbye(ctl: Ctl) -> None:
    root = make_run(ctl.runs / "run")
    status = root / "status" / "n1.json"
    for record in (BEAT.to_json(), b"damaged", replace(BEAT, ready=False).to_json()):
        status.write_bytes(record)
        done = ctl("cleanup", "--root", str(root))
        assert done.returncode == 5, done.stdout
        assert "n1 beat within 15 s" in done.stderr
    assert (root / layout.MANIFEST).exists()
    status.write_bytes(replace(BEAT, stopped=True).to_json())
    assert ctl("cleanup", "--root", str(root)).returncode == 0


def test_an_old_heartbeat_is_judged_by_the_files_clock_not_by_what_it_says(ctl: Ctl) -> None:
    root = make_run(ctl.runs / "run")
    status = root / "status" / "n1.json"
    status.write_bytes(replace(BEAT, heartbeat_at=time.time() + 7200).to_json())
    os.utime(status, (time.time() - 60,) * 2)
    assert ctl("cleanup", "--root", str(root)).returncode == 0


def test_a_hung_worker_on_this_machine_is_refused_although_it_is_silent(ctl: Ctl) -> None:
    root = ctl.runs / "run"
    ctl.start(root)
    pid = int((root / "ctl" / "localhost.pid").read_text())
    os.kill(pid, 19)
    status = root / "status" / "localhost.json"
    os.utime(status, (time.time() - 60,) * 2)
    done = ctl("cleanup", "--root", str(root))
    assert done.returncode == 5
    assert "runs here: run ctl stop first" in done.stderr


def test_a_start_that_died_before_its_manifest_is_cleaned(ctl: Ctl) -> None:
    root = ctl.runs / "run"
    root.mkdir()
    (root / layout.MARKER).write_bytes(roots.marker_bytes("r1"))
    assert ctl("cleanup", "--root", str(root)).returncode == 0
    assert not root.exists()


def test_a_root_with_a_manifest_only_is_cleaned(ctl: Ctl) -> None:
    root = make_run(ctl.runs / "run")
    (root / layout.MARKER).unlink()
    assert ctl("cleanup", "--root", str(root)).returncode == 0
    assert not root.exists()


def test_a_dry_run_deletes_nothing(ctl: Ctl) -> None:
    root = make_run(ctl.runs / "run")
    before = digest(root)
    done = ctl("cleanup", "--root", str(root), "--dry-run")
    assert (done.returncode, done.stdout) == (0, f"would remove {root}\n")
    names = {p: p.exists() for p in root.rglob("*")}
    assert all(names.values())
    assert before  # the probe file of the age check comes and goes, and leaves no trace
    assert not [n for n in os.listdir(root / "status") if n.startswith(".")]


def test_json_says_what_became_of_it(ctl: Ctl) -> None:
    root = make_run(ctl.runs / "run")
    found = json.loads(ctl("cleanup", "--root", str(root), "--json").stdout)
    assert (found["real"], found["removed"], found["exists"]) == (str(root), True, False)
    found = json.loads(ctl("cleanup", "--root", str(root), "--json").stdout)
    assert (found["missing"], found["removed"]) == (True, False)


def keep_coming_back(monkeypatch: pytest.MonkeyPatch, seconds: float) -> list[float]:
    """Let `.nfs` files come back when they are removed, as a server does; when each did."""
    real, end, returned = os.unlink, time.monotonic() + seconds, []

    def unlink(name: str, *, dir_fd: int) -> None:
        real(name, dir_fd=dir_fd)
        if name.startswith(".nfs") and time.monotonic() < end:
            os.close(os.open(name, os.O_CREAT | os.O_EXCL, dir_fd=dir_fd))
            returned.append(time.monotonic())

    monkeypatch.setattr(os, "unlink", unlink)
    return returned


@pytest.mark.parametrize("folder", ["outbox/s1", ""])
def test_leftovers_that_come_back_for_a_while_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    root = make_run(tmp_path / "run")
    (root / folder).mkdir(exist_ok=True)
    (root / folder / ".nfs0000000001").touch()
    returned = keep_coming_back(monkeypatch, 3.0)
    removal.remove_root(str(root), b"marker")
    assert len(returned) > 3
    assert not root.exists()


def test_leftovers_that_stay_are_named_and_a_second_try_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_run(tmp_path / "run")
    leftover = root / "outbox" / ".nfs0000000001"
    leftover.touch()
    with monkeypatch.context() as patch:
        keep_coming_back(patch, 60.0)
        with pytest.raises(StorageError, match=f"cannot remove {leftover}: "):
            removal.remove_root(str(root), b"marker", patience=0.5)
    assert not (root / layout.MANIFEST).exists()
    assert roots.is_ours(str(root))
    assert leftover.exists()
    removal.remove_root(str(root), b"marker")
    assert not root.exists()


@pytest.fixture
def immutable(ctl: Ctl) -> Iterator[Path]:
    """A file of a run that not even its owner can remove."""
    root = make_run(ctl.runs / "run")
    path = root / "outbox" / "jobs" / "j1" / "some.file"
    path.write_text("x")
    if shutil.which("chattr") is None:
        pytest.skip("chattr is not installed")
    if subprocess.run(["chattr", "+i", str(path)], check=False, capture_output=True).returncode:
        pytest.skip("files cannot be made immutable here: it needs root and a filesystem with it")
    yield path
    if path.exists():
        subprocess.run(["chattr", "-i", str(path)], check=True)


def test_an_immutable_file_is_named_exactly_and_the_root_is_dead(ctl: Ctl, immutable: Path) -> None:
    root = ctl.runs / "run"
    begun = time.monotonic()
    failed = ctl("cleanup", "--root", str(root))
    assert failed.returncode == 7
    assert f"cannot remove {immutable}: Operation not permitted" in failed.stderr
    assert "removed" not in failed.stdout
    assert time.monotonic() - begun < removal.PATIENCE  # waiting would not have helped
    assert ctl("status", "--root", str(root)).returncode == 3
    left = {str(p.relative_to(root)) for p in root.rglob("*") if not p.is_dir()}
    assert left == {layout.MARKER, str(immutable.relative_to(root))}
    subprocess.run(["chattr", "-i", str(immutable)], check=True)
    assert ctl("cleanup", "--root", str(root)).returncode == 0
    assert not root.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_another_filesystem_in_the_root_is_not_emptied(ctl: Ctl, precious: Path) -> None:
    root = make_run(ctl.runs / "run")
    (root / "mnt").mkdir()
    script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", str(precious), str(root / "mnt"),
         "sh", "-c", f'"{sys.executable}" -m ctl cleanup --root "$0"', str(root)],
        capture_output=True, text=True, env=ctl.env, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 7, done.stderr
    assert f"cannot remove {root}/mnt" in done.stderr
