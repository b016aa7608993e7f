"""A zip archive as torch.save writes it, laid out before its members have bytes.

Members are stored, and begin at multiples of 64 bytes as torch's reader likes them when it maps a
file. Dates are fixed, the inner folder's name is too: torch.save would take it from the name of the
file, which is a temporary one, and the same content would give other bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from isal.isal_zlib import crc32_combine

from fedavg.formats.contents import Content, Fixed, Put, Sequenced
from fedavg.formats.zipread import (
    CENTRAL,
    CENTRAL_SIGNATURE,
    END,
    END64,
    END64_SIGNATURE,
    END_SIGNATURE,
    FULL16,
    FULL32,
    LOCAL,
    LOCAL_SIGNATURE,
    LOCATOR,
    LOCATOR_SIGNATURE,
)

ALIGNMENT = 64
UTF8 = 1 << 11
VERSION = 45
"""Of the zip format: the first with 64-bit sizes."""
DATE = (1 << 5) | 1
"""The first of January 1980, as archives count."""
FILLER = b"FB"
"""The kind of extra field that torch fills with padding."""


@dataclass(slots=True)
class _Placed:
    """A member and where its local header begins."""

    name: bytes
    content: Content
    header: int
    crc: int = 0

    @property
    def large(self) -> bool:
        return self.content.size >= FULL32

    @property
    def extra(self) -> bytes:
        """The local header's: sizes of 64 bits where needed, then padding up to the alignment."""
        wide = struct.pack("<2H2Q", 1, 16, self.content.size, self.content.size)
        known = wide if self.large else b""
        start = self.header + LOCAL.size + len(self.name) + len(known)
        padding = -start % ALIGNMENT
        if 0 < padding < 4:
            padding += ALIGNMENT
        if not padding:
            return known
        return known + struct.pack("<2sH", FILLER, padding - 4) + b"Z" * (padding - 4)

    def local(self) -> bytes:
        size = FULL32 if self.large else self.content.size
        extra = self.extra
        fixed = (VERSION, UTF8, 0, 0, DATE, self.crc, size, size, len(self.name), len(extra))
        return LOCAL.pack(LOCAL_SIGNATURE, *fixed) + self.name + extra

    def central(self) -> bytes:
        size = FULL32 if self.large else self.content.size
        header = min(self.header, FULL32)
        wide = [self.content.size] * 2 if self.large else []
        wide += [self.header] if header == FULL32 else []
        extra = struct.pack(f"<2H{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b""
        fixed = (VERSION, VERSION, UTF8, 0, 0, DATE, self.crc, size, size)
        sizes = (len(self.name), len(extra), 0, 0, 0, 0, header)
        return CENTRAL.pack(CENTRAL_SIGNATURE, *fixed, *sizes) + self.name + extra


class ZipContent:
    """An archive of (name, content) members, in their order."""

    def __init__(self, members: Sequence[tuple[str, Content]]) -> None:
        self._members: list[_Placed] = []
        at = 0
        for name, content in members:
            placed = _Placed(name.encode("utf-8"), content, at)
            self._members.append(placed)
            at += len(placed.local()) + content.size
        self._directory = at
        self.size = at + len(self._end())
        self.offset = 0

    def place(self, offset: int) -> None:
        """Members are placed behind their headers; alignment holds within the archive."""
        self.offset = offset
        for member in self._members:
            member.content.place(offset + member.header + len(member.local()))

    def finish(self, put: Put) -> int:
        """Headers and directory, once the members have their CRCs."""
        crc = 0
        for member in self._members:
            member.crc = member.content.finish(put)
            parts = Sequenced([Fixed(member.local())])
            parts.place(self.offset + member.header)
            crc = crc32_combine(crc, parts.finish(put), parts.size)
            crc = crc32_combine(crc, member.crc, member.content.size)
        end = Fixed(self._end())
        end.place(self.offset + self._directory)
        return crc32_combine(crc, end.finish(put), end.size)

    def _end(self) -> bytes:
        """The directory and its two records, as torch writes them: the 64-bit one always."""
        directory = b"".join(member.central() for member in self._members)
        count, start = len(self._members), self._directory
        record = END64.pack(
            END64_SIGNATURE, END64.size - 12, VERSION, VERSION, 0, 0,
            count, count, len(directory), start,
        )  # fmt: skip
        locator = LOCATOR.pack(LOCATOR_SIGNATURE, 0, start + len(directory), 1)
        few, low = min(count, FULL16), min(start, FULL32)
        end = END.pack(END_SIGNATURE, 0, 0, few, few, min(len(directory), FULL32), low, 0)
        return directory + record + locator + end
