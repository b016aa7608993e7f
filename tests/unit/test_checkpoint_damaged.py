"""Files that were cut, padded, garbled or never were a checkpoint: refused by name, before use."""

from __future__ import annotations

import json
import os
import re
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fedavg.checkpoint import DamagedCheckpoint, UnsupportedCheckpoint, open_checkpoint
from fsworker.errors import FormatError, StorageError

pytestmark = pytest.mark.unit

SAVED = {"a": torch.arange(50.0), "b": {"c": torch.ones(3, 3), "n": 4}}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file of torch.save."""
    path = tmp_path_factory.mktemp("whole") / "upload.pt"
    torch.save(SAVED, path)
    with open_checkpoint(path) as checkpoint:
        assert list(checkpoint.entries) == ["a", "b.c"]
    return path.read_bytes()


def refused(path: Path, word: str, error: type[Exception] = FormatError) -> str:
    with pytest.raises(error) as caught:
        open_checkpoint(path)
    message = str(caught.value)
    assert str(path) in message and re.search(word, message), message
    assert "\n" not in message
    return message


def test_a_cut_file_is_refused_wherever_it_was_cut(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "upload.pt"
    for length in [*range(0, len(whole), 37), *range(len(whole) - 120, len(whole))]:
        path.write_bytes(whole[:length])
        refused(path, "damaged|cannot be merged")


def end(data: bytes) -> int:
    """Where the record at the end of an archive begins."""
    return data.rindex(b"PK\x05\x06")


def patched(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda d: b"", "it is empty"),
    "zeros behind": (lambda d: d + bytes(512), "it was cut, or bytes follow its end"),
    "one byte behind": (lambda d: d + b"\n", "bytes follow its end"),
    "bytes before": (lambda d: b"#!/bin/sh\n" + d, "neither"),
    "a copy behind": (lambda d: d + d, "record is not where"),
    "bytes lost in the middle": (lambda d: d[:1000] + d[1100:], "speaks of|not where"),
    "bytes added in the middle": (lambda d: d[:1000] + bytes(64) + d[1000:], "not where"),
    "zeros from the middle": (lambda d: d[:900] + bytes(len(d) - 900), "it was cut"),
    "zeros at its beginning": (lambda d: bytes(700) + d[700:], "begins with zeros"),
    "a comment at the end": (lambda d: patched(d, end(d) + 20, b"\x01\x00") + b"x", "bytes follow"),
    "a garbled directory": (lambda d: d.replace(b"PK\x01\x02", b"PK\x01\x03"), "garbled"),
    "a garbled local header": (
        lambda d: patched(d, d.index(b"upload/data/0") - 30, b"XX"), "data/0' is not where"),
    "another name in a local header": (
        lambda d: patched(d, d.index(b"upload/data/1"), b"upload/data/7"), "not where"),
    "one name for two": (lambda d: d.replace(b"upload/data/1", b"upload/data/0"), "two members"),
    "a name of no encoding": (
        lambda d: d.replace(b"upload/data/1", b"upload/dat\xff/1"), "name is"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_archive_is_refused_by_what_is_wrong(
    tmp_path: Path, whole: bytes, case: str
) -> None:
    damage, word = DAMAGE[case]
    (tmp_path / "upload.pt").write_bytes(damage(whole))
    refused(tmp_path / "upload.pt", word)


def rezipped(path: Path, whole: Path, **how: Any) -> Path:
    """The members of `whole` as another tool would pack them."""
    with zipfile.ZipFile(whole) as old, zipfile.ZipFile(path, "w", **how) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return path


def test_archives_of_other_tools_are_read_if_they_are_stored(tmp_path: Path, whole: bytes) -> None:
    (tmp_path / "whole.pt").write_bytes(whole)
    with open_checkpoint(rezipped(tmp_path / "stored.pt", tmp_path / "whole.pt")) as checkpoint:
        assert checkpoint.rest == {"b.n": 4}
    packed = tmp_path / "packed.pt"
    rezipped(packed, tmp_path / "whole.pt", compression=zipfile.ZIP_DEFLATED)
    refused(packed, "'upload/data.pkl' is compressed or encrypted", UnsupportedCheckpoint)


def test_members_that_share_bytes_are_refused(tmp_path: Path) -> None:
    """Two entries for one member, as archives have them that unpack to any size."""
    path = tmp_path / "upload.pt"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("archive/data.pkl", b"\x80\x02}.")
        made.writestr("archive/data/0", bytes(100))
        made.filelist.append(made.filelist[-1])
    refused(path, "two members")
    data = path.read_bytes()
    start = struct.unpack_from("<I", data, end(data) + 16)[0]
    first = data.index(b"PK\x01\x02", start)
    second = data.index(b"PK\x01\x02", first + 1)
    path.write_bytes(patched(data, second + 42, struct.pack("<I", 0)))
    refused(path, "not where|two members")


def test_a_storage_of_another_length_is_refused(tmp_path: Path, whole: bytes) -> None:
    (tmp_path / "whole.pt").write_bytes(whole)
    path = tmp_path / "upload.pt"
    with zipfile.ZipFile(tmp_path / "whole.pt") as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, data[:-4] if name.endswith("data/0") else data)
    refused(path, "storage of 'a' has 196 bytes, not 200", DamagedCheckpoint)


def legacy(path: Path) -> None:
    torch.save(SAVED, path, _use_new_zipfile_serialization=False)


def scripted(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as made:
        for name in ("m/data.pkl", "m/constants.pkl", "m/code/__torch__.py"):
            made.writestr(name, b"\x80\x02N.")


def big_endian(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("m/data.pkl", b"\x80\x02}.")
        made.writestr("m/byteorder", b"big")


def tar(path: Path) -> None:
    with tarfile.open(path, "w") as made:
        made.add(__file__, "storages")


def other_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("a/data.pkl", b"")
        made.writestr("b/data.pkl", b"")


def single(path: Path) -> None:
    torch.save(torch.ones(3), path)


def bare_pickle(path: Path) -> None:
    path.write_bytes(b"\x80\x04\x95cos\nsystem\n.")


def html(path: Path) -> None:
    path.write_bytes(b"<html><body>502 Bad Gateway</body></html>")


OTHERS: list[tuple[Callable[[Path], Any], str]] = [
    (legacy, "form from before 1.6"),
    (scripted, "TorchScript"),
    (big_endian, "big-endian"),
    (tar, "neither"),
    (other_zip, "2 data.pkl"),
    (single, "single value"),
    (bare_pickle, "bare pickle"),
    (html, "neither"),
    (os.mkfifo, "no regular file"),
    (os.mkdir, r"0 files \*\.index\.json"),
    (lambda path: os.symlink(path, path), "levels of symbolic links|symbolic link"),
    (lambda path: None, "no checkpoint"),
]


@pytest.mark.parametrize(("make", "word"), OTHERS, ids=[word for _, word in OTHERS])
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, make: Any, word: str) -> None:
    make(tmp_path / "upload.pt")
    with pytest.raises((FormatError, StorageError)) as caught:
        open_checkpoint(tmp_path / "upload.pt")
    assert str(tmp_path / "upload.pt") in str(caught.value)
    assert re.search(word, str(caught.value))


def test_a_file_that_is_cut_while_it_is_read_is_refused_not_mapped(
    tmp_path: Path, whole: bytes
) -> None:
    path = tmp_path / "upload.pt"
    path.write_bytes(whole)
    with open_checkpoint(path) as checkpoint:
        os.truncate(path, 500)
        with pytest.raises(DamagedCheckpoint, match="within its data"):
            checkpoint.read_into("a", 0, 200, memoryview(bytearray(200)))


# -- safetensors


def safetensors(header: object, size: int, *, text: bytes | None = None) -> bytes:
    raw = json.dumps(header).encode() if text is None else text
    return len(raw).to_bytes(8, "little") + raw + bytes(size)


def one(dtype: object = "F32", shape: object = (2,), span: object = (0, 8)) -> dict[str, object]:
    return {"w": {"dtype": dtype, "shape": shape, "data_offsets": span}}


TENSORS: dict[str, tuple[bytes, str]] = {
    "cut": (safetensors(one(), 7), "it has 76 bytes, its header says 77"),
    "padded": (safetensors(one(), 9), "78 bytes, its header says 77"),
    "cut in its header": (safetensors(one(), 8)[:40], "40 bytes, its header needs 69"),
    "a gap": (safetensors(one(span=(4, 12)), 12), "leaves a gap"),
    "an overlap": (safetensors(one() | {"v": one(span=(4, 12))["w"]}, 12), "overlaps"),
    "the wrong length": (safetensors(one(shape=(3,)), 8), r"8 bytes for shape \(3,\)"),
    "an unknown type": (safetensors(one(dtype="F6_E2M3"), 8), "F6_E2M3"),
    "a negative size": (safetensors(one(shape=(-2,)), 8), "garbles 'w'"),
    "a size that is true": (safetensors(one(shape=(True, 2)), 8), "garbles"),
    "a size with a fraction": (safetensors(one(shape=(2.0,)), 8), "garbles"),
    "offsets backwards": (safetensors(one(span=(8, 0)), 8), "-8 bytes"),
    "three offsets": (safetensors(one(span=(0, 8, 8)), 8), "garbles"),
    "no fields": (safetensors({"w": 5}, 8), "garbles"),
    "one name twice": (
        safetensors(None, 8, text=b'{"w":' + json.dumps(one()["w"]).encode() + b',"w":5}'), "twice",
    ),
    "a list": (safetensors(None, 0, text=b"{" * 3), "no JSON"),
    "deep": (safetensors(None, 0, text=b'{"a":' * 100_000), "nested too deep|no JSON"),
    "metadata of numbers": (safetensors({"__metadata__": {"n": 1}}, 0), "more than strings"),
    "metadata nobody can write": (
        safetensors({"__metadata__": {"n": "\ud800"}} | one(), 8), "more than strings that can be",
    ),
    "a name of metadata nobody can write": (
        safetensors({"__metadata__": {"\ud800": "n"}} | one(), 8), "more than strings that can be",
    ),
    "an enormous header": (b"\xff" * 3 + bytes(5) + b"{" + bytes(100), "header needs"),
    "a name nobody can write": (safetensors({"\ud800": one()["w"]}, 8), "garbles"),
}  # fmt: skip


@pytest.mark.parametrize("case", TENSORS)
def test_damaged_safetensors_are_refused(tmp_path: Path, case: str) -> None:
    data, word = TENSORS[case]
    (tmp_path / "upload.pt").write_bytes(data)
    refused(tmp_path / "upload.pt", word)


# -- JSON

DOCUMENTS = {
    "cut": (b'{"q": [1, 2', "no JSON"),
    "a name twice": (b'{"q": 1, "q": 2}', "'q' twice"),
    "more behind": (b'{"q": 1} {}', "no JSON"),
    "not text": (b'{"q": "\xff"}', "no JSON"),
    "a number beyond 64 bits": (b'{"q": [1, 99999999999999999999]}', "beyond int64"),
    "deep": (b'{"q": ' + b"[" * 100_000, "nested too deep"),
    "deep and regular": (b'{"q": ' + b"[" * 200 + b"1" + b"]" * 200 + b"}", "nested too deep"),
    "one key in two spellings": (b'{"q": {"w": 1.5}, "q.w": 2.5}', r"\['q'\]\['w'\] and \['q.w'\]"),
}


@pytest.mark.parametrize("case", DOCUMENTS)
def test_damaged_json_is_refused(tmp_path: Path, case: str) -> None:
    data, word = DOCUMENTS[case]
    (tmp_path / "upload.json").write_bytes(data)
    refused(tmp_path / "upload.json", word)


# -- shards


def index(folder: Path, weight_map: object, name: str = "model.safetensors.index.json") -> None:
    (folder / name).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    folder = tmp_path / "upload"
    folder.mkdir()
    save_file({"a": torch.ones(1)}, folder / "1.safetensors")
    save_file({"b": torch.ones(1), "c": torch.ones(2)}, folder / "2.safetensors")
    index(folder, {"a": "1.safetensors", "b": "2.safetensors", "c": "2.safetensors"})
    with open_checkpoint(folder) as checkpoint:
        assert list(checkpoint.entries) == ["a", "b", "c"]
    return folder


MAPS = {
    "a missing shard": (
        {"a": "1.safetensors", "b": "3.safetensors"},
        "'3.safetensors', which is missing",
    ),
    "a path upwards": ({"a": "../1.safetensors"}, "no file beside it"),
    "an absolute path": ({"a": "/etc/passwd"}, "no file beside it"),
    "a path downwards": ({"a": "x/1.safetensors"}, "no file beside it"),
    "a hidden file": ({"a": ".1.safetensors"}, "no file beside it"),
    "the index itself": ({"a": "model.safetensors.index.json"}, "no file beside it"),
    "a number": ({"a": 1}, "no file beside it"),
    "no name": ({"a": ""}, "no file beside it"),
    "a key in the wrong shard": (
        {"a": "2.safetensors", "b": "2.safetensors", "c": "1.safetensors"},
        "'a' should be in 2.safetensors",
    ),
    "a key too few": (
        {"a": "1.safetensors", "b": "2.safetensors"},
        "has 'c', which it does not name",
    ),
    "a key too many": (
        {"a": "1.safetensors", "b": "2.safetensors", "c": "2.safetensors", "d": "1.safetensors"},
        "'d' should be in 1.safetensors",
    ),
    "two spellings": ({"a": "1.safetensors", "module.a": "1.safetensors"}, "'a' and 'module.a'"),
    "no shards": ({}, "no weight_map"),
    "a list": ([], "no weight_map"),
}


@pytest.mark.parametrize("case", MAPS)
def test_an_index_that_does_not_fit_is_refused(shards: Path, case: str) -> None:
    weight_map, word = MAPS[case]
    index(shards, weight_map)
    refused(shards, word)


def test_a_key_in_two_shards_is_refused(shards: Path) -> None:
    save_file({"a": torch.ones(1), "module.b": torch.ones(1)}, shards / "1.safetensors")
    refused(shards, "'b' is in 1.safetensors and in 2.safetensors")


def test_two_indexes_or_a_cut_shard_are_refused(shards: Path) -> None:
    os.truncate(shards / "2.safetensors", 100)
    refused(shards, r"2\.safetensors is damaged")
    index(shards, {"a": "1.safetensors"}, "other.index.json")
    refused(shards, "2 files")
