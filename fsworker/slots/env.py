"""One environment variable that changes with every task, without a leak.

`os.environ[name] = value` calls setenv, and glibc keeps every text that was ever set: 110 bytes a
task, a gigabyte in ten million. So the variable is put into the environment once, as memory that we
own and overwrite, and Python's view of it is told directly.
"""

from __future__ import annotations

import ctypes
import os

_putenv = ctypes.CDLL(None, use_errno=True).putenv
_ROOM = 256


class Variable:
    """An environment variable of this process, for it and for programs that it starts."""

    def __init__(self, name: str) -> None:
        self._key = name.encode()
        self._python: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
        self._kept: list[object] = []
        self._place(_ROOM)

    def set(self, value: str) -> None:
        """Give it a value. Raises ValueError for one that no environment can hold."""
        data = value.encode("utf-8", "surrogateescape")
        if b"\0" in data:
            raise ValueError("embedded null byte")
        if len(data) >= self._room:
            self._place(2 * len(data))
        self._memory[: len(data) + 1] = data + b"\0"
        self._python[self._key] = data

    def renew(self) -> None:
        """Make it ours again, whatever user code did to the environment."""
        _putenv(self._text)

    def _place(self, room: int) -> None:
        """Put a larger text into the environment; who may still read the old one is not told."""
        head = self._key + b"="
        self._text = ctypes.create_string_buffer(head, len(head) + room)
        self._kept.append(self._text)
        self._room = room
        self._memory = memoryview(self._text).cast("B")[len(head) :]
        self.renew()
