"""Whether the filesystem below a path keeps the promises that the protocol rests on.

Some mounts look right and are not: with `nocto` a client never asks the server whether a file
changed, so neither heartbeats nor tokens arrive. That is found before a run is made, from the
mount table, because a probe on one machine cannot show it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from fsworker.errors import StorageError

TABLE = "/proc/self/mountinfo"
SOFT = frozenset({"soft", "softerr"})
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    """One line of the mount table: where, which kind, and all its options."""

    point: str
    kind: str
    options: frozenset[str]


def parse(table: str) -> list[Mount]:
    """The mounts in the text of `/proc/self/mountinfo`; lines of another form are left out."""
    found = []
    for line in table.splitlines():
        left, dash, right = line.partition(" - ")
        head, tail = left.split(" "), right.split(" ")
        if dash and len(head) >= 6 and len(tail) >= 3:
            point = _ESCAPE.sub(lambda m: chr(int(m[1], 8)), head[4])
            options = frozenset(head[5].split(",")) | frozenset(tail[2].split(","))
            found.append(Mount(point, tail[0], options))
    return found


def mount_of(path: str, mounts: list[Mount]) -> Mount | None:
    """The mount that a real path lies on: the last of the longest mount points above it."""
    above = [m for m in mounts if path == m.point or path.startswith(m.point.rstrip("/") + "/")]
    return max(reversed(above), key=lambda m: len(m.point), default=None)


def below(path: str, table: str = TABLE) -> Mount | None:
    """The mount that `path` lies on; None when that cannot be told."""
    try:
        with open(table, encoding="utf-8", errors="surrogateescape") as file:
            return mount_of(os.path.realpath(path), parse(file.read()))
    except OSError:
        return None


def check(path: str, table: str = TABLE) -> None:
    """StorageError when `path` lies on a mount that no run can live on."""
    mount = below(path, table)
    if mount is None:
        return  # no mount table, no finding: the rest of the start will tell
    if mount.kind.startswith("nfs") and "nocto" in mount.options:
        raise StorageError(
            f"{path} lies on {mount.point}, which is mounted with nocto: changes of other hosts "
            "are not seen there: mount it without",
            path=path,
        )
    if "ro" in mount.options:
        raise StorageError(
            f"{path} lies on {mount.point}, which is mounted read-only: name another folder",
            path=path,
        )


def doubt(path: str, table: str = TABLE) -> str | None:
    """A sentence on a mount that a run can live on, though another would be better."""
    mount = below(path, table)
    if mount and mount.kind.startswith("nfs") and SOFT & mount.options:
        return (
            f"{path} lies on {mount.point}, which is mounted soft: while the server is slow, calls "
            "fail instead of waiting. Nothing is lost, but clients may give up sending, and logs "
            "may lack lines: hard is better"
        )
    return None
