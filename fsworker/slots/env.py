"""One environment variable that changes with every task, without a leak and almost without cost.

`os.environ[name] = value` calls setenv, and glibc keeps every text that was ever set: 110 bytes a
task, a gigabyte in ten million. So the variable is put into the environment once, as memory that we
own and overwrite, and Python's view of it is told directly. Where all that changes is a number at
its end, as from task to task of a batch, eight bytes are written at once, and Python's view is made
of the memory when somebody asks for it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

_putenv = ctypes.CDLL(None, use_errno=True).putenv
_ROOM = 256

MOST = 10**8
"""Numbers from here on have no room in eight bytes."""


class Numbers(list[int]):
    """The numbers from 0 on as decimal digits, each as the integer that its eight bytes make."""

    def reach(self, end: int) -> None:
        """Hold all numbers below `end`, which is at most MOST."""
        for number in range(len(self), end):
            self.append(int.from_bytes((b"%d" % number).ljust(8, b"\0"), sys.byteorder))


class _Live(bytes):
    """A value in Python's view of the environment that is what the memory holds."""

    text: Any

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        value: bytes = self.text.value
        return value.partition(b"=")[2].decode(encoding, errors)


class Variable:
    """An environment variable of this process, for it and for programs that it starts."""

    def __init__(self, name: str) -> None:
        self._key = name.encode()
        self._python: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
        self._kept: list[object] = []
        self._place(_ROOM)

    def set(self, value: str) -> None:
        """Give it a value. Raises ValueError for one that no environment can hold."""
        self._python[self._key] = self._write(value)

    def numbered(self, prefix: str) -> memoryview[Any]:
        """Give it a value that ends in a number: the one item of what is returned, an item of
        `Numbers`. Lasts until it is set otherwise."""
        at = len(self._write(prefix + "0" * 8)) - 8
        live = _Live(self._text.value)
        live.text = self._text
        self._python[self._key] = live
        return self._memory[at : at + 8].cast("Q")

    def renew(self) -> None:
        """Make it ours again, whatever user code did to the environment."""
        _putenv(self._text)

    def _write(self, value: str) -> bytes:
        data = value.encode("utf-8", "surrogateescape")
        if b"\0" in data:
            raise ValueError("embedded null byte")
        if len(data) >= self._room:
            self._place(2 * len(data))
        self._memory[: len(data) + 1] = data + b"\0"
        return data

    def _place(self, room: int) -> None:
        """Put a larger text into the environment; who may still read the old one is not told."""
        head = self._key + b"="
        self._text = ctypes.create_string_buffer(head, len(head) + room)
        self._kept.append(self._text)
        self._room = room
        self._memory = memoryview(self._text).cast("B")[len(head) :]
        self.renew()
