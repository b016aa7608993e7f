"""Formats other than `.pt`: safetensors, folders of shards, zips of stable-baselines3, JSON."""

from __future__ import annotations

import io
import json
import os
import stat
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fedavg import merging, strategies
from fedavg.checkpoint import (
    ChangedCheckpoint,
    Checkpoint,
    UnsafeCheckpoint,
    Writer,
    open_checkpoint,
)
from fedavg.engine.crew import work_off
from fedavg.engine.statefile import open_state
from fedavg.merging import Contribution
from tests.support.checkpoints import copy, rest_of, same, tensors_of

pytestmark = pytest.mark.unit

LAYERS = {
    "module.0.weight": torch.randn(5, 3),
    "module.0.bias": torch.randn(5).bfloat16(),
    "module.steps": torch.tensor(7),
    "module.mask": torch.tensor([True, False, True]),
    "module.none": torch.zeros(0, 4),
    "module.half": torch.tensor([60000.0]).half(),
    "module.eight": torch.ones(3).to(torch.float8_e4m3fn),
    "module.complex": torch.ones(2, dtype=torch.complex64),
}


def bare(values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {key.removeprefix("module."): value for key, value in values.items()}


def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)


# -- safetensors


def test_safetensors_are_read_and_written_as_their_own_library_does(tmp_path: Path) -> None:
    path, out = tmp_path / "upload", tmp_path / "out"
    save_file(LAYERS, path, metadata={"format": "pt", "step": "5"})
    assert equal(tensors_of(path), bare(LAYERS))
    assert rest_of(path) == {"__metadata__.format": "pt", "__metadata__.step": "5"}
    copy(path, out, piece=7)
    assert out.read_bytes() == path.read_bytes()
    assert equal(load_file(out), LAYERS)


def test_metadata_of_safetensors_can_be_replaced_by_text_alone(tmp_path: Path) -> None:
    path, out = tmp_path / "upload", tmp_path / "out"
    save_file(LAYERS, path, metadata={"step": "5"})
    copy(path, out, replace={"__metadata__.step": "600000"})
    with safe_open(out, "pt") as file:
        assert file.metadata() == {"step": "600000"}
    with open_checkpoint(path) as checkpoint, pytest.raises(TypeError, match="strings"):
        Writer.create(str(tmp_path / "x"), checkpoint, replace={"__metadata__.step": 6})


# -- shards


def sharded(folder: Path, *, pt: bool) -> Path:
    """LAYERS in two shards with their index."""
    folder.mkdir()
    names = list(LAYERS)
    weight_map = {}
    for number, part in enumerate((names[:3], names[3:])):
        name = f"model-{number}.{'bin' if pt else 'safetensors'}"
        weight_map |= dict.fromkeys(part, name)
        values: dict[str, Any] = {key: LAYERS[key] for key in part}
        if pt:
            torch.save(values, folder / name)
        else:
            save_file(values, folder / name, metadata={"format": "pt"})
    index = {"metadata": {"total_size": 123}, "weight_map": weight_map}
    (folder / "model.index.json").write_text(json.dumps(index, indent=2))
    (folder / ".nfs0001").write_text("left by a file server")
    (folder / "README.md").write_text("other files of the folder are no part of it")
    return folder


@pytest.mark.parametrize("pt", [False, True])
def test_a_folder_of_shards_is_one_checkpoint(tmp_path: Path, pt: bool) -> None:
    folder, out = sharded(tmp_path / "upload", pt=pt), tmp_path / "out"
    assert equal(tensors_of(folder), bare(LAYERS))
    copy(folder, out, piece=7)
    names = {"model.index.json", *(f"model-{n}.{'bin' if pt else 'safetensors'}" for n in (0, 1))}
    assert set(os.listdir(out)) == names
    assert equal(tensors_of(out), bare(LAYERS))
    assert (out / "model.index.json").read_bytes() == (folder / "model.index.json").read_bytes()
    assert {stat.S_IMODE((out / name).stat().st_mode) for name in names} == {0o600}
    if not pt:
        assert rest_of(folder)["model-1.safetensors/__metadata__.format"] == "pt"
        assert all((out / n).read_bytes() == (folder / n).read_bytes() for n in names)


def test_a_folder_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    folder, out = sharded(tmp_path / "upload", pt=False), tmp_path / "out"
    with open_checkpoint(folder) as checkpoint:
        with pytest.raises(ValueError, match="was not written"):
            Writer.create(str(out), checkpoint).close()
        assert not out.exists()
        out.mkdir()
        with pytest.raises(Exception, match="File exists"):
            Writer.create(str(out), checkpoint)
        assert os.listdir(out) == []


