"""What checkpoints say about themselves, read without torch and without trust."""

from __future__ import annotations

import json
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from collections import OrderedDict, deque
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from fsworker.jobs import pickled, summary
from fsworker.jobs.pickled import Unreadable
from fsworker.jobs.summary import Found, Summary
from fsworker.protocol.fsfolders import Entry

pytestmark = pytest.mark.unit


def test_a_real_torch_checkpoint_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    net = torch.nn.Linear(3, 2)
    state = {
        "episode": numpy.int64(7),
        "rewards": [1.5, float("nan"), numpy.float64(2.5)],
        "total_reward": 4.0,
        "q_net_state_dict": net.state_dict(),
        "optimizer_state_dict": torch.optim.Adam(net.parameters()).state_dict(),
        "memory": deque([(torch.zeros(2), 1)], maxlen=5),
        "loss": None,
        "_extra_state": {"lr": numpy.float64(1e-3)},
    }
    torch.save(state, path)
    assert summary.read(str(path)) == Summary(7, (1.5, None, 2.5), 4.0)
    torch.save(net.state_dict(), path)
    assert summary.read(str(path)) == Summary()


def test_torch_is_not_imported_for_it(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    torch.save({"episode": 3, "w": torch.zeros(4)}, path)
    code = (
        "import sys; from fsworker.jobs import runner, summary; "
        "print(summary.read(sys.argv[1]).episodes, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert done.stdout.split() == ["3", "False"], done.stderr


class Evil:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def zipped(path: Path, data: bytes) -> str:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", data)
    return str(path)


def test_nothing_that_a_pickle_names_is_run(tmp_path: Path) -> None:
    made = tmp_path / "made"
    path = zipped(tmp_path / "x.pt", pickle.dumps({"episode": 2, "evil": Evil(str(made))}))
    assert summary.read(path).episodes == 2
    assert not made.exists()


@pytest.mark.parametrize(
    "data",
    [b"", b"\x80\x04", b"cos\nsystem\n(S'x'\ntR", pickle.dumps([1])[:-1], b"(" * 9999 + b"."],
)
def test_a_damaged_pickle_is_unreadable_or_says_nothing(tmp_path: Path, data: bytes) -> None:
    try:
        assert summary.read(zipped(tmp_path / "x.pt", data)) == Summary()
    except Unreadable:
        pass


def test_plain_containers_survive() -> None:
    value = OrderedDict(a=[1, (2, 3)], b=deque([4]))
    assert pickled._load(pickle.dumps(value)) == {"a": [1, (2, 3)], "b": [4]}


@pytest.mark.parametrize("keep", [0, 10, 500, -1])
def test_what_is_cut_short_is_no_checkpoint(tmp_path: Path, keep: int) -> None:
    whole, cut = tmp_path / "whole.pt", tmp_path / "cut.pt"
    torch.save({"episode": 3}, whole)
    cut.write_bytes(whole.read_bytes()[:keep])
    with pytest.raises(Unreadable):
        summary.read(str(cut))


def safetensors(path: Path, metadata: dict[str, str], cut: int = 0) -> str:
    header = {"__metadata__": metadata, "w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    raw = json.dumps(header).encode()
    data = struct.pack("<Q", len(raw)) + raw + bytes(8)
    path.write_bytes(data[: len(data) - cut])
    return str(path)


def test_safetensors_by_their_metadata(tmp_path: Path) -> None:
    told = {"episodes": "4", "rewards": "[1, 2.5]", "samples": "100"}
    path = safetensors(tmp_path / "x.safetensors", told)
    assert summary.read(path) == Summary(4, (1.0, 2.5), None, 100.0)
    with pytest.raises(Unreadable, match="not as long"):
        summary.read(safetensors(tmp_path / "y.safetensors", told, cut=1))


def test_json_and_folders_by_their_index(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"episodes_completed": 2, "rewards": [1, null, "x"]}')
    assert summary.read(str(tmp_path / "a.json")) == Summary(2, (1.0, None, None))
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"metadata": {"episode": 9}, "weight_map": {}}')
    assert summary.read(str(tmp_path), "model.safetensors.index.json").episodes == 9
    with pytest.raises(Unreadable, match="without an index"):
        summary.read(str(tmp_path), "")


@pytest.mark.parametrize(
    ("value", "count"),
    [
        ({"episode": 3}, 3),
        ({"episodes_completed": 2, "episode": 3}, 2),
        ({"rewards": [1, 2]}, 2),
        ({"episode": True}, None),
        ({"episode": -1}, None),
        ({"episode": 2.5}, None),
        ({"episode": 10**400}, None),
        ({"episode": float("inf")}, None),
        ([1], None),
    ],
)
def test_counts(value: Any, count: int | None) -> None:
    assert summary._of(value).episodes == count


def test_which_file_is_the_checkpoint() -> None:
    files = [
        Entry("log", "file"),
        Entry("checkpoint.json", "file"),
        Entry("checkpoint.txt", "other"),
    ]
    assert summary.find(files, "checkpoint.pt") == Found("checkpoint.json")
    assert summary.find([*files, Entry("checkpoint.pt", "file")], "checkpoint.pt") == Found(
        "checkpoint.pt"
    )
    assert summary.find([*files, Entry("checkpoint.bin", "file")], "checkpoint.pt") is None
    folder = [
        Entry("checkpoint", "folder"),
        Entry("checkpoint/a.safetensors", "file"),
        Entry("checkpoint/model.index.json", "file"),
    ]
    assert summary.find(folder, "checkpoint") == Found("checkpoint", "model.index.json")


OLD = Summary(5, (1.0,) * 5)


@pytest.mark.parametrize(
    ("before", "after", "asked", "complete", "new"),
    [
        (None, Summary(20), 20, True, 20),
        (None, Summary(3), 20, False, 3),
        (None, Summary(None), 20, True, 20),
        (None, Summary(None), 20, False, 0),
        (None, Summary(0), 20, True, 0),
        (None, Summary(99), 20, False, 20),
        (OLD, Summary(15), 15, True, 15),  # its own alone
        (OLD, Summary(20), 15, True, 15),  # all since the first
        (OLD, Summary(1), 1, True, 1),
        (OLD, Summary(6), 1, True, 1),
        (OLD, Summary(8, (*OLD.rewards, 2.0, 3.0, 4.0)), 15, False, 3),
        (OLD, Summary(3, (2.0, 3.0, 4.0)), 15, False, 3),
    ],
)
def test_how_many_episodes_are_new(
    before: Summary | None, after: Summary, asked: int, complete: bool, new: int
) -> None:
    assert summary.new_episodes(before, after, asked, complete=complete) == new
