"""`.pt` files of torch.save, read without loading and written so that torch loads them strictly."""

from __future__ import annotations

import copy as copying
import os
import resource
import stat
import subprocess
import sys
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedavg.checkpoint import UnsupportedCheckpoint, Writer, lora_pairs, open_checkpoint
from fedavg.formats.nodes import Call, Global
from fsworker.errors import StorageError
from tests.support.checkpoints import copy, rest_of, same, tensors_of

pytestmark = pytest.mark.unit


def saved(tmp_path: Path, value: object, name: str = "saved.pt") -> Path:
    path = tmp_path / name
    torch.save(value, path)
    return path


def loaded(path: Path) -> Any:
    return torch.load(path, weights_only=True)


# -- keys


def test_keys_lead_through_dicts_and_lists_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = saved(
        tmp_path,
        {
            "episode": 7,
            "target_net_state_dict": {"2.weight": torch.ones(2)},
            "q_net_state_dict": OrderedDict(
                {"0.weight": torch.zeros(3, 2), "0.bias": torch.ones(3)}
            ),
            "optimizer": {
                "state": {0: {"step": torch.tensor(3.0)}, 11: {"step": torch.tensor(4.0)}},
                "param_groups": [{"lr": 1e-3, "params": [0, 11]}],
            },
            "pair": (torch.zeros(1), "b"),
        },
    )
    assert list(tensors_of(path)) == [
        "target_net_state_dict.2.weight",
        "q_net_state_dict.0.weight",
        "q_net_state_dict.0.bias",
        "optimizer.state.0.step",
        "optimizer.state.11.step",
        "pair.0",
    ]
    assert rest_of(path) == {
        "episode": 7,
        "optimizer.param_groups.0.lr": 1e-3,
        "optimizer.param_groups.0.params.0": 0,
        "optimizer.param_groups.0.params.1": 11,
        "pair.1": "b",
    }


@pytest.mark.parametrize(
    "prefix", ["", "module.", "_orig_mod.", "_orig_mod.module.", "module._orig_mod."]
)
def test_prefixes_of_wrappers_are_no_part_of_a_key(tmp_path: Path, prefix: str) -> None:
    bare = saved(tmp_path, {prefix + "0.weight": torch.ones(2)}, "bare.pt")
    nested = saved(tmp_path, {"net": {prefix + "0.weight": torch.ones(2)}}, "nested.pt")
    assert list(tensors_of(bare)) == ["0.weight"]
    assert list(tensors_of(nested)) == ["net.0.weight"]


def test_wrapped_models_have_the_keys_of_bare_ones(tmp_path: Path) -> None:
    class Compiled(torch.nn.Module):  # torch.compile's own takes seconds to import
        def __init__(self, module: torch.nn.Module) -> None:
            super().__init__()
            self._orig_mod = module

    def net(compiled: bool) -> torch.nn.Module:
        inner = torch.nn.Linear(2, 2)
        return torch.nn.Sequential(Compiled(inner) if compiled else inner, torch.nn.BatchNorm1d(2))

    models = [net(False), net(True), torch.nn.DataParallel(net(False)), Compiled(net(True))]
    paths = [saved(tmp_path, model.state_dict(), f"{i}.pt") for i, model in enumerate(models)]
    names = [list(tensors_of(path)) for path in paths]
    assert len(names[0]) == 7 and names[0][0] == "0.weight"
    assert names == [names[0]] * 4


def test_a_layer_called_module_loses_its_name_in_front_alone(tmp_path: Path) -> None:
    value = {"module.weight": torch.ones(1), "inner.module.weight": torch.ones(1)}
    assert list(tensors_of(saved(tmp_path, value))) == ["weight", "inner.module.weight"]


