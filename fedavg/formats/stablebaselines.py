"""The `.zip` of stable-baselines3: archives of torch's inside an archive, beside what is no tensor.

The members `policy.pth`, `policy.optimizer.pth` and so on are `.pt` files; their names without
`.pth` begin the keys. The other members, `data` with its pickled objects first of all, are copied
as they are and nothing in them is loaded; whose they are is decided by who writes a file.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedavg.formats import zipread
from fedavg.formats.base import Checkpoint, Plan
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


Members = dict[str, bytes]
"""Of members that are copied: their bytes by their names."""


class BaselinesZip(Checkpoint):
    """A file of stable-baselines3: its tensors, and members that are copied.

    The latter may hold what runs when stable-baselines3 loads it; whoever writes one for others
    has to know whose they are.
    """

    def __init__(
        self,
        source: Source,
        members: Mapping[str, Member],
        archives: Mapping[str, Archive],
        unread: Members | None = None,
    ) -> None:
        self._source, self._members, self._archives = source, members, archives
        self._unread = unread
        entries = {k: e for a in archives.values() for k, e in a.entries.items()}
        rest = {k: v for a in archives.values() for k, v in a.rest.items()}
        super().__init__(
            source.path, "stable-baselines3", entries, rest, read_place, source.close,
            self._lay_out, check_unchanged=source.check_unchanged,
        )  # fmt: skip

    def unread(self) -> Members:
        """The members that nobody looks into, in the order of the file."""
        if self._unread is not None:
            return self._unread
        copied = (m for m in self._members.values() if m.name not in self._archives)
        return {m.name: self._source.read(m.offset, m.size) for m in copied}

    def has(self, name: str) -> bool:
        """Whether there is a member of this name."""
        return name in self._members

    def small(self, name: str, most: int) -> bytes | None:
        """One such member; None if it is not there or has more than `most` bytes."""
        member = self._members.get(name)
        if member is None or member.size > most:
            return None
        return self._source.read(member.offset, member.size)

    def keeping(self, unread: Members) -> BaselinesZip:
        """The same with other members beside its tensors, for a Writer; it shares the file."""
        return BaselinesZip(self._source, self._members, self._archives, unread)

    def _lay_out(self, replace: Mapping[str, object]) -> Plan:
        parts: list[tuple[str, Content]] = []
        regions: dict[str, Region] = {}
        unread = self.unread()
        added = [name for name in unread if name not in self._members]
        for name in (*added, *self._members):
            if name in self._archives:
                content, inner = self._archives[name].lay_out(replace)
                parts.append((name, content))
                regions.update(inner)
            elif name in unread:
                parts.append((name, Fixed(unread[name])))
        owned = frozenset(self.entries.keys() - regions.keys())
        return Plan({"": ZipContent(parts)}, regions, dict.fromkeys(regions, ""), owned)


def open_zip(source: Source, members: dict[str, Member]) -> BaselinesZip:
    """A file of stable-baselines3, whose `members` were found."""
    copied = [m for name, m in members.items() if not name.endswith(SUFFIX)]
    if sum(member.size for member in copied) > MAX_COPIED:
        raise UnsupportedCheckpoint(
            source.path, f"its members without tensors have more than {MAX_COPIED} bytes"
        )
    archives: dict[str, Archive] = {}
    seen: set[str] = set()
    for name, member in members.items():
        if name.endswith(SUFFIX):
            archive = archives[name] = _inner(source, member)
            for key in (*archive.entries, *archive.rest):
                if key in seen:
                    raise UnsupportedCheckpoint(
                        source.path, f"two of its members have {key!r:.200}"
                    )
                seen.add(key)
    return BaselinesZip(source, members, archives)


def _inner(source: Source, member: Member) -> Archive:
    extent = Extent(source, member.offset, member.size, f"{source.path} ({member.name})")
    top = member.name.removesuffix(SUFFIX)
    return read_archive(extent, zipread.members(extent), top)
