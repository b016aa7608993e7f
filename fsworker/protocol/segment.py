"""The data file: batches, results and parts, sealed so that damage is never read as less work.

    offset  size  field (integers are little-endian and unsigned)
    0       4     magic: 89 53 46 4C ("\\x89SFL")
    4       1     major format version, 1: a reader refuses any other
    5       1     minor format version, 0: a reader ignores it
    6       1     kind: "b" batch, "r" result, "p" part
    7       1     zero
    8       4     n, the number of records
    12      4     m, the length of the meta map
    16      8     s, the length of all records together
    24      4     CRC-32 (zlib's) of bytes 0 to 23 followed by bytes 28 to the end
    28      m     meta: one msgpack map
    28+m    4n    the length of each record
    ...     s     the records, one msgpack value each, without a gap

The file is exactly 28 + m + 4n + s bytes long. The table of lengths lets a worker cut a batch for
its slots, and join what they return, without decoding a record.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

from fsworker.errors import FormatError
from fsworker.protocol import packing

MAGIC = b"\x89SFL"
MAJOR, MINOR = 1, 0
BATCH, RESULT, PART = b"b", b"r", b"p"

HEADER = struct.Struct("<4sBBcBIIQ")
_CRC = struct.Struct("<I")
START = HEADER.size + _CRC.size
MAX_BYTES = 256 << 20
"""A data file is refused beyond this size, by who writes it and by who reads it."""


class DamagedFile(FormatError):
    """A data file that is not exactly what its header says."""


class WrongVersion(FormatError):
    """A data file of another major format version."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A data file's content: its kind, its meta map and its packed records."""

    kind: bytes
    meta: dict[str, Any] = field(default_factory=dict)
    records: Sequence[bytes] = ()

    def values(self) -> list[Any]:
        """The records decoded. Raises DamagedFile for one that is not a packed value."""
        try:
            return [packing.unpack(r) for r in self.records]
        except packing.NotPacked as error:
            raise DamagedFile(f"a record cannot be decoded: {error}") from None


def encode(segment: Segment) -> bytes:
    """The bytes of a data file."""
    meta = packing.pack(segment.meta)
    lengths = array("I", map(len, segment.records))
    if sys.byteorder == "big":
        lengths.byteswap()
    body = b"".join(segment.records)
    head = HEADER.pack(
        MAGIC, MAJOR, MINOR, segment.kind, 0, len(segment.records), len(meta), len(body)
    )
    tail = b"".join((meta, lengths.tobytes(), body))
    return b"".join((head, _CRC.pack(zlib.crc32(tail, zlib.crc32(head))), tail))


def decode(data: bytes, kind: bytes, path: str) -> Segment:
    """The data file of the given kind in `data`; `path` is what an error names.

    Raises WrongVersion for another major version, else DamagedFile for anything that is cut,
    padded, changed, of another kind, or no data file at all.
    """
    count, meta_size, body_size = _check_header(data, kind, path)
    table = START + meta_size
    body = table + 4 * count
    if len(data) != body + body_size:
        raise _damaged(path, f"it has {len(data)} bytes, its header says {body + body_size}")
    crc = zlib.crc32(memoryview(data)[START:], zlib.crc32(data[: HEADER.size]))
    if crc != _CRC.unpack_from(data, HEADER.size)[0]:
        raise _damaged(path, "its checksum does not match")
    lengths = array("I", data[table:body])
    if sys.byteorder == "big":
        lengths.byteswap()
    ends = list(accumulate(lengths, initial=body))
    if ends[-1] != len(data):
        raise _damaged(path, "its table of lengths does not match")
    try:
        meta = packing.unpack(data[START:table])
    except packing.NotPacked as error:
        raise _damaged(path, f"its meta is {error}") from None
    if not isinstance(meta, dict):
        raise _damaged(path, "its meta is no map")
    records = [data[a:b] for a, b in pairwise(ends)]
    return Segment(kind, meta, records)


def _check_header(data: bytes, kind: bytes, path: str) -> tuple[int, int, int]:
    if len(data) < START or data[:4] != MAGIC:
        raise _damaged(path, "it does not begin as a data file" if data else "it is empty")
    _, major, _, found, zero, count, meta_size, body_size = HEADER.unpack_from(data)
    if major != MAJOR:
        raise WrongVersion(
            f"{path} has data format version {major}, this shardfleet reads version {MAJOR}: "
            "use the release that wrote it",
            path=path,
        )
    if found != kind or zero:
        raise _damaged(path, f"it is of kind {found!r}, not {kind!r}")
    if len(data) > MAX_BYTES:
        raise _damaged(path, f"it is larger than {MAX_BYTES} bytes")
    return count, meta_size, body_size


def _damaged(path: str, why: str) -> DamagedFile:
    return DamagedFile(f"{path} is damaged: {why}", path=path)