@pytest.mark.parametrize(
    ("value", "spellings"),
    [
        ({"w": 1.0, "module.w": 2.0}, ("['w']", "['module.w']")),
        ({"a": {"module._orig_mod.w": 1}, "a.w": 2}, ("['a']['module._orig_mod.w']", "['a.w']")),
        ({"s": {0: 1, "0": 2}}, ("['s'][0]", "['s']['0']")),
        ({"a._orig_mod.w": torch.ones(1), "a": [{"w": 3}], "a.w": 2}, ("a._orig_mod.w", "['a.w']")),
    ],
)
def test_two_spellings_of_one_key_are_refused_by_both_names(
    tmp_path: Path, value: object, spellings: tuple[str, str]
) -> None:
    path = saved(tmp_path, value)
    with pytest.raises(UnsupportedCheckpoint) as caught:
        open_checkpoint(path)
    assert str(path) in str(caught.value)
    assert all(spelling in str(caught.value) for spelling in spellings)


def test_lora_factors_are_known_by_their_names() -> None:
    names = [
        "base.q_proj.weight",
        "base.q_proj.lora_A.weight",
        "base.q_proj.lora_B.weight",
        "base.v_proj.lora_B.default.weight",
        "base.v_proj.lora_A.default.weight",
        "emb.lora_embedding_A",
        "emb.lora_embedding_B",
        "alone.lora_A.weight",
        "xlora_A.weight",
    ]
    assert lora_pairs(names) == {
        "base.q_proj": ("base.q_proj.lora_A.weight", "base.q_proj.lora_B.weight"),
        "base.v_proj:default": (
            "base.v_proj.lora_A.default.weight",
            "base.v_proj.lora_B.default.weight",
        ),
        "emb": ("emb.lora_embedding_A", "emb.lora_embedding_B"),
    }


# -- tensors

DTYPES = [
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
    "complex64", "complex128", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2",
]  # fmt: skip


@pytest.mark.parametrize("name", DTYPES)
def test_every_type_of_elements_goes_through(tmp_path: Path, name: str) -> None:
    dtype = getattr(torch, name)
    values = torch.tensor([[0.0, 1.0, 2.0], [3.0, 100.0, 5.0]]).to(dtype)
    value = {"w": values, "t": values.t(), "none": values[:0], "one": values[0, 1]}
    path = saved(tmp_path, value)
    copy(path, tmp_path / "out.pt", piece=values.element_size())
    found, again = tensors_of(path), loaded(tmp_path / "out.pt")
    for key, tensor in value.items():
        assert same(found[key], tensor) and same(again[key], tensor)
    with open_checkpoint(path) as checkpoint:
        entry = checkpoint.entries["w"]
        assert (entry.dtype, entry.shape) == (name, (2, 3))
        assert (entry.nbytes, entry.itemsize) == (values.nbytes, values.element_size())


def test_a_slice_of_a_large_buffer_is_read_alone_and_written_alone(tmp_path: Path) -> None:
    large = torch.arange(1 << 20, dtype=torch.float32)
    value = {"a": large[100:110], "b": large[::1024].reshape(32, 32).t(), "c": large[110:114]}
    path = saved(tmp_path, value)
    copy(path, tmp_path / "out.pt")
    assert path.stat().st_size > 4 << 20 > 1 << 16 > (tmp_path / "out.pt").stat().st_size
    for key, tensor in value.items():
        assert same(loaded(tmp_path / "out.pt")[key], tensor)


def test_tied_weights_stay_tied_and_are_written_once(tmp_path: Path) -> None:
    shared = torch.arange(6.0).reshape(2, 3)
    turned = torch.arange(4.0).reshape(2, 2).t()
    value = {"emb": shared, "out": shared, "flat": shared.view(-1)[2:5], "t": shared.t()}
    value |= {"x": turned, "y": turned}
    path = saved(tmp_path, value)
    with open_checkpoint(path) as checkpoint:
        owners = {key: entry.owner for key, entry in checkpoint.entries.items()}
        assert owners == {
            "emb": "emb", "out": "emb", "flat": "emb", "t": "emb", "x": "x", "y": "x",
        }  # fmt: skip
        with Writer.create(str(tmp_path / "out.pt"), checkpoint) as writer:
            assert writer.keys == ("emb", "x")
            writer.write("emb", 0, (shared * 2).numpy())
            writer.write("out", 0, torch.zeros(6).numpy())  # owned by another: nothing happens
            writer.write("x", 0, (turned * 2).contiguous().numpy())
    again = loaded(tmp_path / "out.pt")
    for key, tensor in value.items():
        assert same(again[key], tensor * 2)
    again["emb"][0, 2] = -1.0
    again["y"][0, 1] = -1.0
    assert (again["out"][0, 2], again["flat"][0], again["t"][2, 0], again["x"][0, 1]) == (-1,) * 4


