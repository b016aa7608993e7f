"""The log of an attempt at a job: its head and its tail, and between them how much was left out.

A job may print for days. Its processes write through a descriptor that they keep, appending, so the
log is shortened under them: the first bytes stay, then comes one line of fixed length that counts
what was dropped, then the newest lines. A reader that follows thinks in places of the whole output
(`Place`), which no cut moves.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

LIMIT = 64 << 20
"""Bytes beyond which a log is cut, unless the job says otherwise."""
LEAST = 1 << 20
_MOST_HEAD, _MOST_TAIL = 16 << 20, 64 << 20

_MARK = "\n[shardfleet] {:>19} bytes of the output are left out here\n"
_SEEN = re.compile(rb"\n\[shardfleet\] +([0-9]{1,19}) bytes of the output are left out here\n")
MARK_BYTES = len(_MARK.format(0))


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a log of this limit is cut, and how many bytes were dropped there so far."""

    head: int
    dropped: int = 0

    def position(self, place: int) -> int:
        """Where a byte of the output is in the file; for one that was dropped, the mark."""
        if not self.dropped or place <= self.head:
            return place
        kept = place - self.head - self.dropped
        return self.head if kept < 0 else self.head + MARK_BYTES + kept

    def place(self, position: int) -> int:
        """Which byte of the output is at a position of the file; the mark is none."""
        if not self.dropped or position <= self.head:
            return position
        return max(self.head, position - MARK_BYTES) + self.dropped


def head_of(limit: int) -> int:
    """Bytes at its begin that a log keeps."""
    return min(limit // 4, _MOST_HEAD)


def read_cut(fd: int, limit: int) -> Cut:
    """The cut of an open log; raises OSError."""
    head = head_of(limit)
    seen = _SEEN.fullmatch(os.pread(fd, MARK_BYTES, head)) if limit else None
    return Cut(head, int(seen[1]) if seen else 0)


def shorten(fd: int, limit: int) -> bool:
    """Cut a log that is longer than `limit` bytes (0: never); whether it was. Raises OSError.

    `fd` must be open for reading and appending, and so must every writer's. Its newest lines are
    written back in one piece, so that no other line comes into their midst; one that is written in
    the microseconds between the last look and the cut is lost.
    """
    size = os.fstat(fd).st_size
    if not limit or size <= limit:
        return False
    before = read_cut(fd, limit)
    begin = size - min(limit // 2, _MOST_TAIL)
    tail = _read(fd, begin)
    line = tail.find(b"\n") + 1
    dropped = before.place(begin + line) - before.head
    data = _MARK.format(dropped).encode() + tail[line:]
    data += _read(fd, begin + len(tail))  # what was written meanwhile
    os.ftruncate(fd, before.head)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    return True


def _read(fd: int, begin: int) -> bytes:
    chunks = []
    while chunk := os.pread(fd, 1 << 20, begin):
        chunks.append(chunk)
        begin += len(chunk)
    return b"".join(chunks)