def test_more_shards_than_a_process_may_open_are_read(tmp_path: Path) -> None:
    weight_map = {}
    for number in range(400):
        save_file({f"w{number}": torch.tensor(number)}, tmp_path / f"{number}.safetensors")
        weight_map[f"w{number}"] = f"{number}.safetensors"
    (tmp_path / "m.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with open_checkpoint(tmp_path) as one, open_checkpoint(tmp_path) as two:
        for number in range(400):
            for checkpoint in (one, two):
                data = bytearray(8)
                checkpoint.read_into(f"w{number}", 0, 8, memoryview(data))
                assert int.from_bytes(data, "little") == number
        mine = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                if os.path.lexists(f"/proc/self/fd/{fd}")]  # fmt: skip
        assert sum(name.startswith(str(tmp_path)) for name in mine) <= 256
        os.replace(tmp_path / "1.safetensors", tmp_path / "0.safetensors")
        with pytest.raises(Exception, match="changed while it was being read"):
            one.read_into("w0", 0, 8, memoryview(bytearray(8)))


def written(folder: Path, form: str) -> Path:
    """LAYERS in a file or folder of a format."""
    path = folder / f"upload.{form}"
    if form == "pt":
        torch.save(LAYERS, path)
    elif form == "safetensors":
        save_file(LAYERS, path)
    elif form == "zip":
        baselines(path, LAYERS)
    else:
        sharded(path, pt=form == "bin")
    return path


@pytest.mark.parametrize("how", ["touched", "replaced"])
@pytest.mark.parametrize("form", ["pt", "safetensors", "zip", "shards", "bin"])
def test_who_was_written_to_while_it_was_read_can_be_told(
    tmp_path: Path, form: str, how: str
) -> None:
    path = written(tmp_path, form)
    last = max(path.glob("model-*")) if path.is_dir() else path
    with open_checkpoint(path) as checkpoint:
        checkpoint.check_unchanged()
        if how == "replaced":
            (tmp_path / "other").write_bytes(last.read_bytes())
            os.replace(tmp_path / "other", last)
        else:
            os.utime(last)
        with pytest.raises(ChangedCheckpoint, match=last.name):
            checkpoint.check_unchanged()


@pytest.mark.parametrize("place", ["input", "base", "state"])
def test_nothing_is_made_of_what_was_written_to_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    for name, value in (("base", 0.0), ("input", 1.0)):
        save_file({"w": torch.full((4,), value)}, tmp_path / name)
    out, state, last = (str(tmp_path / name) for name in ("out", "state", "last"))
    rule = strategies.rule("fedavgm")

    def merged(state_in: Checkpoint | None, state_out: str) -> None:
        with open_checkpoint(tmp_path / "input") as one, open_checkpoint(tmp_path / "base") as base:
            inputs = [Contribution("a", one)]
            merging.merge(rule, inputs, out, base=base, state_in=state_in, state_out=state_out)

    merged(None, state)
    os.unlink(out)

    def touching(*args: Any) -> None:
        work_off(*args)
        os.utime(tmp_path / place)

    monkeypatch.setattr("fedavg.merging.work_off", touching)
    with open_state(state) as kept, pytest.raises(ChangedCheckpoint, match=place):
        merged(kept, last)
    assert not os.path.exists(out) and not os.path.exists(last)


# -- stable-baselines3

POLICY = {
    f"{net}.{layer}.{kind}": torch.randn(4, 8) if kind == "weight" else torch.randn(4)
    for net in ("q_net.q_net", "q_net_target.q_net")
    for layer in (0, 2, 4)
    for kind in ("weight", "bias")
}
OPTIMIZER = {
    "state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.randn(4, 8)}},
    "param_groups": [{"lr": 1e-4, "params": [0, 1, 2, 3, 4, 5]}],
}
DATA = json.dumps({"policy_class": {":type:": "x", ":serialized:": "gAWV…"}, "num_timesteps": 9})


