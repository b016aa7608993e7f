"""Checkpoints that would run something, or exhaust something, if they were loaded."""

from __future__ import annotations

import argparse
import collections
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedavg.checkpoint import (
    DamagedCheckpoint,
    UnsafeCheckpoint,
    UnsupportedCheckpoint,
    open_checkpoint,
)
from fedavg.formats import unpickle
from fedavg.formats.base import Entry
from fedavg.formats.places import Place, unfolded
from fedavg.formats.source import Source
from fsworker.errors import FleetError
from tests.support.checkpoints import copy

pytestmark = pytest.mark.unit

Refusal = (DamagedCheckpoint, UnsafeCheckpoint, UnsupportedCheckpoint)


def archive(path: Path, data: bytes, **members: bytes) -> Path:
    """A file as torch.save lays it out, with this pickle."""
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("archive/data.pkl", data)
        made.writestr("archive/version", "3\n")
        for name, content in members.items():
            made.writestr("archive/data/" + name, content)
    return path


class Runs:
    """Pickles as a call of `function` with `args`."""

    def __init__(self, function: Any, *args: object) -> None:
        self.call = (function, args)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


class Plain:
    """A class of nobody's."""

    def __init__(self) -> None:
        self.x = 1


HOSTILE = [
    (Runs(os.system, "touch {marker}"), "posix.system"),
    (Runs(eval, "open('{marker}', 'w')"), "builtins.eval"),
    (Runs(exec, "open('{marker}', 'w')"), "builtins.exec"),
    (Runs(subprocess.Popen, "touch {marker}"), "subprocess.Popen"),
    (Runs(getattr, 1, "real"), "builtins.getattr"),
    (Runs(torch.load, "{marker}"), "torch.serialization.load"),
    (Runs(__import__, "os"), "builtins.__import__"),
    (argparse.Namespace(lr=0.1), "argparse.Namespace"),
    (collections.deque([1]), "collections.deque"),
    (np.zeros(2), "numpy._core."),
    (np.dtype("f8"), "numpy.dtype"),
    (torch.nn.Linear(1, 1), "torch.nn.modules.linear.Linear"),
    (Path("x"), "pathlib.PosixPath"),
    (range(3), "builtins.range"),
    (frozenset({1}), "frozenset"),
    (print, "builtins.print"),
    (int, "builtins.int"),
]


def test_two_files_of_one_pickle_are_checked_each_for_itself(tmp_path: Path) -> None:
    """The tree is made once for both: what it speaks of must be in each."""
    whole = tmp_path / "whole.pt"
    torch.save({"w": torch.randn(4)}, whole)
    with zipfile.ZipFile(whole) as saved:
        data = saved.read("whole/data.pkl")
    poor = archive(tmp_path / "poor.pt", data)
    for _ in range(2):
        with open_checkpoint(whole) as checkpoint:
            assert list(checkpoint.entries) == ["w"] and checkpoint.path == str(whole)
        with pytest.raises(DamagedCheckpoint, match=r"poor\.pt"):
            open_checkpoint(poor)


@pytest.mark.parametrize("protocol", [0, 1, 2, 4, 5])
@pytest.mark.parametrize(("value", "name"), HOSTILE, ids=[name for _, name in HOSTILE])
def test_what_names_code_is_refused_by_file_and_by_name_and_runs_nothing(
    tmp_path: Path, value: Any, name: str, protocol: int
) -> None:
    marker = tmp_path / "ran"
    if isinstance(value, Runs):
        text, *others = (str(a).replace("{marker}", str(marker)) for a in value.call[1])
        value = Runs(value.call[0], text, *others)
    path = archive(tmp_path / "upload.pt", pickle.dumps({"w": [value]}, protocol))
    with pytest.raises(Refusal) as caught:
        open_checkpoint(path)
    assert str(path) in str(caught.value) and name.lower() in str(caught.value).lower()
    assert "\n" not in str(caught.value)
    if not isinstance(value, (np.dtype, frozenset)):
        assert isinstance(caught.value, UnsafeCheckpoint)
        assert name in caught.value.name and caught.value.exit_code == 5
    assert not marker.exists()


