"""Random state_dicts through reading and writing, and the parts that this is built of."""

from __future__ import annotations

import io
import os
import tracemalloc
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedavg.checkpoint import Writer, open_checkpoint
from fedavg.formats import strided
from fedavg.formats.contents import Fixed, Region
from fedavg.formats.zipwrite import ZipContent
from tests.support.checkpoints import copy, same, tensors_of

pytestmark = pytest.mark.unit

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.uint16,
]  # fmt: skip


class View(NamedTuple):
    """Some view of one of the storages, made by `tensor`."""

    storage: int
    whole: bool
    shape: list[int]
    strides: list[int]
    offset: int

    def tensor(self, storages: list[torch.Tensor]) -> torch.Tensor:
        """Overlapping, transposed, sliced, empty or whole, but within the storage."""
        storage = storages[self.storage]
        strides = self.strides[: len(self.shape)]
        span = sum((n - 1) * s for n, s in zip(self.shape, strides, strict=True)) + 1
        if self.whole:
            return storage
        if 0 in self.shape or span > storage.numel():
            return storage[self.offset % (storage.numel() + 1) :]
        return storage.as_strided(self.shape, strides, self.offset % (storage.numel() - span + 1))


SIZES = st.integers(0, 4)
VIEWS = st.builds(
    View,
    st.integers(0, 2),
    st.booleans(),
    st.lists(SIZES, max_size=4),
    st.lists(st.integers(0, 5), min_size=4, max_size=4),
    st.integers(0, 63),
)
STORAGES = st.lists(
    st.tuples(st.binary(min_size=64, max_size=64), st.sampled_from(DTYPES)), min_size=3, max_size=3
)
NAMES = st.text(st.characters(exclude_categories=()), max_size=4) | st.sampled_from(["w", "b", "0"])
PLAIN = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=()), max_size=5) | st.binary(max_size=5)
    | st.builds(np.float32, st.floats(width=32, allow_nan=False))
    | st.builds(np.int64, st.integers(-(2**63), 2**63 - 1))
)  # fmt: skip
LEAVES = VIEWS | VIEWS | PLAIN
INNER = st.lists(LEAVES, max_size=3) | st.dictionaries(NAMES, LEAVES, max_size=3)
TREES = (
    LEAVES
    | INNER.map(lambda v: OrderedDict(v) if isinstance(v, dict) else tuple(v))
    | st.dictionaries(st.integers(0, 3), INNER, max_size=2)
    | st.lists(INNER, max_size=2)
)
STATE_DICTS = st.dictionaries(NAMES, TREES, min_size=1, max_size=5)
"""Nested dicts and lists of tensors that share storages, and of other values."""


def built(value: Any, storages: list[torch.Tensor]) -> Any:
    """The value with tensors for views."""
    if isinstance(value, View):
        return value.tensor(storages)
    if isinstance(value, dict):
        return type(value)((key, built(inner, storages)) for key, inner in value.items())
    if isinstance(value, (list, tuple)):
        return type(value)(built(inner, storages) for inner in value)
    return value


