"""How much memory a slot uses with all that it started, seen from the worker.

A limit that the kernel holds is one a process; a task may start many, or fill shared memory. So the
trees of busy slots are looked at: first by what is resident, which is cheap and never too little,
and only where that is over the limit by proportional sizes, in which a page that many share counts
for each in part. So nobody is charged for what its neighbours and the zygote hold too.
"""

from __future__ import annotations

import os

from fsworker import procfs

EVERY = 0.25
"""Seconds between two looks at a slot."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


def used(pid: int, limit: int) -> int:
    """Bytes that a process and its descendants use. Exact only where it is above `limit`."""
    tree = procfs.tree(pid)
    total = sum(map(_resident, tree))
    return total if total <= limit else sum(map(_proportional, tree))


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def _proportional(pid: int) -> int:
    """Anonymous and shared memory in its proportional part; files that are only read are left out,
    since the kernel drops them when memory is short."""
    total = 0
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith((b"Pss_Anon:", b"Pss_Shmem:")):
                    total += int(line.split()[1]) << 10
    except OSError:
        return 0
    return total