@pytest.mark.parametrize("name", ["fedavg.cli.main", "tests.nowhere.f", "torch.no_such_thing"])
def test_names_are_looked_up_and_never_imported(tmp_path: Path, name: str) -> None:
    module, _, function = name.rpartition(".")
    data = f"\x80\x02c{module}\n{function}\n)R.".encode("latin1")
    before = set(sys.modules)
    with pytest.raises(UnsafeCheckpoint, match=name):
        open_checkpoint(archive(tmp_path / "upload.pt", data))
    assert set(sys.modules) == before


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


DEEP = b"N" + b"\x85" * 60_000
"""A tuple in a tuple in a tuple …: whatever looks into it recursively ends the process."""
DEVICE = b"ctorch\ndevice\n"
ORDERED = b"ccollections\nOrderedDict\n)R"

ODD = {
    "an instance by INST": (b"(ios\nsystem\n.", "os.system"),
    "a call of a string": (b"\x80\x02" + text("os.system") + b")R.", "str"),
    "a call of a value": (b"\x80\x02ctorch\nfloat32\n)R.", "torch.float32"),
    "a call without a tuple": (b"\x80\x02ccollections\nOrderedDict\n]R.", "no tuple"),
    "a new object": (b"\x80\x02ccollections\nOrderedDict\n)\x81.", "NEWOBJ"),
    "an extension code": (b"\x80\x02\x82\x01.", "EXT1"),
    "a state for a dict": (b"\x80\x02}}b.", "state"),
    "a state for a size": (b"\x80\x02ctorch\nSize\n)\x85R}b.", "torch.Size"),
    "a module as persistent id": (b"\x80\x02" + text("module") + b"\x85Q.", "storage"),
    "a persistent id of text": (b"P0\n.", "PERSID"),
    "a name of two lines": (
        b"\x80\x04" + text("os") + text("sys\ntem\x1b[2J") + b"\x93.", r"'os.sys\ntem\x1b[2J'"),
    "an append to a dict": (b"\x80\x02}Na.", "appends"),
    "an item of a list": (b"\x80\x02]NNs.", "item"),
    "an unhashable key": (b"\x80\x02}]Ns.", "list for a key"),
    "a dict's key that is a name": (b"\x80\x02}ctorch\nfloat32\nNs.", "Global for a key"),
    "an unhashable key in a tuple": (b"\x80\x02}]\x85Ns.", "tuple for a key"),
    "an unknown memo": (b"\x80\x02h\x05.", "pickle"),
    "an empty stack": (b"\x80\x02.", "pickle"),
    "two values": (b"\x80\x02NN.", "unfinished"),
    "a mark at the end": (b"\x80\x02(.", "value is missing"),
    "a mark in a tuple": (b"\x80\x02(\x85.", "value is missing"),
    "no end": (b"\x80\x02N", "pickle"),
    "more after its end": (b"\x80\x02N.N.", "bytes follow"),
    "an unknown operation": (b"\x80\x02\xff.", "pickle"),
    "no pickle": (b"<html>", "pickle"),
    "nothing": (b"", "pickle"),
    "a text longer than the file": (b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7f.", "pickle"),
    "a frame longer than the file": (b"\x80\x04\x95" + b"\xff" * 7 + b"\x7fN.", "archive"),
    "a numpy scalar of objects": (
        pickle.dumps(np.float64(1)).replace(b"f8", b"O8"), "O8",
    ),
    "a numpy scalar cut short": (
        b"\x80\x02cnumpy.core.multiarray\nscalar\ncnumpy\ndtype\n" + text("f8") + b"\x89\x88\x87R"
        b"c_codecs\nencode\n" + text("abc") + text("latin1") + b"\x86R\x86R.", "pickle",
    ),
    "bytes by another codec": (
        b"\x80\x02c_codecs\nencode\n" + text("abc") + text("hex") + b"\x86R.", "spelt",
    ),
    "a zero-filled bytearray": (b"\x80\x02c__builtin__\nbytearray\nJ\0\0\0\x7f\x85R.", "bytearray"),
    "a set of lists": (b"\x80\x02}" + text("s") + b"c__builtin__\nset\n]]a\x85Rs.", "set of"),
    "items for a set of a number": (
        b"\x80\x04" + b"cbuiltins\nset\nK\x01\x85R(K\x01\x90.", "no list"),
    "a deep tuple in a set": (
        b"\x80\x02}" + text("s") + b"c__builtin__\nset\n](" + DEEP + b"e\x85Rs.", "set of"),
    "a deep tuple as a key": (b"\x80\x02}" + DEEP + b"Ns.", "tuple for a key"),
    "a deep tuple as a key of pairs": (
        b"\x80\x02ccollections\nOrderedDict\n](" + DEEP + b"N\x86e\x85R.", "no pairs"),
    "a deep tuple as a name": (b"\x80\x04" + DEEP + b"\x8c\x01x\x93.", "no text"),
    "a deep tuple as a type": (b"\x80\x02cnumpy\ndtype\n" + DEEP + b"\x85R.", "no name"),
    "a deep tuple as a state": (
        b"\x80\x02cnumpy\ndtype\n" + text("f8") + b"\x85RN" + DEEP + b"\x86b.", "sets the state"),
    "a device that is none": (
        b"\x80\x02}" + text("d") + DEVICE + text("nowhere") + b"\x85Rs.", "torch.device"),
    "a device too far": (
        b"\x80\x02}" + text("d") + DEVICE + text("cuda") + b"M\x00\x01\x86Rs.", "torch.device"),
    "a size of two": (b"\x80\x02}" + text("d") + b"ctorch\nSize\nK\x01K\x02\x86Rs.", "torch.Size"),
    "a size of a number": (b"\x80\x02}" + text("d") + b"ctorch\nSize\nK\x01\x85Rs.", "torch.Size"),
    "a layout that is none": (
        b"\x80\x02}" + text("d") + b"ctorch.serialization\n_get_layout\n" + text("x") + b"\x85Rs.",
        "_get_layout"),
    "versions that are a list": (
        b"\x80\x02}" + text("d") + ORDERED + b"}" + text("_metadata") + b"]sbs.", "attributes"),
    "versions of a list": (
        b"\x80\x02}" + text("d") + ORDERED + b"}" + text("_metadata") + b"}" + text("") + b"]ssbs.",
        "versions"),
    "another attribute": (
        b"\x80\x02}" + text("d") + ORDERED + b"}" + text("load") + b"}sbs.", "attributes"),
}  # fmt: skip


@pytest.mark.parametrize("case", ODD)
def test_odd_pickles_are_refused_in_one_sentence(tmp_path: Path, case: str) -> None:
    data, word = ODD[case]
    path = archive(tmp_path / "upload.pt", data)
    if word == "archive":  # frames are advice; what is in them counts
        with pytest.raises(UnsupportedCheckpoint, match="single value"):
            open_checkpoint(path)
        return
    with pytest.raises(Refusal) as caught:
        open_checkpoint(path)
    assert str(path) in str(caught.value) and word in str(caught.value)
    assert "\n" not in str(caught.value)


def laughs(times: int) -> bytes:
    """A list of ten of a list of ten of …, by memo: 10 to the power of `times` leaves."""
    data = b"\x80\x02]q\x00"
    for level in range(times):
        get = b"h" + bytes([level])
        data += b"](" + get * 10 + b"e" + b"q" + bytes([level + 1])
    return data + b"."


BOMBS = {
    "ten billion leaves": laughs(10),
    "ten billion leaves with values": laughs(10).replace(b"]q\x00", b"](NNNeq\x00"),
    "a list that holds itself": b"\x80\x02]q\x00(h\x00h\x00e.",
    "a dict that holds itself": b"\x80\x02}q\x00" + text("d") + b"h\x00s.",
    "100,000 tuples in each other": b"\x80\x02N" + b"\x85" * 100_000 + b".",
    "attributes that hold themselves":
        b"\x80\x02ccollections\nOrderedDict\n)R}q\x00" + text("d") + b"h\x00sb.",
    "an enormous integer": b"\x80\x02\x8b\x00\x00\x10\x00" + b"\x7f" * (1 << 20) + b".",
    "a text a hundred thousand times":
        b"\x80\x02]" + text("x" * 10_000) + b"q\x000(" + b"h\x00" * 100_000 + b"e.",
    "an enormous decimal integer": b"I" + b"9" * 100_000 + b"\n.",
    "a key of a million characters": b"\x80\x02}" + text("k" * 1_000_000) + b"Ns.",
}  # fmt: skip


@pytest.mark.parametrize("case", BOMBS)
def test_a_small_file_cannot_take_much_memory_or_time(tmp_path: Path, case: str) -> None:
    path = archive(tmp_path / "upload.pt", BOMBS[case])
    with pytest.raises(Refusal, match=r"upload\.pt"):
        open_checkpoint(path)


def test_a_pickle_of_empty_dicts_ends_at_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpickle, "MAX_OBJECTS", 1000)
    data = b"\x80\x02](" + b"}" * 999 + b"e."
    with open_checkpoint(archive(tmp_path / "upload.pt", data)) as checkpoint:
        assert not checkpoint.rest
    path = archive(tmp_path / "more.pt", data.replace(b"(}", b"(}}"))
    with pytest.raises(UnsupportedCheckpoint, match="beyond any state_dict"):
        open_checkpoint(path)