def test_views_that_overlap_in_other_ways_are_written_each_for_itself(tmp_path: Path) -> None:
    base = torch.arange(10.0)
    value = {"a": base[:6], "b": base[4:], "wide": base[:1].expand(3), "even": base[::2]}
    path = saved(tmp_path, value)
    copy(path, tmp_path / "out.pt")
    again = loaded(tmp_path / "out.pt")
    for key, tensor in value.items():
        assert same(again[key], tensor)


def test_a_strict_load_passes_and_versions_of_modules_are_kept(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    value: dict[str, Any] = {
        "net": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3,
    }  # fmt: skip
    path = saved(tmp_path, value)
    copy(path, tmp_path / "out.pt", replace={"epoch": 4})
    again = loaded(tmp_path / "out.pt")
    assert again["epoch"] == 4
    assert again["net"]._metadata == value["net"]._metadata
    fresh = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    fresh.load_state_dict(again["net"], strict=True)
    assert all(
        same(a, b) for a, b in zip(fresh.state_dict().values(), value["net"].values(), strict=True)
    )
    torch.optim.Adam(fresh.parameters()).load_state_dict(again["optimizer"])


def test_parameters_stay_parameters(tmp_path: Path) -> None:
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    value = {
        "w": torch.nn.Parameter(torch.ones(2)),
        "f": frozen,
        "g": torch.ones(1, requires_grad=True),
    }
    copy(saved(tmp_path, value), tmp_path / "out.pt")
    again = loaded(tmp_path / "out.pt")
    assert {k: (type(t), t.requires_grad) for k, t in again.items()} == {
        "w": (torch.nn.Parameter, True),
        "f": (torch.nn.Parameter, False),
        "g": (torch.Tensor, True),
    }


# -- what is no tensor


def test_other_leaves_come_back_as_they_were(tmp_path: Path) -> None:
    value = {
        "none": None, "true": True, "small": -5, "large": 1 << 70, "float": 0.1, "text": "ä\ud800",
        "bytes": b"\xff\0", "array": bytearray(b"ab"), "complex": 1 + 2j, "set": {1, 2},
        "size": torch.Size([1, 2]), "dtype": torch.bfloat16, "device": torch.device("cuda", 1),
        "layout": torch.strided, "empty": {}, "list": [], "tuple": (), "count": Counter(a=2),
        "odd": {1.5: "a", None: "b", (1, "x"): "c", True: "d", b"k": "e"},
    }  # fmt: skip
    path = saved(tmp_path, value)
    copy(path, tmp_path / "out.pt")
    again = loaded(tmp_path / "out.pt")
    assert again == value
    assert [type(v) for v in again.values()] == [type(v) for v in value.values()]
    rest = rest_of(path)
    assert rest["dtype"] == Global("torch.bfloat16")
    assert rest["size"] == Call("torch.Size", ((1, 2),))
    assert (rest["text"], rest["large"], rest["odd.(1, 'x')"]) == ("ä\ud800", 1 << 70, "c")


NUMPY = [
    np.float64(0.1), np.float32(0.5), np.float16(60000.0), np.int64(-900), np.int32(7), np.int8(-1),
    np.uint8(255), np.uint64(2**64 - 1), np.bool_(True), np.complex128(1 + 2j), np.str_("name"),
]  # fmt: skip


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("scalar", NUMPY, ids=lambda s: s.dtype.name)
def test_numpy_scalars_become_numbers_of_python(
    tmp_path: Path, scalar: np.generic, protocol: int
) -> None:
    path = tmp_path / "saved.pt"
    torch.save({"steps": scalar, "w": torch.ones(1)}, path, pickle_protocol=protocol)
    found = rest_of(path)["steps"]
    assert (found, type(found)) == (scalar.item(), type(scalar.item()))
    copy(path, tmp_path / "out.pt")
    assert loaded(tmp_path / "out.pt")["steps"] == scalar.item()


def test_numpy_scalars_load_in_the_spelling_of_numpy_1_too(tmp_path: Path) -> None:
    """numpy 2 says `numpy._core`, numpy 1 said `numpy.core`; the bytes are otherwise the same."""
    path = saved(tmp_path, {"steps": np.int64(900)})
    old = tmp_path / "old.pt"
    with zipfile.ZipFile(path) as new, zipfile.ZipFile(old, "w") as made:
        for name in new.namelist():
            data = new.read(name)
            if name.endswith("data.pkl"):
                assert data.count(b"cnumpy._core.multiarray\nscalar\n") == 1
                data = data.replace(b"cnumpy._core.", b"cnumpy.core.")
            made.writestr(name, data)
    assert rest_of(old) == {"steps": 900}


def test_replacements_must_be_known_and_plain(tmp_path: Path) -> None:
    path = saved(tmp_path, {"w": torch.ones(1), "n": 1})
    with open_checkpoint(path) as checkpoint:
        with pytest.raises(KeyError, match="'m'"):
            Writer.create(str(tmp_path / "out.pt"), checkpoint, replace={"m": 1})
        with pytest.raises(TypeError, match="int64"):
            Writer.create(str(tmp_path / "out.pt"), checkpoint, replace={"n": np.int64(1)})
    assert os.listdir(tmp_path) == ["saved.pt"]


# -- the file that is written


def test_the_bytes_depend_on_the_content_alone(tmp_path: Path) -> None:
    value = {"a": torch.randn(100, 7), "b": {"module.c": torch.randn(33).bfloat16()}, "n": 5}
    one, two = (
        saved(tmp_path, value, "one.pt"),
        saved(tmp_path, copying.deepcopy(value), "another.pt"),
    )
    assert one.read_bytes() != two.read_bytes(), "torch.save names the folder after the file"
    (tmp_path / "sub").mkdir()
    targets = [tmp_path / "x.pt", tmp_path / "sub" / ".tmp~17", tmp_path / "z"]
    for seed, (source, target) in enumerate(zip([one, two, targets[0]], targets, strict=True)):
        copy(source, target, piece=[64, 500, 1 << 20][seed], seed=seed)
    assert len({target.read_bytes() for target in targets}) == 1


def test_checksums_and_alignment_are_right(tmp_path: Path) -> None:
    value = {f"w{i}": torch.randn(i * 13, 5) for i in range(12)} | {"big": torch.randn(70_000)}
    copy(saved(tmp_path, value), tmp_path / "out.pt", piece=1000)
    with zipfile.ZipFile(tmp_path / "out.pt") as archive:
        assert archive.testzip() is None
        assert {info.filename.partition("/")[0] for info in archive.infolist()} == {"archive"}
    mapped = torch.load(tmp_path / "out.pt", weights_only=True, mmap=True)
    assert all(same(mapped[key], value[key]) for key in value)
    assert all(tensor.data_ptr() % 64 == 0 for tensor in mapped.values() if tensor.numel())


@pytest.mark.parametrize(("folder", "umask", "mode"), [
    (0o700, 0o000, 0o600), (0o700, 0o077, 0o600), (0o2770, 0o077, 0o660), (0o2770, 0o000, 0o660),
])  # fmt: skip
def test_files_are_open_to_the_group_where_the_folder_is(
    tmp_path: Path, folder: int, umask: int, mode: int
) -> None:
    path = saved(tmp_path, {"w": torch.ones(2)})
    (tmp_path / "to").mkdir()
    (tmp_path / "to").chmod(folder)
    before = os.umask(umask)
    try:
        copy(path, tmp_path / "to" / "out.pt")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "to" / "out.pt").stat().st_mode) == mode


