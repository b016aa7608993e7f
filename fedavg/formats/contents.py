"""A file as a sequence of parts whose sizes are known before their bytes are.

The layout is fixed when a checkpoint is begun, so that pieces can be written in any order; headers
and checksums follow when it is closed. Thus the bytes of the output depend on its content alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from isal.isal_zlib import crc32, crc32_combine

Put = Callable[[int, bytes | memoryview], None]
"""Writes bytes at an offset of the file."""


class Content(Protocol):
    """A part of a file."""

    size: int

    def place(self, offset: int) -> None:
        """Learn where in the file it begins. Called once, before anything is written."""

    def finish(self, put: Put) -> int:
        """Write what has not been written yet; the CRC-32 of the whole part."""


class Fixed:
    """Bytes that are known from the start."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)
        self.offset = 0

    def place(self, offset: int) -> None:
        """See Content."""
        self.offset = offset

    def finish(self, put: Put) -> int:
        """See Content."""
        put(self.offset, self.data)
        return crc32(self.data)


class Sequenced:
    """Parts one after another."""

    def __init__(self, parts: Sequence[Content]) -> None:
        self.parts = parts
        self.size = sum(part.size for part in parts)

    def place(self, offset: int) -> None:
        """See Content."""
        for part in self.parts:
            part.place(offset)
            offset += part.size

    def finish(self, put: Put) -> int:
        """See Content."""
        crc = 0
        for part in self.parts:
            crc = crc32_combine(crc, part.finish(put), part.size)
        return crc


class Region:
    """The bytes of a tensor, written in pieces by whoever computes them.

    With `sums` each piece's CRC is kept; a format without checksums does not need them.
    """

    def __init__(self, name: str, size: int, *, sums: bool) -> None:
        self.name = name
        self.size = size
        self.offset = 0
        self._sums = sums
        self._pieces: dict[int, tuple[int, int]] = {}
        self._lock = threading.Lock()

    def place(self, offset: int) -> None:
        """See Content."""
        self.offset = offset

    def write(self, put: Put, start: int, data: memoryview) -> None:
        """Write a piece at byte `start` of the tensor. ValueError beyond its end."""
        if start < 0 or start + len(data) > self.size:
            raise ValueError(f"{self.name!r} has {self.size} bytes, not {start + len(data)}")
        if not len(data):
            return
        put(self.offset + start, data)
        crc = crc32(data) if self._sums else 0
        with self._lock:
            self._pieces[start] = len(data), crc

    def finish(self, put: Put) -> int:
        """Its CRC. ValueError where pieces leave a gap or overlap."""
        crc = at = 0
        for start, (length, piece) in sorted(self._pieces.items()):
            if start != at:
                break
            crc = crc32_combine(crc, piece, length) if self._sums else 0
            at += length
        if at != self.size:
            raise ValueError(f"{self.name!r} was not written once, in full, at byte {at}")
        return crc