JSON_BOMBS = {
    "numbers": b'{"x": [' + b"1," * 1_000_001 + b"1]}",
    "objects": b'{"x": [' + b"{}," * 250_001 + b"1]}",
    "lists": b'{"x": ' + b"[" * 250_001,
    "strings": b'{"x": [' + b'"",' * 1_000_001 + b"1]}",
    "bytes": b'{"x": "' + b"a" * (16 << 20) + b'"}',
    "an integer": b'{"x": ' + b"9" * 4000 + b"}",
}


@pytest.mark.parametrize("case", JSON_BOMBS)
def test_json_cannot_take_much_memory(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "upload.json").write_bytes(JSON_BOMBS[case])
    if case != "an integer":
        monkeypatch.setattr(json, "loads", None)  # it is refused before
    with pytest.raises(UnsupportedCheckpoint, match=r"upload\.json cannot be merged"):
        open_checkpoint(tmp_path / "upload.json")


def test_a_header_cannot_take_much_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = b'{"x":{"a":[' + b"{}," * 1_000_001 + b"{}]}}"
    path = tmp_path / "upload.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    monkeypatch.setattr(json, "loads", None)
    with pytest.raises(UnsupportedCheckpoint, match="its header is JSON of more than"):
        open_checkpoint(path)


def test_a_name_of_many_that_is_there_twice_is_found_at_once(tmp_path: Path) -> None:
    names = b",".join(b'"%d":0' % n for n in range(200_000))
    (tmp_path / "upload.json").write_bytes(b"{" + names + b',"199999":0}')
    with pytest.raises(DamagedCheckpoint, match="'199999' twice"):
        open_checkpoint(tmp_path / "upload.json")


