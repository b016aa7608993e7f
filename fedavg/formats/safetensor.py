"""`.safetensors`: eight bytes of length, a JSON header, and the tensors without gaps.

Read strictly: the header must account for every byte of the file exactly once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, TypeGuard

from fedavg.formats import keys
from fedavg.formats.base import Checkpoint, Entry, Plan
from fedavg.formats.contents import Fixed, Region, Sequenced
from fedavg.formats.dtypes import ITEMSIZE, SAFETENSORS
from fedavg.formats.errors import DamagedCheckpoint, UnsupportedCheckpoint
from fedavg.formats.jsontext import parse
from fedavg.formats.places import Place, read_place
from fedavg.formats.source import Source
from fedavg.formats.strided import row_major
from fsworker.errors import spelt

METADATA = "__metadata__"
MAX_HEADER = 64 << 20
LENGTH = 8
"""Bytes of the header's length, and what the header is padded to a multiple of."""


@dataclass(frozen=True, slots=True)
class _Header:
    """`tensors` are (name, fields) in the order of their bytes."""

    tensors: list[tuple[str, dict[str, Any]]]
    metadata: dict[str, str] | None
    begin: int


def looks_like(head: bytes, size: int) -> bool:
    """Whether the first 16 bytes of a file of `size` bytes can begin such a file."""
    length = int.from_bytes(head[:LENGTH], "little")
    return head[LENGTH : LENGTH + 1] == b"{" and length <= max(size, MAX_HEADER)


def open_safetensors(source: Source) -> Checkpoint:
    """A file of safetensors; its metadata are in `rest` as `__metadata__.<name>`."""
    header = _header(source)
    places = {name: number for number, (name, _) in enumerate(header.tensors)}
    keyed: dict[str, int] = {}
    for key, _, number in keys.leaves(places, _children, source.path):
        assert isinstance(number, int)
        keyed[key] = number
    return _checkpoint(source, header, keyed)


def open_named(source: Source) -> Checkpoint:
    """A file of this project's own: of any size, its keys the names as they stand there."""
    header = _header(source, limited=False)
    return _checkpoint(source, header, {name: n for n, (name, _) in enumerate(header.tensors)})


def _checkpoint(source: Source, header: _Header, keyed: Mapping[str, int]) -> Checkpoint:
    """The checkpoint whose tensors are at these numbers of the header, by their keys."""
    entries = {
        key: _entry(key, *header.tensors[number], header.begin, source)
        for key, number in keyed.items()
    }
    rest = {f"{METADATA}.{name}": value for name, value in (header.metadata or {}).items()}

    def plan(replace: Mapping[str, object]) -> Plan:
        content, regions = _lay_out(header, entries, replace)
        return Plan({"": content}, regions, dict.fromkeys(regions, ""))

    check = source.check_unchanged
    return Checkpoint(
        source.path, "safetensors", entries, rest, read_place, source.close, plan,
        check_unchanged=check,
    )  # fmt: skip


def _children(node: object) -> Iterator[tuple[object, object]] | None:
    return iter(node.items()) if isinstance(node, dict) else None


def _header(source: Source, *, limited: bool = True) -> _Header:
    """The header, its offsets checked to fill the file exactly."""
    length = int.from_bytes(source.read(0, LENGTH), "little")
    if limited and length > MAX_HEADER:
        raise UnsupportedCheckpoint(source.path, f"its header has {length} bytes; save shards")
    limits = {} if limited else {"values": length, "containers": length}
    found = parse(source.read(LENGTH, length), "its header", source.path, **limits)
    metadata = found.pop(METADATA, None)
    if metadata is not None and not _is_metadata(metadata):
        raise DamagedCheckpoint(
            source.path, f"{METADATA} of its header holds more than strings that can be written"
        )
    for name, fields in found.items():
        _check_fields(name, fields, source.path)
    tensors = sorted(found.items(), key=lambda item: item[1]["data_offsets"])
    reached, begin = 0, LENGTH + length
    for name, fields in tensors:
        first, last = fields["data_offsets"]
        if first != reached:
            raise DamagedCheckpoint(source.path, f"{name!r:.200} overlaps others or leaves a gap")
        reached = last
    if begin + reached != source.size:
        raise DamagedCheckpoint(
            source.path, f"it has {source.size} bytes, its header says {begin + reached}"
        )
    return _Header(tensors, metadata, begin)


def _is_metadata(value: object) -> TypeGuard[dict[str, str]]:
    return isinstance(value, dict) and all(map(_is_text, (*value, *value.values())))


def _is_text(value: object) -> bool:
    """Whether it can be written again: JSON's escapes can name lone surrogates, UTF-8 cannot."""
    return isinstance(value, str) and spelt(value) == value


def _check_fields(name: str, fields: object, path: str) -> None:
    """Refuse a tensor whose dtype, shape and place do not agree, or that nobody can write again."""
    shape = fields.get("shape") if isinstance(fields, dict) else None
    span = fields.get("data_offsets") if isinstance(fields, dict) else None
    if not _are_sizes(shape) or not _are_sizes(span) or len(span) != 2 or not name.isprintable():
        raise DamagedCheckpoint(path, f"its header garbles {name!r:.200}")
    assert isinstance(fields, dict)
    dtype = SAFETENSORS.get(str(fields.get("dtype")))
    if dtype is None:
        raise UnsupportedCheckpoint(
            path, f"{name!r:.200} is of type {fields.get('dtype')!r:.40}, which is not known"
        )
    if span[1] - span[0] != prod(shape) * ITEMSIZE[dtype]:
        raise DamagedCheckpoint(
            path, f"{name!r:.200} has {span[1] - span[0]} bytes for shape {tuple(shape)}"
        )


def _are_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in value)


def _entry(key: str, name: str, fields: dict[str, Any], begin: int, source: Source) -> Entry:
    dtype = SAFETENSORS[fields["dtype"]]
    shape = tuple(fields["shape"])
    first, last = fields["data_offsets"]
    place = Place(source, begin + first, row_major(shape), True)
    return Entry(key, name, dtype, shape, last - first, ITEMSIZE[dtype], key, place)


def _lay_out(
    header: _Header, entries: Mapping[str, Entry], replace: Mapping[str, object]
) -> tuple[Sequenced, dict[str, Region]]:
    fields: dict[str, Any] = {}
    if header.metadata is not None:
        fields[METADATA] = {
            name: replace.get(f"{METADATA}.{name}", value)
            for name, value in header.metadata.items()
        }
        if not _is_metadata(fields[METADATA]):
            raise TypeError("metadata of safetensors are strings that can be written")
    fields.update(header.tensors)
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % LENGTH)
    regions = {key: Region(key, entry.nbytes, sums=False) for key, entry in entries.items()}
    head = Fixed(len(text).to_bytes(LENGTH, "little") + text)
    return Sequenced([head, *regions.values()]), regions
