"""Where the elements of a tensor lie in a file, and reading them from there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedavg.formats.base import Entry
from fedavg.formats.source import Source
from fedavg.formats.strided import gather

EXPANDED = 256 << 20
"""Bytes that a checkpoint's tensors may have beyond those of its files, or as many as these."""


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor's first element is at byte `offset`; the others follow by `strides` (elements)."""

    source: Source
    offset: int
    strides: tuple[int, ...]
    row_major: bool


def unfolded(entries: Mapping[str, Entry]) -> tuple[str, int] | None:
    """(key, bytes) of the tensor that adds most, where tensors are far more than their files hold.

    Elements of an expanded tensor share bytes, and a tiny file can have one that nobody could read
    to its end. Only those are counted that are read and written: who has bytes of his own.
    """
    own = [e for e in entries.values() if e.owner == e.key and isinstance(e.place, Place)]
    held = sum(source.size for source in {e.place.source for e in own})
    if sum(entry.nbytes for entry in own) <= held + max(held, EXPANDED):
        return None
    most = max(own, key=lambda entry: entry.nbytes)
    return most.key, most.nbytes


def at_once(entry: Entry) -> Place | None:
    """The place of an entry whose elements lie in a row, so that any piece is one read."""
    place = entry.place
    return place if isinstance(place, Place) and place.row_major else None


def read_place(entry: Entry, start: int, stop: int, buffer: memoryview) -> None:
    """Bytes of an entry whose place is a `Place`."""
    place: Place = entry.place
    if place.row_major:
        place.source.read_into(place.offset + start, buffer)
        return
    size = entry.itemsize

    def read(offset: int, view: memoryview) -> None:
        place.source.read_into(place.offset + offset, view)

    gather(read, entry.shape, place.strides, size, start // size, stop // size, buffer)
