"""`fsworker.report(step, **values)`: numbers of a training process, seen while it runs.

A call writes one line into a pipe that the job's runner holds, and returns: the line outlives this
process, however it ends, and the runner writes batches to the run root. Helper processes may report
too. Outside of a job a call does nothing, so a script runs the same by hand.
"""

from __future__ import annotations

import json
import math
import os
import stat
import threading
import time
from typing import Any

VARIABLE = "FLEET_METRICS"
MOST_LINE = 4000
"""Bytes that a pipe takes in one piece, whoever else writes."""

_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":"), check_circular=False).encode
_lock = threading.Lock()
_open: dict[int, int | None] = {}
"""Where the process of this pid writes (None: nowhere); a fork looks anew."""


def report(step: float, **values: Any) -> None:
    """Record numbers at a step (an episode, a batch, whatever is counted).

    A `reward` counts as a reward of the job where its checkpoints hold none. Values are numbers or
    what `float` takes; what is not finite is kept as null. TypeError for anything else.
    """
    fd = _descriptor()
    if fd is None:
        return
    for value in values.values():
        if type(value) is not float and type(value) is not int:
            values = {name: _plain(name, value) for name, value in values.items()}
            break
    now = round(time.time(), 3)
    try:
        line = _encode([step, now, values])
    except (ValueError, TypeError):
        values = {name: _plain(name, value) for name, value in values.items()}
        line = _encode([_plain("step", step), now, values])
    data = line.encode() + b"\n"
    if len(data) > MOST_LINE and len(values) > 1:
        names = list(values)
        for part in (names[: len(names) // 2], names[len(names) // 2 :]):
            report(step, **{name: values[name] for name in part})
        return
    try:
        os.write(fd, data)
    except OSError:
        pass  # the runner is gone, and so is this process in a moment


def _plain(name: str, value: Any) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"report: {name} must be a number, not {value!r:.60}") from None
    if not math.isfinite(number):
        return None
    return int(number) if isinstance(value, int) else number


def _descriptor() -> int | None:
    pid = os.getpid()
    try:
        return _open[pid]
    except KeyError:
        with _lock:
            return _open.setdefault(pid, _find(os.environ.get(VARIABLE, "")))


def _find(address: str) -> int | None:
    """The pipe: inherited, or else that of the runner, opened anew."""
    parts = address.split(":")
    if len(parts) != 4 or not all(p.isascii() and p.isdigit() for p in parts):
        return None
    fd, device, inode, runner = map(int, parts)
    try:
        if _is_pipe(os.fstat(fd), device, inode):
            return fd
    except OSError:
        pass
    try:
        found = os.open(f"/proc/{runner}/fd/{fd}", os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    if _is_pipe(os.fstat(found), device, inode):
        os.set_blocking(found, True)
        return found
    os.close(found)
    return None


def _is_pipe(found: os.stat_result, device: int, inode: int) -> bool:
    same = found.st_ino == inode and found.st_dev == device
    return same and stat.S_ISFIFO(found.st_mode)
