"""What this process may use by the kernel's word: affinity, cgroup limits, memory, device files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

_GPU = re.compile(r"nvidia\d+")
_NO_LIMIT = 1 << 60
"""What cgroup v1 says where it limits nothing is above this."""


@dataclass(frozen=True)
class Machine:
    """What the kernel lets this process use; `memory_mb` None where it does not tell."""

    cpus: int
    memory_mb: int | None
    gpus: int


def look(base: str = "/") -> Machine:
    """The machine as this process may use it. `base` is for tests."""
    cpus = len(os.sched_getaffinity(0))
    limits = list(_cgroups(base))
    quota = min((q for q, _ in limits if q is not None), default=None)
    if quota is not None:
        cpus = max(1, min(cpus, int(quota)))
    bounds = [m for _, m in limits if m is not None and m < _NO_LIMIT]
    total = _total(base)
    memory = min([*bounds, *([total] if total else [])], default=None)
    return Machine(cpus, None if memory is None else memory >> 20, _devices(base))


def _devices(base: str) -> int:
    """GPUs by their device files; what else is in /dev needs a vendor's tool to be told apart."""
    try:
        names = os.listdir(os.path.join(base, "dev"))
    except OSError:
        return 0
    return sum(_GPU.fullmatch(name) is not None for name in names)


def _total(base: str) -> int | None:
    for line in _read(os.path.join(base, "proc/meminfo")).splitlines():
        key, _, value = line.partition(":")
        if key == "MemTotal" and value.split():
            return int(value.split()[0]) << 10
    return None


def _cgroups(base: str) -> Iterator[tuple[float | None, int | None]]:
    """(cpus by quota, bytes of memory) of our cgroup and each above it; the least of all holds."""
    for line in _read(os.path.join(base, "proc/self/cgroup")).splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        for folder in _upwards(path):
            if number == "0" and not controllers:
                place = os.path.join(base, "sys/fs/cgroup", folder)
                yield _quota(place), _whole(_read(os.path.join(place, "memory.max")))
            elif "memory" in controllers.split(","):
                place = os.path.join(base, "sys/fs/cgroup/memory", folder)
                yield None, _whole(_read(os.path.join(place, "memory.limit_in_bytes")))
            elif "cpu" in controllers.split(","):
                yield _old_quota(os.path.join(base, "sys/fs/cgroup/cpu", folder)), None


def _upwards(path: str) -> Iterator[str]:
    parts = [part for part in path.split("/") if part and part != ".."]
    for count in range(len(parts), -1, -1):
        yield "/".join(parts[:count])


def _quota(place: str) -> float | None:
    words = _read(os.path.join(place, "cpu.max")).split()
    if len(words) != 2 or not words[0].isdigit():
        return None  # "max": no limit
    return int(words[0]) / max(1, int(words[1]))


def _old_quota(place: str) -> float | None:
    quota = _whole(_read(os.path.join(place, "cpu.cfs_quota_us")))
    period = _whole(_read(os.path.join(place, "cpu.cfs_period_us")))
    return quota / period if quota and period else None


def _whole(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isdigit() else None


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
