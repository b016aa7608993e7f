"""Outputs of `fedavg merge` and `replay`: whole or not at all, and what killed ones left goes."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import fedavg.cli
from fedavg import targets
from fsworker.errors import StorageError
from tests.support.waiting import Spawned, wait_until

pytestmark = pytest.mark.unit

KILLED = """
import os, sys
from fedavg import targets
from fedavg.cli import main
def publish(self):
    %s
real, targets.Target.publish = targets.Target.publish, publish
sys.exit(main(sys.argv[1:]))
"""
"""A merge that does something right before it publishes."""
KILL = KILLED % "os.kill(os.getpid(), 9)"
WAIT = KILLED % "sys.stdin.read(); real(self)"


@pytest.fixture
def models(tmp_path: Path) -> list[str]:
    for i in range(2):
        torch.save({"w": torch.full((3,), float(i))}, tmp_path / f"{i}.pt")
    return [str(tmp_path / f"{i}.pt") for i in range(2)]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


@pytest.fixture
def spawned() -> Iterator[Spawned]:
    with Spawned() as processes:
        yield processes


def hidden(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.startswith("."))


def killed(argv: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", KILL, "merge", *argv], capture_output=True)
    assert done.returncode == -9, done.stderr


def left(folder: Path) -> Path:
    """A file under the name of a process that has ended."""
    code = "from fedavg.targets import hidden_name; print(hidden_name(), end='')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (folder / done.stdout).write_bytes(b"half a model")
    return folder / done.stdout


def shards(folder: Path) -> None:
    folder.mkdir()
    for name in ("model.safetensors", "model.safetensors.index.json"):
        (folder / name).write_bytes(b"half a model")


def test_the_next_merge_removes_what_a_killed_one_left(models: list[str], out: Path) -> None:
    argv = [*models, "-o", str(out / "a.pt")]
    killed([*argv, "--rule", "fedavgm", "--base", models[0], "--state-out", str(out / "state")])
    assert len(hidden(out)) == 2, "the model and the state"
    assert fedavg.cli.main(["merge", *models, "-o", str(out / "b.pt")]) == 0
    assert sorted(os.listdir(out)) == ["b.pt"]


def test_a_folder_of_shards_too(models: list[str], out: Path) -> None:
    path = left(out)
    path.unlink()
    shards(path)
    assert fedavg.cli.main(["merge", *models, "-o", str(out / "b.pt")]) == 0
    assert sorted(os.listdir(out)) == ["b.pt"]


def test_errors_tell_the_name_that_was_given(
    models: list[str], out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"w": torch.zeros(1 << 20)}, models[0])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        code = fedavg.cli.main(["merge", models[0], "-o", str(out / "a.pt")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    told = capsys.readouterr().err
    assert code == 7 and f"cannot write {out}/a.pt: " in told and "tmp~" not in told
    assert hidden(out) == []


def test_a_merge_that_is_at_work_keeps_its_own(
    models: list[str], out: Path, spawned: Spawned
) -> None:
    argv = [sys.executable, "-c", WAIT, "merge", *models, "-o", str(out / "a.pt")]
    other = spawned.start(argv, stdin=subprocess.PIPE)
    wait_until(lambda: hidden(out), 60, what="the other merge's file")
    assert fedavg.cli.main(["merge", *models, "-o", str(out / "b.pt")]) == 0
    assert len(hidden(out)) == 1
    assert other.stdin is not None
    other.stdin.close()
    assert other.wait(60) == 0
    assert sorted(os.listdir(out)) == ["a.pt", "b.pt"]


def elsewhere(name: str) -> dict[str, str]:
    """A dead process's name as it would be if that lived somewhere that we cannot see."""
    found = targets._NAME.fullmatch(name)
    assert found is not None
    boot, space = found["boot"], found["ns"]
    return {
        "another machine, or before its last boot": name.replace(boot, boot[::-1]),
        "another container": name.replace(f"~{space}~", f"~{int(space) + 1}~"),
        "a kernel without boots": name.replace(boot, "-"),
        "something of the user's": f"{name}.keep",
        "an older version's": f".a.pt.tmp~{found['pid']}",
    }


def test_whom_nobody_can_judge_keeps_his(models: list[str], out: Path) -> None:
    name = left(out).name
    names = elsewhere(name)
    assert len({name, *names.values()}) == 6
    for other in names.values():
        (out / other).write_bytes(b"precious")
    assert fedavg.cli.main(["merge", *models, "-o", str(out / "b.pt")]) == 0
    assert hidden(out) == sorted(names.values())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_what_is_another_users_stays(models: list[str], out: Path) -> None:
    path = left(out)
    os.chown(path, 12345, 12345)
    assert fedavg.cli.main(["merge", *models, "-o", str(out / "b.pt")]) == 0
    assert path.exists()


def test_a_reused_pid_is_another_process() -> None:
    mine = targets.hidden_name()
    assert not targets.is_left_over(mine)
    start = re.sub(r"~(\d+)~([0-9a-f]+)$", r"~1\1~\2", mine)
    assert targets.is_left_over(start)


def test_no_link_is_followed(models: list[str], out: Path, tmp_path: Path) -> None:
    path = left(out)
    path.unlink()
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_bytes(b"")
    path.symlink_to(tmp_path / "precious")
    assert fedavg.cli.main(["merge", *models, "-o", str(out / "b.pt")]) == 0
    assert hidden(out) == [] and (tmp_path / "precious" / "file").exists()


@pytest.mark.parametrize("letter", ["x", "ü"])
def test_a_name_may_be_as_long_as_the_filesystem_lets_it(
    models: list[str], out: Path, letter: str, capsys: pytest.CaptureFixture[str]
) -> None:
    most = os.pathconf(out, "PC_NAME_MAX")
    name = letter * ((most - 3) // len(letter.encode())) + ".pt"
    state = name[:-2] + "st"
    argv = ["merge", *models, "--rule", "fedavgm", "--base", models[0]]
    argv += ["-o", str(out / name), "--state-out", str(out / state)]
    assert fedavg.cli.main(argv) == 0
    assert sorted(os.listdir(out)) == sorted([name, state])
    capsys.readouterr()
    assert fedavg.cli.main(["merge", *models, "-o", str(out / (letter + name))]) == 2
    told = capsys.readouterr().err
    assert "longer than the filesystem allows" in told and told.count("\n") == 1
    assert len(told) < 200


def test_an_error_tells_the_name_that_was_given_whatever_its_folder_is_called(
    tmp_path: Path,
) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    folder.mkdir()
    target = targets.Target(f"{folder}/out.pt")
    with pytest.raises(StorageError) as caught, targets.named([target]):
        raise StorageError(f"cannot write {target.temporary}: it is full")
    assert str(caught.value) == rf"cannot write {tmp_path}/\udcff/out.pt: it is full"
