"""The data file: batches, results and parts, sealed so that damage is never read as less work.

    offset  size  field (integers are little-endian and unsigned)
    0       4     magic: 89 53 46 4C ("\\x89SFL")
    4       1     major format version, 2: a reader refuses any other
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
its slots, and join what they return, without decoding a record, or even looking at one: `Records`
are cut from a batch by their table, as one piece.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, overload

from fsworker.errors import FormatError
from fsworker.protocol import packing

MAGIC = b"\x89SFL"
MAJOR, MINOR = 2, 0
BATCH, RESULT, PART = b"b", b"r", b"p"

HEADER = struct.Struct("<4sBBcBIIQ")
_CRC = struct.Struct("<I")
START = HEADER.size + _CRC.size
ARG = "arg"
"""The form (in a batch's meta) of records that are the only argument of a call each; without a
form they are `[id, args, kwargs, options]`."""

MAX_BYTES = 256 << 20
"""A data file is refused beyond this size, by who writes it and by who reads it."""


class DamagedFile(FormatError):
    """A data file that is not exactly what its header says."""


class WrongVersion(FormatError):
    """A data file of another major format version."""


class Records(Sequence[bytes]):
    """Packed records that lie in a row in `data`, from byte `at` on; `lengths` are theirs.

    Nothing is copied until a record is asked for. Two are equal when their records are.
    """

    __slots__ = ("_data", "_ends", "lengths")

    def __init__(self, data: bytes, lengths: array[int], at: int = 0) -> None:
        self._data, self.lengths = data, lengths
        self._ends = list(accumulate(lengths, initial=at))

    @classmethod
    def of(cls, records: Iterable[bytes]) -> Records:
        """Records that lie apart, put in a row."""
        if isinstance(records, cls):
            return records
        apart = list(records)
        return cls(b"".join(apart), array("I", map(len, apart)))

    @property
    def end(self) -> int:
        """The byte of the data behind the last record."""
        return self._ends[-1]

    @property
    def body(self) -> memoryview:
        """All records, without a gap."""
        return memoryview(self._data)[self._ends[0] : self._ends[-1]]

    def cut(self, first: int, end: int) -> Records:
        """Those from `first` until before `end`."""
        return Records(self._data, self.lengths[first:end], self._ends[first])

    def fitting(self, first: int, room: int) -> int:
        """How many records from `first` on have at most `room` bytes together."""
        return bisect_right(self._ends, self._ends[first] + room) - 1 - first

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...

    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index += len(self) if index < 0 else 0
        return self._data[self._ends[index] : self._ends[index + 1]]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Segment:
    """A data file's content: its kind, its meta map and its packed records."""

    kind: bytes
    meta: dict[str, Any] = field(default_factory=dict)
    records: Sequence[bytes] = ()

    @property
    def tasks(self) -> int:
        """Of how many tasks it tells: as many as it has records, unless its meta counts them."""
        counted = self.meta.get("tasks")
        return counted if isinstance(counted, int) else len(self.records)

    def widened(self) -> Segment:
        """The same batch with records that have no form of their own."""
        if self.meta.get("form") != ARG:
            return self
        meta = {key: value for key, value in self.meta.items() if key != "form"}
        return Segment(self.kind, meta, [widen(r, ARG) for r in self.records])

    def values(self) -> list[Any]:
        """The records decoded, all at once, which is many times faster than one by one.

        Raises DamagedFile for one that is not a packed value.
        """
        head = b"\xdd" + len(self.records).to_bytes(4, "big")
        try:
            values: list[Any] = packing.unpack(b"".join((head, Records.of(self.records).body)))
        except packing.NotPacked as error:
            raise DamagedFile(f"a record cannot be decoded: {error}") from None
        return values


def widen(record: bytes, form: str | None) -> bytes:
    """A record of a form as one of the form that carries everything."""
    return b"\x92\xc0\x91" + record if form == ARG else record


def encode(segment: Segment) -> bytes:
    """The bytes of a data file."""
    meta, records = packing.pack(segment.meta), Records.of(segment.records)
    lengths, body = records.lengths[:], records.body
    if sys.byteorder == "big":
        lengths.byteswap()
    head = HEADER.pack(MAGIC, MAJOR, MINOR, segment.kind, 0, len(lengths), len(meta), len(body))
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
    records = Records(data, lengths, body)
    if records.end != len(data):
        raise _damaged(path, "its table of lengths does not match")
    try:
        meta = packing.unpack(data[START:table])
    except packing.NotPacked as error:
        raise _damaged(path, f"its meta is {error}") from None
    if not isinstance(meta, dict):
        raise _damaged(path, "its meta is no map")
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
