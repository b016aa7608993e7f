"""The frames between a worker and its slots, over one stream socket a slot.

A range of tasks goes out as the records of the batch file, uncut and undecoded, behind a head that
says which they are. Results come back as entries (see `memory`) in frames that name the range,
so that what a slot still had to say about a range that was taken away is known for what it is.
"""

from __future__ import annotations

import json
import socket
import struct
from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

from fsworker.protocol import packing, segment
from fsworker.protocol.segment import Records

_RANGE = struct.Struct("<IIIIQ")  # range, first index, records, length of meta, length of records
_FRAME = struct.Struct("<BIQ")  # kind, range, length

HEAD = _RANGE.size
"""Bytes of the head of a range."""

READY, FAILED, RESULTS, FINISHED = 1, 2, 3, 4
"""READY: the functions are loaded; its number is the slot's pid; one that imported them itself says
the digests of their sources, as JSON. FAILED: they are not, and why.
FINISHED: RESULTS, and the last of the range."""

MAX_RECORD = segment.MAX_BYTES - (1 << 20)
"""Bytes that a result record may have, so that it fits into a data file alone."""
_MAX_DATA = MAX_RECORD + (1 << 20)
_MAX_SAID = 1 << 20
"""Bytes that FAILED may say."""


class Garbled(ValueError):
    """Bytes on a slot's socket that no slot sends: user code wrote to it."""


class Range(NamedTuple):
    """Tasks for a slot: `records` of a batch, the first of which has the index `first`."""

    number: int
    first: int
    meta: dict[str, Any]
    records: Records

    @property
    def end(self) -> int:
        """The index behind the last."""
        return self.first + len(self.records)


class Frame(NamedTuple):
    """What a slot says."""

    kind: int
    number: int
    data: bytes


def sources_in(data: bytes) -> dict[str, str | None]:
    """What READY says of the functions' sources; nothing for what no slot of ours says."""
    try:
        told = json.loads(data) if data else None
    except ValueError:
        return {}
    pairs = told.items() if isinstance(told, dict) else ()
    return {name: digest for name, digest in pairs if digest is None or type(digest) is str}


def pack_range(work: Range) -> bytes:
    """A range as the bytes that go to a slot."""
    meta = packing.pack(work.meta)
    body = work.records.body
    head = _RANGE.pack(work.number, work.first, len(work.records), len(meta), len(body))
    return b"".join((head, meta, work.records.lengths, body))


def read_range(sock: socket.socket) -> Range | None:
    """The next range, for a slot that waits for it; None when the worker is gone."""
    head = _receive(sock, HEAD)
    if head is None:
        return None
    rest = _receive(sock, size_behind(head))
    return None if rest is None else parse_range(head, rest)


def size_behind(head: bytes) -> int:
    """How many bytes of a range follow its head."""
    _, _, count, meta_size, body_size = _RANGE.unpack(head)
    return int(meta_size + 4 * count + body_size)


def parse_range(head: bytes, rest: bytes) -> Range:
    """The range that a head and what follows it say."""
    number, first, count, meta_size, _ = _RANGE.unpack(head)
    table = meta_size + 4 * count
    records = Records(rest, array("I", rest[meta_size:table]), table)
    return Range(number, first, packing.unpack(rest[:meta_size]), records)


def pack_frame(kind: int, number: int, data: bytes = b"") -> bytes:
    """A slot's frame as bytes."""
    return _FRAME.pack(kind, number, len(data)) + data


def take_frames(buffer: bytearray, number: int | None) -> Iterator[Frame]:
    """The complete frames at the start of `buffer`, which they leave.

    `number` is the range that the slot has, or had last; None before it has said that it is ready.
    Raises Garbled as soon as a head is seen that is not a slot's own: a length that is believed
    would have us wait for ever.
    """
    while len(buffer) >= _FRAME.size:
        kind, named, length = _FRAME.unpack_from(buffer)
        if number is None:
            known = kind in (READY, FAILED) and length <= _MAX_SAID
        else:
            known = kind in (RESULTS, FINISHED) and named == number and length <= _MAX_DATA
        if not known:
            raise Garbled(f"kind {kind}, range {named}, {length} bytes")
        end = _FRAME.size + length
        if len(buffer) < end:
            return
        data = bytes(memoryview(buffer)[_FRAME.size : end])
        del buffer[:end]
        yield Frame(kind, named, data)


def _receive(sock: socket.socket, size: int) -> bytes | None:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        try:
            got = sock.recv_into(view)
        except ConnectionResetError:  # it died, and left something of ours unread
            return None
        if not got:
            return None
        view = view[got:]
    return bytes(data)
