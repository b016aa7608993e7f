"""The `.zip` of stable-baselines3: archives of torch's inside an archive, beside what is no tensor.

The members `policy.pth`, `policy.optimizer.pth` and so on are `.pt` files; their names without
`.pth` begin the keys. The other members, `data` with its pickled objects first of all, are copied
as they are and never looked into.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedavg.formats import zipread
from fedavg.formats.base import Checkpoint, Entry, Plan
from fedavg.formats.contents import Content, Fixed, Region
from fedavg.formats.errors import UnsupportedCheckpoint
from fedavg.formats.places import read_place
from fedavg.formats.source import Source
from fedavg.formats.torchfile import Archive, read_archive
from fedavg.formats.zipread import Extent, Member
from fedavg.formats.zipwrite import ZipContent

SUFFIX = ".pth"
MARKS = ("_stable_baselines3_version", "policy" + SUFFIX)
MAX_COPIED = 256 << 20
"""Bytes of all members that are copied: they are kept in memory while the output is written."""


def holds(members: Mapping[str, Member]) -> bool:
    """Whether a zip archive with these members is one of stable-baselines3."""
    return any(mark in members for mark in MARKS)


def open_zip(source: Source, members: dict[str, Member]) -> Checkpoint:
    """A file of stable-baselines3, whose `members` were found."""
    copied = {n: m for n, m in members.items() if not n.endswith(SUFFIX)}
    if sum(member.size for member in copied.values()) > MAX_COPIED:
        raise UnsupportedCheckpoint(
            source.path, f"its members without tensors have more than {MAX_COPIED} bytes"
        )
    archives: dict[str, Archive] = {}
    entries: dict[str, Entry] = {}
    rest: dict[str, object] = {}
    for name, member in members.items():
        if name not in copied:
            archive = archives[name] = _inner(source, member)
            for key in (*archive.entries, *archive.rest):
                if key in entries or key in rest:
                    raise UnsupportedCheckpoint(
                        source.path, f"two of its members have {key!r:.200}"
                    )
            entries.update(archive.entries)
            rest.update(archive.rest)

    def plan(replace: Mapping[str, object]) -> Plan:
        parts: list[tuple[str, Content]] = []
        regions: dict[str, Region] = {}
        for name, member in members.items():
            if name in copied:
                parts.append((name, Fixed(source.read(member.offset, member.size))))
            else:
                content, inner = archives[name].lay_out(replace)
                parts.append((name, content))
                regions.update(inner)
        owned = frozenset(entries.keys() - regions.keys())
        return Plan({"": ZipContent(parts)}, regions, dict.fromkeys(regions, ""), owned)

    return Checkpoint(
        source.path, "stable-baselines3", entries, rest, read_place, source.close, plan
    )


def _inner(source: Source, member: Member) -> Archive:
    extent = Extent(source, member.offset, member.size, f"{source.path} ({member.name})")
    top = member.name.removesuffix(SUFFIX)
    return read_archive(extent, zipread.members(extent), top)