def baselines(path: Path, policy: object = POLICY) -> Path:
    """As stable-baselines3's save_to_zip_file writes it."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", DATA)
        members = {"pytorch_variables.pth": None, "policy.pth": policy}
        for name, value in (members | {"policy.optimizer.pth": OPTIMIZER}).items():
            with archive.open(name, "w", force_zip64=True) as member:
                torch.save(value, member)
        archive.writestr("_stable_baselines3_version", "2.7.0")
        archive.writestr("system_info.txt", "- OS: Linux")
    return path


def test_a_zip_of_stable_baselines3_keeps_its_members(tmp_path: Path) -> None:
    path, out = baselines(tmp_path / "upload.zip"), tmp_path / "out.zip"
    found = tensors_of(path)
    assert equal({k: v for k, v in found.items() if "optimizer" not in k},
                 {f"policy.{key}": value for key, value in POLICY.items()})  # fmt: skip
    assert same(found["policy.optimizer.state.0.exp_avg"], OPTIMIZER["state"][0]["exp_avg"])
    rest = rest_of(path)
    assert rest["policy.optimizer.param_groups.0.lr"] == 1e-4
    assert rest["pytorch_variables"] is None
    copy(path, out, piece=20, replace={"policy.optimizer.param_groups.0.lr": 0.5})
    with zipfile.ZipFile(path) as before, zipfile.ZipFile(out) as after:
        assert after.namelist() == before.namelist() and after.testzip() is None
        for name in ("data", "_stable_baselines3_version", "system_info.txt"):
            assert after.read(name) == before.read(name)
        again = {
            name: torch.load(io.BytesIO(after.read(name)), weights_only=True)
            for name in after.namelist()
            if name.endswith(".pth")
        }
        for name in again:
            assert zipfile.ZipFile(io.BytesIO(after.read(name))).testzip() is None
    assert equal(again["policy.pth"], POLICY)
    assert again["pytorch_variables.pth"] is None
    assert again["policy.optimizer.pth"]["param_groups"] == [{"lr": 0.5, "params": [*range(6)]}]
    copy(out, tmp_path / "again.zip", seed=1, piece=64)
    assert (tmp_path / "again.zip").read_bytes() == out.read_bytes()


def test_a_hostile_member_is_refused_by_file_member_and_name(tmp_path: Path) -> None:
    class Runs:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {tmp_path}/ran",)

    path = baselines(tmp_path / "upload.zip", {"w": Runs()})
    with pytest.raises(UnsafeCheckpoint, match=r"upload\.zip \(policy\.pth\).* posix\.system"):
        open_checkpoint(path)
    assert os.listdir(tmp_path) == ["upload.zip"]


# -- JSON

AGENT = {
    "kind": "greedy",
    "episode": 12,
    "epsilon": 0.25,
    "q": [[0.1, -2.0], [3.0, 1e-300]],
    "visits": [3, 0, 7],
    "arms": {"left": {"value": 1.0}, "right": {"value": 2.5}},
    "history": [1, "a", None, True, [1, 2.5], [[1], [2, 3]], []],
}


def test_json_holds_numbers_and_lists(tmp_path: Path) -> None:
    path, out = tmp_path / "agent", tmp_path / "out"
    path.write_text(json.dumps(AGENT))
    found = tensors_of(path)
    assert {key: (value.dtype, value.tolist()) for key, value in found.items()} == {
        "epsilon": (torch.float64, 0.25),
        "q": (torch.float64, AGENT["q"]),
        "visits": (torch.int64, [3, 0, 7]),
        "arms.left.value": (torch.float64, 1.0),
        "arms.right.value": (torch.float64, 2.5),
        "history.4": (torch.float64, [1.0, 2.5]),
        "history.5.0": (torch.int64, [1]),
        "history.5.1": (torch.int64, [2, 3]),
    }
    assert rest_of(path) == {
        "kind": "greedy", "episode": 12,
        "history.0": 1, "history.1": "a", "history.2": None, "history.3": True,
    }  # fmt: skip
    copy(path, out, piece=8, replace={"episode": 13})
    assert json.loads(out.read_text()) == AGENT | {"episode": 13}
    assert [*json.loads(out.read_text())] == [*AGENT]


def test_json_that_is_not_finite_is_read_so_that_it_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "agent.json"
    path.write_text('{"q": [1.0, NaN], "e": -Infinity, "x": 1e999}')
    found = tensors_of(path)
    assert [key for key, value in found.items() if not value.isfinite().all()] == ["q", "e", "x"]
    with pytest.raises(ValueError, match="JSON compliant"):
        copy(path, tmp_path / "out")
    assert os.listdir(tmp_path) == ["agent.json"]


# -- what tells a format is content


@pytest.mark.parametrize("name", ["a.pt", "a.safetensors", "a.json", "a.zip", "a", "a.txt"])
def test_names_do_not_matter(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    formats = []
    for make in (
        lambda: torch.save({"w": torch.ones(1)}, path),
        lambda: save_file({"w": torch.ones(1)}, path),
        lambda: path.write_text('\n {"w": [1.0]}'),
        lambda: baselines(path),
    ):
        make()
        with open_checkpoint(path) as checkpoint:
            formats.append(checkpoint.format)
    assert formats == ["pt", "safetensors", "json", "stable-baselines3"]