def test_a_memo_of_large_numbers_takes_no_memory(tmp_path: Path) -> None:
    data = b"\x80\x02}" + text("w") + b"Nr" + struct.pack("<I", 2**32 - 1) + b"s."
    with open_checkpoint(archive(tmp_path / "upload.pt", data)) as checkpoint:
        assert dict(checkpoint.rest) == {"w": None}


def tensor(
    offset: int = 0, shape: tuple[int, ...] = (2,), strides: tuple[int, ...] = (1,), count: int = 2
) -> bytes:
    """The pickle of `{"w": tensor}` over a float storage of `count` elements."""

    def sizes(values: tuple[int, ...]) -> bytes:
        return pickle.dumps(values, 2)[2:-1]

    return (
        b"\x80\x02}" + text("w") + b"ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage")
        + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + pickle.dumps(count, 2)[2:-1]
        + b"tQ" + pickle.dumps(offset, 2)[2:-1] + sizes(shape) + sizes(strides)
        + b"\x89ccollections\nOrderedDict\n)RtRs."
    )  # fmt: skip


GEOMETRY = {
    "beyond its storage": (tensor(shape=(3,)), "reaches beyond"),
    "beyond by its offset": (tensor(offset=1), "reaches beyond"),
    "beyond by its strides": (tensor(strides=(5,)), "reaches beyond"),
    "before its storage": (tensor(offset=-1), "no view"),
    "a negative stride": (tensor(strides=(-1,)), "sizes"),
    "a negative size": (tensor(shape=(-2,)), "sizes"),
    "sizes beyond any": (tensor(shape=(2**70,), strides=(0,)), "sizes"),
    "strides of another length": (tensor(strides=(1, 1)), "number of strides"),
    "a storage of another size": (tensor(count=3), "8 bytes, not 12"),
    "a storage of a negative size": (tensor(count=-1), "unknown way"),
    "a hundred dimensions": (tensor(shape=(1,) * 100, strides=(1,) * 100), "sizes"),
}


