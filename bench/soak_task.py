"""The task of the soak: tiny, so that a million are affordable, and its answer can be checked.

Each execution leaves a trace before it begins, so that afterwards nobody has to believe the
product about what was executed, and how often.
"""

from __future__ import annotations

import functools
import os
import time
import zlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable

TRACES = "SOAK_TRACES"
"""The variable with the folder for traces."""
NUMBER = "I"  # four bytes


def check(number: int, seed: int) -> int:
    """The right answer to a task."""
    return zlib.crc32(b"%d of %d" % (number, seed))


def answer(number: int, seed: int) -> list[int]:
    """[number, check]. One task in 16 takes some milliseconds, the others none."""
    os.write(_trace(os.getpid()), array(NUMBER, [number]).tobytes())
    found = check(number, seed)
    if found % 16 == 0:
        time.sleep((found >> 8) % 20 / 1000)
    return [number, found]


@functools.lru_cache(maxsize=1)
def _trace(pid: int) -> int:
    """The trace of this process: a fork begins one of its own. Pids come again, times do not."""
    path = f"{os.environ[TRACES]}/{pid}.{time.time_ns()}"
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def executions(folder: str) -> Counter[int]:
    """How often each task was begun."""
    found: Counter[int] = Counter()
    for name in os.listdir(folder):
        found.update(_numbers(f"{folder}/{name}"))
    return found


def last_of(folder: str, killed: Iterable[tuple[int, int]]) -> set[int]:
    """The tasks that these processes began last; each is (pid, when it was killed in ns)."""
    traces: dict[int, list[int]] = defaultdict(list)
    for name in os.listdir(folder):
        pid, _, began = name.partition(".")
        traces[int(pid)].append(int(began))
    found = set()
    for pid, when in killed:
        began = max((t for t in traces[pid] if t <= when), default=None)
        if began is not None:
            found.update(_numbers(f"{folder}/{pid}.{began}")[-1:])
    return found


def _numbers(path: str) -> array[int]:
    with open(path, "rb") as file:
        data = file.read()
    numbers = array(NUMBER)
    numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
    return numbers
