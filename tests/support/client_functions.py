"""Functions for tests of clients: they write down that they were called."""

from __future__ import annotations

import builtins
import os
import time
from typing import Any


def note(path: str, value: Any, seconds: float = 0.0) -> Any:
    """Append the value to a file, which may have many writers, and give it back."""
    time.sleep(seconds)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(fd, f"{value}\n".encode())
    finally:
        os.close(fd)
    return value


def note_once(path: str, value: Any, gate: str) -> Any:
    """As `note`, once there is a file `gate`."""
    while not os.path.exists(gate):
        time.sleep(0.02)
    return note(path, value)


def where(seconds: float = 0.0) -> str:
    """The host that executes this."""
    time.sleep(seconds)
    return os.environ["FLEET_HOST"]


def array(size: int) -> Any:
    """A numpy array, which is sent natively."""
    import numpy

    return numpy.zeros(size)


def flaky(path: str, failures: int, kind: str, values: list[Any]) -> list[Any]:
    """Raise as often as told, by the lines of a file; what it is given must be as it was sent."""
    values.append("x")
    note(path, time.time())
    with open(path, encoding="utf-8") as file:
        if len(file.readlines()) <= failures:
            raise getattr(builtins, kind)("not yet")
    return values


_failed = False


def total(values: Any, more: Any = (), fail_once: bool = False) -> int:
    """The sum of everything."""
    global _failed
    if fail_once and not _failed:
        _failed = True
        values[0] = -(10**9)
        raise ValueError("once")
    return int(sum(int(v) for v in values)) + sum(more)