@pytest.mark.parametrize("case", GEOMETRY)
def test_tensors_cannot_reach_beyond_their_bytes(tmp_path: Path, case: str) -> None:
    data, word = GEOMETRY[case]
    with open_checkpoint(archive(tmp_path / "good.pt", tensor(), **{"0": bytes(8)})) as good:
        assert list(good.entries) == ["w"]
    path = archive(tmp_path / "upload.pt", data, **{"0": bytes(8)})
    with pytest.raises(DamagedCheckpoint, match=word):
        open_checkpoint(path)


EXPANDED: list[tuple[str, dict[str, torch.Tensor]]] = [
    ("one", {"w": torch.zeros(1).expand(1 << 44)}),
    ("a row", {"w": torch.zeros(512).expand(1 << 20, 512)}),
    ("many", {f"w{n}": torch.zeros(1).expand(1 << 20) for n in range(100)}),
    ("windows", {"w": torch.zeros(1 << 15).as_strided((1 << 14, 1 << 14), (1, 1))}),
]


@pytest.mark.parametrize("case", EXPANDED, ids=lambda case: case[0])
def test_a_small_file_cannot_hold_a_tensor_that_takes_for_ever(
    tmp_path: Path, case: tuple[str, dict[str, torch.Tensor]]
) -> None:
    path = tmp_path / "upload.pt"
    torch.save(case[1], path)
    with pytest.raises(UnsupportedCheckpoint, match=r"upload\.pt.*'w.*save what"):
        open_checkpoint(path)


def test_members_and_shards_cannot_share_it_out(tmp_path: Path) -> None:
    inner = io.BytesIO()
    torch.save({"w": torch.zeros(1).expand(1 << 25)}, inner)
    with zipfile.ZipFile(tmp_path / "upload.zip", "w") as made:
        made.writestr("policy.pth", inner.getvalue())
    with open_checkpoint(tmp_path / "upload.zip") as one:
        assert one.entries["policy.w"].nbytes == 1 << 27
    names = [f"{n}.pth" for n in range(4)]
    with zipfile.ZipFile(tmp_path / "upload.zip", "a") as made:
        for name in names:
            made.writestr(name, inner.getvalue())
    with pytest.raises(UnsupportedCheckpoint, match="unfold to far more"):
        open_checkpoint(tmp_path / "upload.zip")
    folder = tmp_path / "shards"
    folder.mkdir()
    for name in names:
        torch.save({name[0]: torch.zeros(1).expand(1 << 25)}, folder / name)
    index = {"weight_map": {name[0]: name for name in names}}
    (folder / "m.index.json").write_text(json.dumps(index))
    with pytest.raises(UnsupportedCheckpoint, match="unfold to far more"):
        open_checkpoint(folder)


def test_expanded_and_tied_tensors_of_an_honest_size_are_read(tmp_path: Path) -> None:
    weight = torch.randn(300, 200)
    value = {"w": weight, "tied": weight, "bias": torch.zeros(1).expand(1 << 20), "no": weight[:0],
             "slices": {n: weight[n:] for n in range(100)}, "t": weight.t()}  # fmt: skip
    torch.save(value, tmp_path / "upload.pt")
    with open_checkpoint(tmp_path / "upload.pt") as checkpoint:
        assert len(checkpoint.entries) == 105


MIB = 1 << 20


def placed(source: Source, key: str, size: int, owner: str = "") -> Entry:
    return Entry(key, key, "uint8", (size,), size, 1, owner or key, Place(source, 0, (1,), True))


def test_tensors_may_be_twice_their_files_and_tied_ones_count_once(tmp_path: Path) -> None:
    with open(tmp_path / "large", "wb") as file:
        file.truncate(1000 * MIB)  # zeros that take no room
    source = Source(str(tmp_path / "large"))
    most = [placed(source, "a", 1200 * MIB), placed(source, "b", 800 * MIB)]
    tied = [placed(source, f"tied {n}", 1200 * MIB, "a") for n in range(3)]
    assert unfolded({entry.key: entry for entry in (*most, *tied)}) is None
    more = [*most, placed(source, "c", 1)]
    assert unfolded({entry.key: entry for entry in more}) == ("a", 1200 * MIB)
    source.close()


