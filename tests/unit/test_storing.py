"""What is written is stored while more is written, and an error of that is never lost."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fedavg.checkpoint import Writer, open_checkpoint
from fedavg.engine.statefile import StateWriter
from fedavg.formats import storing
from fedavg.formats.storing import Storing
from fedavg.merging import Contribution, merge
from fedavg.strategies import rule
from fsworker.errors import StorageError
from fsworker.protocol.fsops import Store
from tests.support.waiting import wait_until

pytestmark = pytest.mark.unit


@pytest.fixture
def fd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(storing, "STEP", 100)
    found = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    yield found
    os.close(found)


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    real, found = os.fdatasync, list[int]()

    def recorded(fd: int) -> None:
        real(fd)
        found.append(fd)

    monkeypatch.setattr(os, "fdatasync", recorded)
    return found


def test_enough_is_stored_by_a_thread_and_little_is_left_alone(fd: int, stored: list[int]) -> None:
    before = threading.active_count()
    work = Storing()
    work.wrote(fd, 99)
    assert threading.active_count() == before and not stored
    work.wrote(fd, 1)
    wait_until(lambda: stored == [fd], what="the first step")
    work.wrote(fd, 150)
    wait_until(lambda: stored == [fd, fd], what="the second")
    work.end()
    work.end()
    assert threading.active_count() == before


def test_files_have_their_turns(fd: int, stored: list[int], tmp_path: Path) -> None:
    other = os.open(tmp_path / "other", os.O_WRONLY | os.O_CREAT)
    work = Storing()
    work.wrote(fd, 60)
    work.wrote(other, 60)
    work.wrote(other, 60)
    wait_until(lambda: stored == [other], what="that which has enough")
    work.wrote(fd, 60)
    wait_until(lambda: stored == [other, fd], what="the other")
    work.end()
    os.close(other)


def test_an_error_is_told_by_every_call_from_then_on(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails cannot be had here; the kernel would tell of it once."""
    told = threading.Event()

    def fails(fd: int) -> None:
        told.set()
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(os, "fdatasync", fails)
    work = Storing()
    work.wrote(fd, 100)
    assert told.wait(60)
    with pytest.raises(OSError, match="quota"):
        work.end()
    for _ in range(2):
        with pytest.raises(OSError, match="quota"):
            work.wrote(fd, 1)


@pytest.mark.parametrize("name", ["fedavg", "fedadam"])
def test_a_merge_whose_output_cannot_be_stored_leaves_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save({"w": torch.randn(5000)}, tmp_path / "in.pt")
    model = open_checkpoint(tmp_path / "in.pt")

    told, end = threading.Event(), Storing.end

    def fails(fd: int) -> None:
        told.set()
        raise OSError(errno.ENOSPC, "No space left on device")

    def end_after_that(self: Storing) -> None:
        assert told.wait(60), "so small a merge may end before its thread has begun"
        end(self)

    monkeypatch.setattr(os, "fdatasync", fails)
    monkeypatch.setattr(Storing, "end", end_after_that)
    monkeypatch.setattr(storing, "STEP", 1000)
    with pytest.raises(StorageError, match=r"out.*No space left"):
        merge(rule(name), [Contribution("a", model, 1)], str(tmp_path / "out"), base=model,
              state_out=str(tmp_path / "out.state"))  # fmt: skip
    assert [p.name for p in tmp_path.iterdir()] == ["in.pt"]


def test_a_state_in_the_uppermost_folder_is_written_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is really written there by a test."""
    begun = []

    def create(self: Store, rel: str) -> int:
        begun.append(os.path.normpath(self.path(rel)).replace("//", "/"))
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Store, "create", create)
    for path, real in (("/x", "/x"), ("x", f"{tmp_path}/x"), (f"{tmp_path}/y", f"{tmp_path}/y")):
        with pytest.raises(StorageError, match=f"cannot write {path}"):
            StateWriter(path, rule("fedavgm"), {}, ())
        assert begun.pop() == real


def test_giving_up_removes_all_whatever_a_close_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file server may refuse the rest of a file when it is closed."""
    save_file({"w": torch.zeros(9)}, tmp_path / "a.safetensors")
    save_file({"v": torch.zeros(9)}, tmp_path / "b.safetensors")
    index = {"weight_map": {"w": "a.safetensors", "v": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    model, real, closed = open_checkpoint(tmp_path), os.close, list[int]()

    def fails(fd: int) -> None:
        real(fd)
        closed.append(fd)
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    (tmp_path / "out").mkdir()
    writer = Writer.create(str(tmp_path / "out" / "model"), model)
    state = StateWriter(str(tmp_path / "out" / "s"), rule("fedavgm"), model.entries, model.entries)
    assert len(os.listdir(tmp_path / "out")) == 2
    with monkeypatch.context() as patched:
        patched.setattr(os, "close", fails)
        writer.abort()
        state.abort()
    assert len(closed) == 4 and os.listdir(tmp_path / "out") == []