def python(value: Any) -> Any:
    """The value with numpy's scalars as numbers: what an output holds."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return type(value)((key, python(inner)) for key, inner in value.items())
    return type(value)(map(python, value)) if isinstance(value, (list, tuple)) else value


def identical(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and same(left, right)
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        keys = list(left) == list(right)
        return keys and all(identical(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(identical, left, right))
    return bool(left == right)


def flat(value: Any, key: tuple[Any, ...] = ()) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (dict, list, tuple)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for part, inner in items:
            yield from flat(inner, (*key, part))
    else:
        yield ".".join(map(str, key)), value


@settings(max_examples=60)
@given(tree=STATE_DICTS, kinds=STORAGES, piece=st.integers(1, 40), seed=st.integers(0, 9))
def test_what_torch_saves_is_read_and_written_bit_by_bit(
    tmp_path_factory: pytest.TempPathFactory,
    tree: dict[Any, Any],
    kinds: list[tuple[bytes, torch.dtype]],
    piece: int,
    seed: int,
) -> None:
    arrays = [torch.from_numpy(np.frombuffer(data, "u1").copy()) for data, _ in kinds]
    storages = [
        (array & 1 if kind is torch.bool else array).view(kind)
        for array, (_, kind) in zip(arrays, kinds, strict=True)
    ]
    value = built(tree, storages)
    folder = tmp_path_factory.getbasetemp()
    path, out, again = folder / "saved.pt", folder / "out.pt", folder / "again.pt"
    names = [key for key, _ in flat(value)]
    prefixed = any(part.startswith(("module.", "_orig_mod.")) for part in names)
    if len(set(names)) < len(names) or prefixed:
        return  # refused, which other tests show
    torch.save(value, path)
    for target in (out, again):
        target.unlink(missing_ok=True)
    copy(path, out, piece=piece, seed=seed)
    copy(out, again, piece=1 << 20)
    assert again.read_bytes() == out.read_bytes()
    assert identical(python(value), torch.load(out, weights_only=True))
    found = tensors_of(path)
    expected = {key: leaf for key, leaf in flat(value) if isinstance(leaf, torch.Tensor)}
    assert found.keys() == expected.keys()
    assert all(same(found[key], expected[key]) for key in expected)
    assert zipfile.ZipFile(out).testzip() is None


@settings(max_examples=150)
@given(st.data())
def test_boxes_are_a_range_in_row_major_order(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), max_size=4)))
    total = prod(shape)
    start = data.draw(st.integers(0, total))
    stop = data.draw(st.integers(start, total))
    numbers = np.arange(total).reshape(shape)
    found: list[int] = []
    for origin, size in strided.boxes(shape, start, stop):
        box = tuple(slice(o, o + n) for o, n in zip(origin, size, strict=True))
        found += numbers[box].reshape(-1).tolist()
    assert found == list(range(start, stop))


@pytest.mark.parametrize("make", [
    lambda t: t.t(), lambda t: t[:, ::2], lambda t: t[::3, 5:9], lambda t: t.view(-1)[::999],
    lambda t: t.view(64, 64, 8, 32).permute(3, 1, 0, 2), lambda t: t[:1].expand(2000, 1024),
    lambda t: t.view(2, -1)[:, :5].t(), lambda t: t[7:9].t(),
])  # fmt: skip
def test_large_strided_tensors_are_read_with_bounded_reads(
    tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = make(torch.arange(1 << 20, dtype=torch.int32).reshape(1024, 1024))
    torch.save({"w": tensor}, tmp_path / "saved.pt")
    sizes: list[int] = []
    real = os.preadv

    def preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
        sizes.append(len(buffers[0]))
        return real(fd, buffers, offset)

    with open_checkpoint(tmp_path / "saved.pt") as checkpoint:
        monkeypatch.setattr(os, "preadv", preadv)
        piece = max(1, tensor.numel() // 3 + 1) * 4
        data = bytearray(tensor.numel() * 4)
        for start in range(0, len(data), piece):
            stop = min(start + piece, len(data))
            checkpoint.read_into("w", start, stop, memoryview(data)[start:stop])
    assert same(torch.frombuffer(data, dtype=torch.int32).reshape(tensor.shape), tensor)
    assert max(sizes) <= strided.LARGE
    spans = 3 * 3  # each piece has up to three boxes: a head, whole rows, a tail
    assert sum(sizes) <= spans * (4 << 20)
    assert len(sizes) <= 3 * 1024, "hardly an element is read by itself"


@given(st.data(), st.lists(st.binary(max_size=300), max_size=6))
def test_pieces_in_any_order_give_the_checksum_of_the_whole(
    data: st.DataObject, parts: list[bytes]
) -> None:
    whole = b"".join(parts)
    written = bytearray(len(whole) + 7)
    region = Region("w", len(whole), sums=True)
    region.place(7)

    def put(at: int, piece: bytes | memoryview) -> None:
        written[at : at + len(piece)] = piece

    starts = [sum(map(len, parts[:i])) for i in range(len(parts))]
    for start, part in data.draw(st.permutations(list(zip(starts, parts, strict=True)))):
        region.write(put, start, memoryview(part))
    assert region.finish(put) == zlib.crc32(whole)
    assert written[7:] == whole


@settings(max_examples=50)
@given(st.lists(st.tuples(st.text("abc/ä", min_size=1, max_size=80), st.binary(max_size=200)),
                unique_by=lambda member: member[0], max_size=6), st.integers(0, 100))  # fmt: skip
def test_archives_are_what_zipfile_expects(members: list[tuple[str, bytes]], offset: int) -> None:
    content = ZipContent([(name, Fixed(data)) for name, data in members])
    file = io.BytesIO()

    def put(at: int, data: bytes | memoryview) -> None:
        file.seek(at)
        file.write(data)

    content.place(offset)
    crc = content.finish(put)
    data = file.getvalue()[offset:]
    assert (len(data), zlib.crc32(data)) == (content.size, crc)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in archive.namelist()} == dict(members)


def test_tensors_and_files_beyond_four_gigabytes(tmp_path: Path) -> None:
    """Sparse files: what is not written costs neither time nor disk."""
    size = (1 << 32) + 4096
    big = ZipContent([("archive/data/0", Huge(size)), ("archive/data/1", Fixed(b"last"))])
    path = tmp_path / "huge"
    with open(path, "wb") as file:

        def put(at: int, data: bytes | memoryview) -> None:
            file.seek(at)
            file.write(data)

        big.place(0)
        big.finish(put)
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("archive/data/0")
        assert (info.file_size, info.compress_size, info.CRC) == (size, size, 0)
        assert archive.read("archive/data/1") == b"last"


def test_a_file_of_torch_beyond_four_gigabytes_is_read(tmp_path: Path) -> None:
    path, size = tmp_path / "huge.pt", (1 << 32) + 4096
    with torch.serialization.skip_data():  # allocates, but touches and writes nothing
        torch.save({"a": torch.empty(size, dtype=torch.uint8), "b": torch.empty(4)}, path)
    assert path.stat().st_blocks * 512 < 1 << 20 < size < path.stat().st_size
    with open_checkpoint(path) as checkpoint:
        assert [entry.nbytes for entry in checkpoint.entries.values()] == [size, 16]
        with open(path, "r+b") as file:
            file.seek(checkpoint.entries["b"].place.offset)
            file.write(b"after 4 GiB data")
        data = bytearray(16)
        checkpoint.read_into("b", 0, 16, memoryview(data))
        assert data == b"after 4 GiB data"


def test_memory_does_not_grow_with_a_checkpoint(tmp_path: Path) -> None:
    path, out = tmp_path / "large.pt", tmp_path / "out.pt"
    with torch.serialization.skip_data():
        torch.save({f"layers.{i}.weight": torch.empty(1 << 20) for i in range(128)}, path)
    piece = memoryview(bytearray(1 << 20))
    tracemalloc.start()
    try:
        with open_checkpoint(path) as checkpoint:
            assert sum(entry.nbytes for entry in checkpoint.entries.values()) == 512 << 20
            opened = tracemalloc.get_traced_memory()[1]
            writer = Writer.create(str(out), checkpoint)
            for start in range(0, 4 << 20, len(piece)):
                checkpoint.read_into("layers.7.weight", start, start + len(piece), piece)
                writer.write("layers.7.weight", start, piece)
            worked = tracemalloc.get_traced_memory()[1]
            writer.abort()
    finally:
        tracemalloc.stop()
    assert opened < 2 << 20 and worked < 2 << 20


class Huge:
    """Bytes that nobody writes."""

    def __init__(self, size: int) -> None:
        self.size = size

    def place(self, offset: int) -> None:
        """See Content."""

    def finish(self, put: Any) -> int:
        """See Content."""
        return 0