def test_a_storage_has_one_type(tmp_path: Path) -> None:
    """torch would read both tensors with the type that comes first."""
    one = tensor()[3:-2].replace(b"FloatStorage", b"IntStorage").replace(text("w"), text("v"))
    data = tensor()[:-1] + one + b"s."
    path = archive(tmp_path / "upload.pt", data, **{"0": bytes(8)})
    with pytest.raises(DamagedCheckpoint, match="storage '0' has two types"):
        open_checkpoint(path)


def test_integers_have_no_gradient(tmp_path: Path) -> None:
    data = tensor().replace(b"FloatStorage", b"IntStorage")
    with open_checkpoint(archive(tmp_path / "good.pt", data, **{"0": bytes(8)})) as good:
        assert good.entries["w"].dtype == "int32"
    data = data.replace(b"\x89ccoll", b"\x88ccoll")
    path = archive(tmp_path / "upload.pt", data, **{"0": bytes(8)})
    with pytest.raises(UnsupportedCheckpoint, match="int32 with a gradient"):
        open_checkpoint(path)


def test_a_tensor_without_bytes_is_missed(tmp_path: Path) -> None:
    path = archive(tmp_path / "upload.pt", tensor())
    with pytest.raises(DamagedCheckpoint, match="bytes of 'w' are missing"):
        open_checkpoint(path)


REFUSED = {
    "_rebuild_sparse_tensor": lambda: torch.eye(2).to_sparse(),
    "_rebuild_qtensor": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    "_rebuild_meta_tensor_no_storage": lambda: torch.ones(2, device="meta"),
    "resolve_conj": lambda: torch.ones(2, dtype=torch.complex64).conj(),
    "Storage": lambda: torch.ones(2).untyped_storage(),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("word", REFUSED)
def test_tensors_of_other_kinds_are_refused(tmp_path: Path, word: str) -> None:
    torch.save({"w": REFUSED[word]()}, tmp_path / "upload.pt")
    with pytest.raises(Refusal, match=word):
        open_checkpoint(tmp_path / "upload.pt")


# -- anything at all


def look(path: Path) -> None:
    """Open a checkpoint and read all of it; whatever it is, errors are the project's."""
    try:
        with open_checkpoint(path) as checkpoint:
            for key, entry in checkpoint.entries.items():
                size = min(entry.nbytes, 1 << 16) // entry.itemsize * entry.itemsize
                checkpoint.read_into(key, 0, size, memoryview(bytearray(size)))
            small = sum(entry.nbytes for entry in checkpoint.entries.values()) < 1 << 16
    except FleetError as error:
        assert str(path) in str(error) and "\n" not in str(error)
        return
    if small:
        out = path.with_name("out")
        out.unlink(missing_ok=True)
        copy(path, out)
        torch.load(out, weights_only=True)  # what was admitted must not spoil the output for others


def _seed() -> bytes:
    file = io.BytesIO()
    value = {"a": torch.ones(3, 2).t(), "b": {"n": np.float64(1), "s": {1}, "l": [1, "x", None]}}
    torch.save(value | {"m": torch.nn.Linear(1, 1).state_dict()}, file)
    return file.getvalue()


SEED = _seed()
with zipfile.ZipFile(io.BytesIO(SEED)) as _archive:
    PICKLE = _archive.read("archive/data.pkl")


@pytest.mark.filterwarnings("ignore:invalid escape")
@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.integers(0, len(SEED) - 1), st.integers(0, 255)), min_size=1, max_size=4)
)
def test_changed_bytes_never_lead_to_anything_but_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    data = bytearray(SEED)
    for at, value in changes:
        data[at] = value
    path = tmp_path_factory.getbasetemp() / "changed.pt"
    path.write_bytes(data)
    look(path)


@pytest.mark.filterwarnings("ignore:invalid escape")
@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(st.integers(0, len(PICKLE) - 1), st.sampled_from(range(256)), st.integers(0, 3)),
        min_size=1,
        max_size=5,
    )
)
def test_changed_pickles_never_lead_to_anything_but_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int, int]]
) -> None:
    data = bytearray(PICKLE)
    for at, value, length in changes:
        data[at : at + length] = bytes([value])
    path = archive(tmp_path_factory.getbasetemp() / "changed.pt", bytes(data), **{"0": bytes(24)})
    look(path)


@settings(max_examples=100)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_in_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(data)
    look(path)