def test_what_was_not_written_in_full_is_not_left_behind(tmp_path: Path) -> None:
    path = saved(tmp_path, {"w": torch.ones(4), "v": torch.ones(1)})
    with open_checkpoint(path) as checkpoint:
        writer = Writer.create(str(tmp_path / "out.pt"), checkpoint)
        writer.write("v", 0, bytes(4))
        writer.write("w", 0, bytes(8))
        with pytest.raises(ValueError, match="'w' was not written"):
            writer.close()
        with pytest.raises(ZeroDivisionError), Writer.create(str(tmp_path / "out.pt"), checkpoint):
            raise ZeroDivisionError
        writer = Writer.create(str(tmp_path / "out.pt"), checkpoint)
        with pytest.raises(ValueError, match="'w' has 16 bytes, not 20"):
            writer.write("w", 12, bytes(8))
        with pytest.raises(KeyError):
            writer.write("nobody", 0, bytes(8))
        writer.abort()
    assert os.listdir(tmp_path) == ["saved.pt"]


def test_a_writer_that_was_closed_touches_nothing_any_more(tmp_path: Path) -> None:
    path = saved(tmp_path, {"w": torch.ones(4)})
    with open_checkpoint(path) as checkpoint:
        writer = Writer.create(str(tmp_path / "out.pt"), checkpoint)
        writer.write("w", 0, bytes(16))
        writer.close()
        before = (tmp_path / "out.pt").read_bytes()
        with pytest.raises(ValueError, match="was closed"):
            writer.write("w", 0, b"\1" * 16)
        writer.close()
        writer.abort()
    assert (tmp_path / "out.pt").read_bytes() == before


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    path = saved(tmp_path, {"w": torch.ones(4)})
    before = path.read_bytes()
    with open_checkpoint(path) as checkpoint, pytest.raises(Exception, match=r"File exists"):
        Writer.create(str(path), checkpoint)
    assert path.read_bytes() == before


