"""`.json`: what an agent without a network saves, such as a greedy or a random one.

An object of numbers and lists, nested at will. A list of numbers, or of lists of one length each,
is a tensor: int64 if all of its numbers are integers, else float64. A number with a fraction or an
exponent (`0.5`, `1.0`) is a tensor of its own. Integers, strings, true, false and null are none.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any

from fedavg.formats import keys
from fedavg.formats.base import Checkpoint, Entry, Plan
from fedavg.formats.contents import Put, Region
from fedavg.formats.errors import UnsupportedCheckpoint
from fedavg.formats.jsontext import parse
from fedavg.formats.source import Source
from fedavg.formats.unpickle import MAX_INT

MAX_FILE = 16 << 20
MAX_VALUES = 1_000_000
MAX_CONTAINERS = 250_000
"""What a file may have, since it is read at once: no more than 160 MiB of memory come of it."""
MAX_DIMENSIONS = 32
CODES = {"float64": "d", "int64": "q"}


def open_json(source: Source) -> JsonFile:
    """A JSON checkpoint; it is read at once, so that its size is limited."""
    if source.size > MAX_FILE:
        raise UnsupportedCheckpoint(
            source.path, f"it is JSON of {source.size} bytes; save tensors as safetensors"
        )
    limits = {"values": MAX_VALUES, "containers": MAX_CONTAINERS}
    tree = parse(source.read(0, source.size), "it", source.path, **limits)
    source.close()
    return JsonFile(source.path, tree)


class JsonFile(Checkpoint):
    """A JSON checkpoint. Numbers at the keys `floats` are float64 however they are spelt."""

    def __init__(
        self, path: str, tree: dict[str, Any], floats: frozenset[str] = frozenset()
    ) -> None:
        self._tree = tree
        entries: dict[str, Entry] = {}
        rest: dict[str, object] = {}
        for key, at, leaf in keys.leaves(tree, _children, path):
            if isinstance(leaf, (list, float)) or (type(leaf) is int and key in floats):
                entries[key] = _entry(key, at, leaf, path, key in floats)
            else:
                if isinstance(leaf, int) and leaf.bit_length() >= 8 * MAX_INT:
                    raise UnsupportedCheckpoint(path, f"{key!r:.200} is too large a number")
                rest[key] = leaf
        lists = dict(_lists(tree, None))
        super().__init__(path, "json", entries, rest, _read, _close, self._lay_out, lists)

    def whole(self) -> set[str]:
        """The keys of integers, and of tensors that have nothing else."""
        tensors = {key for key, entry in self.entries.items() if entry.dtype == "int64"}
        return tensors | {key for key, leaf in self.rest.items() if type(leaf) is int}

    def floating(self, floats: Iterable[str]) -> JsonFile:
        """The same with the numbers at these keys as float64: `0` says what `0.0` does.

        UnsupportedCheckpoint for a number that is beyond float64.
        """
        return JsonFile(self.path, self._tree, frozenset(floats))

    def _lay_out(self, replace: Mapping[str, object]) -> Plan:
        json.dumps(dict(replace), allow_nan=False)  # now, rather than when all is merged
        regions = {key: _Kept(key, entry.nbytes) for key, entry in self.entries.items()}
        content = _Document(self._tree, self.entries, regions, replace)
        return Plan({"": content}, regions, dict.fromkeys(regions, ""))


def _close() -> None:
    """Nothing is open: all of it was read."""


def _read(entry: Entry, start: int, stop: int, buffer: memoryview) -> None:
    buffer[:] = entry.place[start:stop]


def _children(node: object) -> Iterator[tuple[object, object]] | None:
    if isinstance(node, dict):
        return iter(node.items())
    if isinstance(node, list) and _shape(node) is None:
        return enumerate(node)
    return None


def _lists(node: object, key: str | None) -> Iterator[tuple[str, int]]:
    """(key, length) of each list; one of numbers has no lists of its own."""
    if isinstance(node, list):
        yield key or "", len(node)
    for part, child in _children(node) or ():
        yield from _lists(child, keys.join(key, part))


def _shape(node: object, depth: int = 0) -> tuple[int, ...] | None:
    """The shape of a number or of a regular list of numbers, None for anything else."""
    if type(node) in (int, float):
        return ()
    if not isinstance(node, list) or not node or depth > MAX_DIMENSIONS:
        return None
    first = _shape(node[0], depth + 1)
    if first is None or any(_shape(child, depth + 1) != first for child in node[1:]):
        return None
    return (len(node), *first)


def _flat(node: object) -> Iterator[int | float]:
    if isinstance(node, list):
        for child in node:
            yield from _flat(child)
    else:
        assert isinstance(node, (int, float))
        yield node


def _entry(key: str, path: keys.Path, leaf: object, where: str, floating: bool) -> Entry:
    shape, numbers = _shape(leaf), list(_flat(leaf))
    assert shape is not None
    whole = not floating and all(type(n) is int for n in numbers)
    dtype = "int64" if whole else "float64"
    try:
        data = struct.pack(f"<{len(numbers)}{CODES[dtype]}", *numbers)
    except (struct.error, OverflowError):
        raise UnsupportedCheckpoint(where, f"{key!r:.200} has a number beyond {dtype}") from None
    return Entry(key, keys.spelling(path), dtype, shape, len(data), 8, key, data)


class _Kept(Region):
    """A tensor that stays in memory until the document can be written."""

    def __init__(self, name: str, size: int) -> None:
        super().__init__(name, size, sums=False)
        self.data = bytearray(size)

    def write(self, put: Put, start: int, data: memoryview) -> None:
        """As `Region.write`, but nothing reaches the file."""
        super().write(self._keep, start, data)

    def _keep(self, offset: int, data: bytes | memoryview) -> None:
        self.data[offset : offset + len(data)] = data


class _Document:
    """The file, which has its bytes only when all tensors have theirs."""

    size = 0

    def __init__(
        self,
        tree: dict[str, Any],
        entries: Mapping[str, Entry],
        regions: Mapping[str, _Kept],
        replace: Mapping[str, object],
    ) -> None:
        self._tree, self._entries = tree, entries
        self._regions, self._replace = regions, replace

    def place(self, offset: int) -> None:
        """See Content."""

    def finish(self, put: Put) -> int:
        """Write it. ValueError where a tensor has no bytes, or is not finite."""
        for region in self._regions.values():
            region.finish(put)
        value = self._value(self._tree, None)
        put(0, json.dumps(value, allow_nan=False).encode("ascii") + b"\n")
        return 0

    def _value(self, node: object, key: str | None) -> object:
        inside = _children(node)
        if inside is None:
            return self._leaf(node, key or "")
        below = {part: self._value(child, keys.join(key, part)) for part, child in inside}
        return below if isinstance(node, dict) else list(below.values())

    def _leaf(self, node: object, key: str) -> object:
        entry = self._entries.get(key)
        if entry is None:
            return self._replace.get(key, node)
        code = f"<{prod(entry.shape)}{CODES[entry.dtype]}"
        return _nested(list(struct.unpack(code, self._regions[key].data)), entry.shape)


def _nested(numbers: list[Any], shape: tuple[int, ...]) -> object:
    if not shape:
        return numbers[0]
    step = prod(shape[1:])
    return [_nested(numbers[i : i + step], shape[1:]) for i in range(0, len(numbers), step)]
