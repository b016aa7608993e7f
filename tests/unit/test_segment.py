"""A data file that is not exactly itself is refused by name, and never read as fewer tasks."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsworker.protocol import packing, segment
from fsworker.protocol.segment import DamagedFile, Segment, WrongVersion

pytestmark = pytest.mark.unit

PATH = "outbox/s/b.1~a.result"
SMALL = Segment(
    segment.RESULT, {"batch": "b", "attempt": 1}, [packing.pack([i, None, "ok", i]) for i in (0, 1)]
)
WHOLE = segment.encode(SMALL)

metas = st.dictionaries(st.text(max_size=5), st.none() | st.integers(0, 9) | st.text(max_size=5))
records = st.lists(st.binary(max_size=12), max_size=6)
kinds = st.sampled_from([segment.BATCH, segment.RESULT, segment.PART])


def refused(data: bytes, kind: bytes = segment.RESULT) -> str:
    """The sentence with which `data` is refused; it names the file."""
    with pytest.raises((DamagedFile, WrongVersion)) as caught:
        segment.decode(data, kind, PATH)
    assert PATH in str(caught.value) and caught.value.path == PATH
    assert caught.value.exit_code == 8
    return str(caught.value)


def sealed(
    meta: bytes,
    lengths: list[int],
    body: bytes,
    *,
    kind: bytes = b"r",
    major: int = segment.MAJOR,
    zero: int = 0,
    magic: bytes = b"\x89SFL",
    count: int | None = None,
    meta_size: int | None = None,
    body_size: int | None = None,
) -> bytes:
    """A file with a right checksum and whatever else is asked for."""
    head = struct.pack(
        "<4sBBcBIIQ",
        magic,
        major,
        0,
        kind,
        zero,
        len(lengths) if count is None else count,
        len(meta) if meta_size is None else meta_size,
        len(body) if body_size is None else body_size,
    )
    tail = meta + struct.pack(f"<{len(lengths)}I", *lengths) + body
    return head + struct.pack("<I", zlib.crc32(tail, zlib.crc32(head))) + tail


@given(kinds, metas, records)
def test_what_is_written_is_read_back(
    kind: bytes, meta: dict[str, Any], packed: list[bytes]
) -> None:
    found = segment.decode(segment.encode(Segment(kind, meta, packed)), kind, PATH)
    assert (found.kind, found.meta, list(found.records)) == (kind, meta, packed)


def test_the_helper_writes_what_encode_writes() -> None:
    lengths = [len(r) for r in SMALL.records]
    assert sealed(packing.pack(SMALL.meta), lengths, b"".join(SMALL.records)) == WHOLE
    assert SMALL.values() == [[0, None, "ok", 0], [1, None, "ok", 1]]


def test_every_cut_is_refused() -> None:
    for size in range(len(WHOLE)):
        refused(WHOLE[:size])


def test_every_cut_that_is_filled_up_is_refused() -> None:
    for size in range(len(WHOLE)):
        for filler in (b"\0", b"\xff", b" "):
            data = WHOLE[:size] + filler * (len(WHOLE) - size)
            if data != WHOLE:
                refused(data)


def test_every_flipped_bit_is_refused() -> None:
    for position in range(len(WHOLE)):
        for bit in range(8):
            data = bytearray(WHOLE)
            data[position] ^= 1 << bit
            refused(bytes(data))


@given(st.binary(min_size=1, max_size=40))
def test_whatever_follows_the_end_is_refused(padding: bytes) -> None:
    assert "bytes, its header says" in refused(WHOLE + padding)


@given(metas, records, st.data())
def test_no_change_of_any_file_is_read(
    meta: dict[str, Any], packed: list[bytes], data: st.DataObject
) -> None:
    whole = segment.encode(Segment(segment.RESULT, meta, packed))
    start = data.draw(st.integers(0, len(whole) - 1))
    end = data.draw(st.integers(start, len(whole)))
    changed = whole[:start] + data.draw(st.binary(max_size=8)) + whole[end:]
    if changed != whole:
        refused(changed)


@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    refused(noise)
    refused(b"\x89SFL\x02\x00r\x00" + noise)


NIL_META = packing.pack({})
ODD = {
    "empty": (b"", "empty"),
    "one byte": (b"\x89", "does not begin as a data file"),
    "text": (b'{"tasks": []}' + b" " * 40, "does not begin as a data file"),
    "a pickle": (b"\x80\x04" + b"." * 40, "does not begin as a data file"),
    "NULs": (bytes(100), "does not begin as a data file"),
    "another magic": (sealed(NIL_META, [], b"", magic=b"\x89SFM"), "does not begin"),
    "another kind": (sealed(NIL_META, [], b"", kind=b"b"), "of kind"),
    "an unknown kind": (sealed(NIL_META, [], b"", kind=b"?"), "of kind"),
    "a used reserved byte": (sealed(NIL_META, [], b"", zero=1), "of kind"),
    "more records than there are": (sealed(NIL_META, [1], b"\x01", count=2), "header says"),
    "fewer records than there are": (sealed(NIL_META, [1, 1], b"\1\1", count=1), "header says"),
    "four billion records": (sealed(NIL_META, [], b"", count=2**32 - 1), "header says"),
    "a huge meta": (sealed(NIL_META, [], b"", meta_size=2**32 - 1), "header says"),
    "a huge body": (sealed(NIL_META, [], b"", body_size=2**64 - 1), "header says"),
    "a meta longer than the file": (sealed(NIL_META, [], b"\1", meta_size=2), "header says"),
    "lengths that miss the end": (sealed(NIL_META, [1, 1], b"\1\1\1"), "table of lengths"),
    "lengths that pass the end": (sealed(NIL_META, [9], b"\1"), "table of lengths"),
    "lengths whose sum wraps": (sealed(NIL_META, [2**32 - 1, 2], b"\1"), "table of lengths"),
    "a meta that is a list": (sealed(packing.pack([]), [], b""), "its meta is no map"),
    "a meta that is nil": (sealed(b"\xc0", [], b""), "its meta is no map"),
    "no meta": (sealed(b"", [], b""), "its meta is not one packed value"),
    "two metas": (sealed(NIL_META * 2, [], b""), "its meta is not one packed value"),
    "a meta nested too deep": (sealed(b"\x91" * 5000, [], b""), "its meta is not one packed"),
    "a meta of an unknown type": (sealed(b"\xd4\x63\x00", [], b""), "unknown extension type 99"),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_files_are_refused_with_the_reason(name: str) -> None:
    data, told = ODD[name]
    assert told in refused(data)


@pytest.mark.parametrize("major", [0, 1, 255])
def test_another_major_version_is_refused_and_both_are_named(major: int) -> None:
    told = refused(sealed(NIL_META, [], b"", major=major))
    assert f"version {major}" in told and f"version {segment.MAJOR}" in told
    with pytest.raises(WrongVersion):
        segment.decode(sealed(NIL_META, [], b"", major=major), segment.RESULT, PATH)


def test_a_newer_minor_version_is_read() -> None:
    data = bytearray(WHOLE)
    data[5] = 7
    data[24:28] = struct.pack("<I", zlib.crc32(data[28:], zlib.crc32(data[:24])))
    assert segment.decode(bytes(data), segment.RESULT, PATH) == SMALL


def test_sizes_in_a_header_cost_no_memory() -> None:
    lies = [ODD[n][0] for n in ("four billion records", "a huge meta", "a huge body")]
    tracemalloc.start()
    try:
        for lie in lies:
            refused(lie)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_a_file_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "MAX_BYTES", len(WHOLE) - 1)
    assert "larger than" in refused(WHOLE)


def test_a_record_that_cannot_be_decoded_is_damage() -> None:
    found = segment.decode(sealed(NIL_META, [2], b"\x01\x01"), segment.RESULT, PATH)
    with pytest.raises(DamagedFile, match="a record cannot be decoded"):
        found.values()
