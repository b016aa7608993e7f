"""What `/proc` says about processes, read so that it can be trusted.

A command name may hold spaces, parentheses and newlines; a process may vanish between two reads;
a main thread may have ended while others go on. Those traps are dealt with here once, so that
`identity` can decide about processes without knowing how the kernel spells them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

PROC = "/proc"


@dataclass(frozen=True, slots=True)
class Stat:
    """One reading of `/proc/<pid>/stat`; `start` is in clock ticks since boot."""

    pid: int
    comm: str
    state: str
    ppid: int
    start: int


def parse_stat(data: bytes) -> Stat:
    """The fields we use. The name is in parentheses and may itself hold any of `) (` or a newline.

    Raises ValueError for what the kernel never writes.
    """
    head, closing, tail = data.rpartition(b")")
    pid, opening, comm = head.partition(b"(")
    fields = tail.split()
    if not closing or not opening or len(fields) < 20:
        raise ValueError(f"not a line of /proc/PID/stat: {data[:80]!r}")
    state = fields[0].decode("ascii")
    return Stat(int(pid), comm.decode("utf-8", "replace"), state, int(fields[1]), int(fields[19]))


def read_stat(pid: int) -> Stat | None:
    """A process as it is now, or None when there is none (or none that we may see)."""
    data = _read(f"{PROC}/{pid}/stat") if pid > 0 else None
    return parse_stat(data) if data else None


def has_live_thread(pid: int) -> bool:
    """Whether a thread still runs in a process whose main thread is already a zombie."""
    try:
        tasks = os.listdir(f"{PROC}/{pid}/task")
    except OSError:
        return False
    for task in tasks:
        data = _read(f"{PROC}/{pid}/task/{task}/stat")
        if data and parse_stat(data).state not in "ZXx":
            return True
    return False


def pids() -> list[int]:
    """All processes in sight."""
    return [int(name) for name in os.listdir(PROC) if name.isdigit()]


def environ(pid: int) -> list[bytes]:
    """The `KEY=VALUE` entries a process was started with; none when it is gone or not ours."""
    data = _read(f"{PROC}/{pid}/environ")
    return data.split(b"\0") if data else []


def holds(entries: Iterable[bytes], wanted: Mapping[str, str]) -> bool:
    """Whether all of `wanted` are among the entries, each exactly: `run1` is not `run10`."""
    present = set(entries)
    return all(os.fsencode(f"{key}={value}") in present for key, value in wanted.items())


def descendants(roots: Iterable[int]) -> list[Stat]:
    """Everything below `roots` in the tree of parents, by one look at all processes."""
    children: dict[int, list[Stat]] = {}
    for pid in pids():
        stat = read_stat(pid)
        if stat:
            children.setdefault(stat.ppid, []).append(stat)
    found: dict[int, Stat] = {}
    pending = list(roots)
    while pending:
        for stat in children.get(pending.pop(), []):
            if stat.pid not in found:
                found[stat.pid] = stat
                pending.append(stat.pid)
    return list(found.values())


def ancestors(pid: int) -> list[int]:
    """The pids above `pid`, nearest first."""
    found: list[int] = []
    stat = read_stat(pid)
    while stat and stat.ppid > 0 and stat.ppid not in found:
        found.append(stat.ppid)
        stat = read_stat(stat.ppid)
    return found


def boot_id() -> str:
    """The random id that the kernel took when it booted; an empty string where it has none."""
    data = _read(f"{PROC}/sys/kernel/random/boot_id")
    return data.decode("ascii", "replace").strip() if data else ""


def pid_namespace() -> str:
    """The pid namespace that our pids are counted in; an empty string where it cannot be read."""
    try:
        return os.readlink(f"{PROC}/self/ns/pid")
    except OSError:
        return ""


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except OSError:
        return None


def children() -> set[int]:
    """The pids of this process's children, zombies included."""
    try:
        return _children_of("self")
    except FileNotFoundError:  # a kernel without that file, or a thread that just ended
        return _children_by_parent()


def tree(pid: int, most: int = 10_000) -> list[int]:
    """A process and all below it, cheaply: by what the kernel tells of each one's children.

    What ends meanwhile is left out, with what is below it; so are all below where the kernel does
    not tell.
    """
    found: list[int] = []
    pending = [pid]
    while pending and len(found) < most:
        found.append(pending.pop())
        try:
            pending += _children_of(found[-1])
        except OSError:
            pass
    return found


def _children_of(pid: int | str) -> set[int]:
    found: set[int] = set()
    for thread in os.listdir(f"{PROC}/{pid}/task"):
        with open(f"{PROC}/{pid}/task/{thread}/children", "rb") as file:
            found.update(map(int, file.read().split()))
    return found


def _children_by_parent() -> set[int]:
    me = os.getpid()
    stats = (read_stat(pid) for pid in pids())
    return {stat.pid for stat in stats if stat and stat.ppid == me}


def kill_group(pid: int) -> None:
    """Kill a child that leads a session, and its process group. It must not be reaped yet."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
