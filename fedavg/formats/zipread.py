"""The members of a zip archive by where their bytes lie, and nothing taken on trust.

Python's `zipfile` looks for archives inside of other bytes and forgives what it can; here an
archive begins and ends exactly where its file does, its members are stored uncompressed, lie within
it and share no byte. So a cut or padded file is known before any of it counts.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from fedavg.formats.errors import DamagedCheckpoint, UnsupportedCheckpoint
from fedavg.formats.source import Source

LOCAL = struct.Struct("<4s5H3I2H")
CENTRAL = struct.Struct("<4s6H3I5H2I")
END = struct.Struct("<4s4H2IH")
END64 = struct.Struct("<4sQ2H2I4Q")
LOCATOR = struct.Struct("<4sIQI")
LOCAL_SIGNATURE, CENTRAL_SIGNATURE = b"PK\x03\x04", b"PK\x01\x02"
END_SIGNATURE, END64_SIGNATURE, LOCATOR_SIGNATURE = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"

FULL16, FULL32 = 0xFFFF, 0xFFFFFFFF
"""What stands in a field whose value is in the 64-bit record."""
MAX_DIRECTORY = 64 << 20
ENCRYPTED = 1


@dataclass(frozen=True, slots=True)
class Member:
    """A stored member: its bytes are [offset, offset + size) of the file."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes [base, base + size) of a file, which are an archive; `name` is what errors say."""

    source: Source
    base: int
    size: int
    name: str

    def damaged(self, why: str) -> DamagedCheckpoint:
        """An error about this archive."""
        return DamagedCheckpoint(self.name, why)

    def read(self, offset: int, size: int) -> bytes:
        """Bytes by their offset in the archive."""
        if offset < 0 or offset + size > self.size:
            raise self.damaged(f"it has {self.size} bytes, its directory speaks of {offset + size}")
        return self.source.read(self.base + offset, size)


def members(extent: Extent) -> dict[str, Member]:
    """The members by name, in the order of the directory.

    Raises DamagedCheckpoint for an archive that is not exactly itself, UnsupportedCheckpoint for
    members that are compressed or encrypted.
    """
    start, size, count = _directory(extent)
    found: dict[str, Member] = {}
    spans = []
    data = extent.read(start, size)
    at = 0
    for _ in range(count):
        if at + CENTRAL.size > len(data):
            raise extent.damaged("its directory ends early")
        name, header, length, at = _entry(extent, data, at)
        if name in found:
            raise extent.damaged(f"it has two members {name!r:.80}")
        offset = _data_offset(extent, name, header)
        found[name] = Member(name, extent.base + offset, length)
        spans.append((header, offset + length, name))
    if at != len(data):
        raise extent.damaged("its directory is longer than its members need")
    _check_spans(extent, spans, start)
    return found


def _directory(extent: Extent) -> tuple[int, int, int]:
    """(start, size, number of entries) of the directory."""
    if extent.size < END.size:
        raise extent.damaged(f"it has {extent.size} bytes" if extent.size else "it is empty")
    tail = extent.size - END.size
    signature, _, _, _, count, size, start, comment = END.unpack(extent.read(tail, END.size))
    if signature != END_SIGNATURE or comment:
        raise extent.damaged(
            "it does not end as a zip archive does: it was cut, or bytes follow its end"
        )
    end = tail
    if tail >= LOCATOR.size:
        mark, _, where, _ = LOCATOR.unpack(extent.read(tail - LOCATOR.size, LOCATOR.size))
        if mark == LOCATOR_SIGNATURE:
            record = END64.unpack(extent.read(where, END64.size))
            if record[0] != END64_SIGNATURE or where + END64.size != tail - LOCATOR.size:
                raise extent.damaged("its 64-bit directory record is not where it should be")
            count, size, start = record[7], record[8], record[9]
            end = where
    if start + size != end or size > MAX_DIRECTORY or count * CENTRAL.size > size:
        raise extent.damaged(
            f"its directory should end at byte {start + size} and ends at {end}: bytes were lost "
            "or added"
        )
    return start, size, count


def _entry(extent: Extent, data: bytes, at: int) -> tuple[str, int, int, int]:
    """(name, offset of its local header, size, where the next entry begins)."""
    fields = CENTRAL.unpack_from(data, at)
    flags, method = fields[3], fields[4]
    packed, size, name_size, extra_size, comment_size = fields[8:13]
    header = fields[16]
    at += CENTRAL.size
    raw, extra = data[at : at + name_size], data[at + name_size : at + name_size + extra_size]
    if fields[0] != CENTRAL_SIGNATURE or len(extra) != extra_size:
        raise extent.damaged("its directory is garbled")
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise extent.damaged(f"a member's name is {raw!r:.80}") from None
    wide = iter(_wide(extra))
    try:
        size = next(wide) if size == FULL32 else size
        packed = next(wide) if packed == FULL32 else packed
        header = next(wide) if header == FULL32 else header
    except StopIteration:
        raise extent.damaged(f"the size of its member {name!r:.80} is missing") from None
    if method or packed != size or flags & ENCRYPTED:
        raise UnsupportedCheckpoint(
            extent.name,
            f"its member {name!r:.80} is compressed or encrypted; torch.save stores members as "
            "they are, `zip -0` too",
        )
    return name, header, size, at + name_size + extra_size + comment_size


def _wide(extra: bytes) -> list[int]:
    """The 64-bit numbers of an extra field, in the order of the fields that they replace."""
    at = 0
    while at + 4 <= len(extra):
        kind, size = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            body = extra[at + 4 : at + 4 + size]
            return [v for (v,) in struct.iter_unpack("<Q", body[: len(body) // 8 * 8])]
        at += 4 + size
    return []


def _data_offset(extent: Extent, name: str, header: int) -> int:
    """Where a member's bytes begin, from its local header, which must be of the same member."""
    raw = name.encode("utf-8")
    data = extent.read(header, LOCAL.size + len(raw))
    fields = LOCAL.unpack_from(data)
    if fields[0] != LOCAL_SIGNATURE or data[LOCAL.size :] != raw or fields[9] != len(raw):
        raise extent.damaged(f"its member {name!r:.80} is not where its directory says")
    return header + LOCAL.size + len(raw) + int(fields[10])


def _check_spans(extent: Extent, spans: list[tuple[int, int, str]], end: int) -> None:
    """Members lie one after another before the directory, from the first byte on."""
    reached = 0
    for first, last, name in sorted(spans):
        if first < reached or last > end or (reached == 0 and first):
            raise extent.damaged(f"its member {name!r:.80} overlaps others or leaves a gap")
        reached = last