def test_bounds_of_a_read_are_checked(tmp_path: Path) -> None:
    path = saved(tmp_path, {"w": torch.arange(4.0)})
    with open_checkpoint(path) as checkpoint:
        for start, stop, size in [(0, 20, 20), (-4, 4, 8), (8, 4, 0), (2, 6, 4), (0, 8, 4)]:
            with pytest.raises(ValueError, match="of Entry"):
                checkpoint.read_into("w", start, stop, memoryview(bytearray(size)))
        with pytest.raises(KeyError):
            checkpoint.read_into("v", 0, 0, memoryview(bytearray()))
        halves = np.zeros((2, 1), "f4")
        checkpoint.read_into("w", 8, 16, memoryview(halves))
        assert halves.tolist() == [[2.0], [3.0]]
    with pytest.raises(ValueError, match="was closed"):
        checkpoint.read_into("w", 0, 4, memoryview(bytearray(4)))


def test_neither_torch_nor_numpy_is_loaded_to_read_a_checkpoint(tmp_path: Path) -> None:
    path = saved(tmp_path, {"w": torch.arange(4.0), "n": np.int64(4)})
    code = (
        "import sys; from fedavg.checkpoint import open_checkpoint, Writer\n"
        "with open_checkpoint(sys.argv[1]) as c, Writer.create(sys.argv[2], c) as w:\n"
        "    data = bytearray(16); c.read_into('w', 0, 16, memoryview(data))\n"
        "    w.write('w', 0, data)\n"
        "print(*{'torch', 'numpy'}.intersection(sys.modules), c.rest)"
    )
    argv = [sys.executable, "-c", code, str(path), str(tmp_path / "out.pt")]
    repo = Path(__file__).parents[2]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=repo, check=True)
    assert done.stdout.strip() == "{'n': 4}"
    assert loaded(tmp_path / "out.pt")["w"].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_disk_that_takes_no_more_is_told_by_the_name_of_the_output(tmp_path: Path) -> None:
    path, out = saved(tmp_path, {"w": torch.ones(4000)}), tmp_path / "out.pt"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))
    try:
        with pytest.raises(StorageError, match=r"cannot write .*/out\.pt: File too large"):
            copy(path, out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path) == ["saved.pt"]
