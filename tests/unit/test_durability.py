"""What is published is on the disk first, and its name is there when the command is through.

A crash of a machine cannot be had here. So the calls are watched: before a rename every file and
folder that gets its name was fsynced after its last write, and the folder above is fsynced after.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fedavg.cli import main
from fedavg.keeper import GroupKeeper
from fsworker.protocol.fsops import Store
from tests.support.roots import make_root
from tests.support.rounds import make_group, upload

pytestmark = pytest.mark.unit


class Disk:
    """Which files and folders, by inode, the disk was asked to keep since they were last changed.

    `lost` are names that a crash could leave without their content, `names` what was published.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.kept: set[int] = set()
        self.lost: list[str] = []
        self.names: list[str] = []
        self._above: dict[int, str] = {}
        for name in ("write", "pwrite", "pwritev", "ftruncate"):
            patch.setattr(os, name, self._changing(getattr(os, name)))
        self._open, self._fsync, self._rename = os.open, os.fsync, os.rename
        for name in ("open", "fsync", "rename"):
            patch.setattr(os, name, getattr(self, name))

    def open(self, path: Any, flags: int, *args: Any, **how: Any) -> int:
        fd = self._open(path, flags, *args, **how)
        if flags & os.O_CREAT:
            self.kept.discard(os.fstat(fd).st_ino)
        return fd

    def fsync(self, fd: int) -> None:
        self._fsync(fd)
        inode = os.fstat(fd).st_ino
        self.kept.add(inode)
        self._above.pop(inode, None)

    def rename(self, source: str, target: str) -> None:
        visible = not os.path.basename(target).startswith(".")
        if visible:
            self.lost += [p for p in within(source) if os.stat(p).st_ino not in self.kept]
        self._rename(source, target)
        if visible:
            self.names.append(os.path.basename(target))
            self._above[os.stat(os.path.dirname(target)).st_ino] = f"the name {target}"

    def end(self) -> list[str]:
        """All that could be lost now."""
        return [*self.lost, *self._above.values()]

    def _changing(self, real: Any) -> Any:
        def call(fd: int, *args: Any) -> Any:
            self.kept.discard(os.fstat(fd).st_ino)
            return real(fd, *args)

        return call


def within(path: str) -> Iterator[str]:
    yield path
    for folder, folders, files in os.walk(path):
        yield from (os.path.join(folder, name) for name in folders + files)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_uploads_plans_and_models_are_stored_before_they_count(tmp_path: Path, disk: Disk) -> None:
    store = Store(make_root(tmp_path / "root"))
    make_group(store, "ab", rule="fedavgm", episodes=2)
    keeper = GroupKeeper(store, "g", threads=1)
    for episode in (1, 2):
        for job in "ab":
            upload(store, "g", job, episode, 1.0)  # by torch, which syncs nothing
        assert keeper.step().merged
    assert keeper.step().finished
    assert {"a", "b", "0001", "0002", "before_ep_0002", "before_ep_0003", "final.json"} <= {
        *disk.names
    }
    assert disk.end() == []


@pytest.mark.parametrize("ending", ["pt", "safetensors"])
def test_what_a_merge_writes_is_stored_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    from safetensors.torch import save_file

    for name in "ab":
        save: Any = save_file if ending == "safetensors" else torch.save
        save({"w": torch.ones(3)}, tmp_path / f"{name}.{ending}")
    models = [str(tmp_path / f"{name}.{ending}") for name in "ab"]
    disk = Disk(monkeypatch)
    argv = ["merge", *models, "-o", str(tmp_path / "out"), "--rule", "fedavgm"]
    assert main([*argv, "--base", models[0], "--state-out", str(tmp_path / "state")]) == 0
    assert sorted(disk.names) == ["out", "state"]
    assert disk.end() == []


def test_a_folder_of_shards_is_stored_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import save_file

    models = []
    for name in "ab":
        folder = tmp_path / name
        folder.mkdir()
        save_file({"w": torch.ones(3)}, folder / "1.safetensors")
        (folder / "model.safetensors.index.json").write_text(
            '{"weight_map": {"w": "1.safetensors"}}'
        )
        models.append(str(folder))
    disk = Disk(monkeypatch)
    assert main(["merge", *models, "-o", str(tmp_path / "out")]) == 0
    assert disk.names == ["out"] and disk.end() == []
