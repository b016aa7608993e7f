"""Where the elements of a tensor lie in a file, and reading them from there."""

from __future__ import annotations

from dataclasses import dataclass

from fedavg.formats.base import Entry
from fedavg.formats.source import Source
from fedavg.formats.strided import gather


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor's first element is at byte `offset`; the others follow by `strides` (elements)."""

    source: Source
    offset: int
    strides: tuple[int, ...]
    row_major: bool


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
