"""What the client of the soak was given, on disk: it must outlive any SIGKILL of the client.

Rows of 12 bytes, appended by one `write` each, which a signal does not cut. The client writes a
result down in its future's callback, so before the product forgets it; the soak reads along.
"""

from __future__ import annotations

import enum
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

_ROW = struct.Struct("<IIHH")


class Kind(enum.IntEnum):
    """What a row says."""

    SENDING = 1
    """Tasks below `number` are about to be submitted, if they were not before."""
    FUTURE = 2
    """A result, by its future."""
    RECOVERED = 3
    """A result of an earlier life of the client."""
    AGAIN = 4
    """The task `number` was never submitted, as it turned out: it is submitted now."""
    LOST = 5
    """The same, but it was executed: its result was lost."""
    FAILED = 6
    """An error instead of a result; `number` is unknown where it is that of all tasks."""
    CRASHED = 8
    """The same: the task's slot died. Right if the soak killed it there and then."""
    COMPLETE = 7
    """All tasks below `number` have results."""


UNKNOWN = 0xFFFFFFFF
ANSWERS = (Kind.FUTURE, Kind.RECOVERED, Kind.FAILED, Kind.CRASHED)


class Row(NamedTuple):
    """One row; `life` counts the client's processes."""

    number: int
    check: int
    kind: Kind
    life: int


class Writer:
    """Appends rows."""

    def __init__(self, path: str, life: int) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._life = life

    def add(self, kind: Kind, number: int, check: int = 0) -> None:
        """Write a row down."""
        os.write(self._fd, _ROW.pack(number, check, kind, self._life))

    def sync(self) -> None:
        """Make it outlive the machine too."""
        os.fsync(self._fd)


class Reader:
    """Reads along: each row once."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._at = 0

    def news(self) -> Iterator[Row]:
        """The rows since the last call."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return
        whole = len(data) - len(data) % _ROW.size
        self._at += whole
        for number, check, kind, life in _ROW.iter_unpack(data[:whole]):
            yield Row(number, check, Kind(kind), life)


class Progress:
    """What the rows amount to."""

    def __init__(self) -> None:
        self.mark = 0
        self.done = 0
        self.complete = False
        self._has = bytearray()

    def take(self, row: Row) -> bool:
        """Count a row; whether it is the first answer to its task."""
        if row.kind is Kind.SENDING:
            self.mark = max(self.mark, row.number)
        elif row.kind is Kind.COMPLETE:
            self.complete = True
        elif row.kind in ANSWERS and row.number != UNKNOWN:
            return self._result(row)
        return False

    def life_of(self, number: int) -> int:
        """The life in which a task had its first result (modulo 255, from 1); 0: it has none."""
        return self._has[number] if number < len(self._has) else 0

    def gaps(self) -> list[int]:
        """The tasks that were to be submitted and have no result."""
        self._grow(self.mark)
        found, at = [], self._has.find(0, 0, self.mark)
        while at >= 0:
            found.append(at)
            at = self._has.find(0, at + 1, self.mark)
        return found

    def _result(self, row: Row) -> bool:
        self._grow(row.number + 1)
        if self._has[row.number]:
            return False
        self._has[row.number] = short(row.life)
        self.done += 1
        return True

    def _grow(self, count: int) -> None:
        if count > len(self._has):
            self._has.extend(bytes(max(count, 2 * len(self._has)) - len(self._has)))


def short(life: int) -> int:
    """A life's number in one byte, never 0."""
    return life % 255 + 1
