"""A shared filesystem that lies, as pure functions over small hashable values.

What it may do, each case measured or documented for network filesystems:

- a rename (or unlink, mkdir, rmdir) works; works and reports failure, also as "no such file" (a
  retransmitted request); fails and did nothing; reports failure and is executed later, at any
  step or never; works and is executed a second time later;
- a file is not written at once: it begins (a part of its bytes under its name) and is closed;
  writing may fail with nothing, a part, or everything in place;
- a look (a listing, an open) may be older than the last change of that folder which concerns the
  one who looks, even if it was his own; it clears this up: his next look at that folder is at
  least as new as the moment of this one. Each process has its own view, and of each folder another.

Only what the protocol decides by is kept: a listing holds what concerns its reader, and the
"last change that was not seen yet" is one name for each process and folder.
"""

from __future__ import annotations

import errno
from typing import Any, NamedTuple

from fsworker.protocol import layout
from fsworker.protocol.ops import MakeFolder, Op, Put, Read, Remove, RemoveFolder, Rename, Scan

CLIENT, RECLAIMER = "client", "reclaimer"


class Unseen(NamedTuple):
    """The last change of a folder that `who` has not looked at since; name "" is the folder."""

    who: str
    folder: str
    appeared: bool
    name: str


class Disk(NamedTuple):
    """Everything the server has, and what of it who has not seen yet."""

    files: frozenset[tuple[str, bytes]]
    folders: frozenset[str]
    unseen: frozenset[Unseen] = frozenset()

    def content(self, path: str) -> bytes | None:
        """A file's bytes as they are now."""
        return next((c for p, c in self.files if p == path), None)

    def names(self, folder: str) -> tuple[str, ...]:
        """The files of a folder as they are now."""
        start = len(folder) + 1
        return tuple(sorted(p[start:] for p, _ in self.files if p.rpartition("/")[0] == folder))

    def owners(self) -> list[layout.Owner]:
        """Everybody who has a claims folder."""
        found = (layout.parse_owner(f.rpartition("/")[2]) for f in sorted(self.folders))
        return [o for o in found if o]


class Effect(NamedTuple):
    """One way in which an operation may turn out."""

    answer: tuple[str, Any]
    """("ok", value), ("error", errno), or ("begun", None) for a file that is not closed yet."""
    disk: Disk
    note: str = ""
    late: Op | None = None
    """A request that the server may execute at any later time."""
    fault: bool = False


class Lens(NamedTuple):
    """Whose looks are modelled, and which of a listing's names can matter to the present verb."""

    who: str
    hosts: tuple[str, ...]
    interest: frozenset[str] | None = None
    tells_absence: bool = False
    """Whether the verb treats "no such file" unlike other errors, so that both are worth a case."""


def watchers(folder: str, name: str, hosts: tuple[str, ...]) -> list[str]:
    """The processes that ever look for this name in this folder."""
    top, _, rest = folder.partition("/")
    if top == layout.INBOX:
        return [CLIENT] if name.startswith(".") else []
    if top == layout.CLAIMS:
        return [RECLAIMER, *(h for h in hosts if rest.startswith(h + "~"))]
    parsed = layout.parse_outbox_name(name)
    if parsed and parsed[1] == "done":
        return [CLIENT, parsed[0].incarnation[0]]
    # When a `.done` was seen, its result had been there before: no older view can lack it.
    return [] if parsed else [CLIENT]


def changed(disk: Disk, folder: str, name: str, appeared: bool, hosts: tuple[str, ...]) -> Disk:
    """The disk after noting who has not seen this change."""
    news = [Unseen(who, folder, appeared, name) for who in watchers(folder, name, hosts)]
    if not news:
        return disk
    replaced = {(n.who, n.folder) for n in news}
    kept = {u for u in disk.unseen if (u.who, u.folder) not in replaced}
    return disk._replace(unseen=frozenset(kept | set(news)))


def execute(disk: Disk, op: Op, hosts: tuple[str, ...]) -> tuple[tuple[str, Any], Disk]:
    """What an honest server answers to a request that changes something, and what it then has."""
    match op:
        case Rename(source, target):
            return _rename(disk, source, target, hosts)
        case Remove(path):
            content = disk.content(path)
            if content is None:
                return ("ok", False), disk
            after = disk._replace(files=disk.files - {(path, content)})
            return ("ok", True), changed(after, *_split(path), False, hosts)
        case MakeFolder(folder):
            if folder in disk.folders:
                return ("ok", False), disk
            after = disk._replace(folders=disk.folders | {folder})
            return ("ok", True), changed(after, folder, "", True, hosts)
        case RemoveFolder(folder):
            if folder not in disk.folders:
                return ("error", errno.ENOENT), disk
            if disk.names(folder):
                return ("error", errno.ENOTEMPTY), disk
            after = disk._replace(folders=disk.folders - {folder})
            return ("ok", None), changed(after, folder, "", False, hosts)
    raise AssertionError(op)


def effects(disk: Disk, op: Op, lens: Lens, begun: bool) -> list[Effect]:
    """Every way in which `op` may turn out for the process behind `lens`."""
    if isinstance(op, (Scan, Read)):
        return _looks(disk, op, lens)
    if isinstance(op, Put):
        return _write(disk, op, lens, begun)
    answer, after = execute(disk, op, lens.hosts)
    found = [Effect(answer, after)]
    failures = [errno.EIO]
    if lens.tells_absence:
        failures.append(errno.ENOENT)
    for number in failures:
        failure = ("error", number)
        if answer != failure:
            found.append(Effect(failure, disk, "fails, nothing was done", fault=True))
        if after != disk:
            found.append(Effect(failure, after, "works, reports failure", fault=True))
    if after != disk:
        found.append(Effect(("error", errno.EIO), disk, "fails, may come late", op, True))
        found.append(Effect(answer, after, "works, may come twice", op, True))
    return found


def _rename(
    disk: Disk, source: str, target: str, hosts: tuple[str, ...]
) -> tuple[tuple[str, Any], Disk]:
    content = disk.content(source)
    if content is None or target.rpartition("/")[0] not in disk.folders:
        return ("error", errno.ENOENT), disk
    files = {f for f in disk.files if f[0] not in (source, target)} | {(target, content)}
    after = disk._replace(files=frozenset(files))
    after = changed(after, *_split(source), False, hosts)
    return ("ok", None), changed(after, *_split(target), True, hosts)


def _write(disk: Disk, op: Put, lens: Lens, begun: bool) -> list[Effect]:
    folder, name = _split(op.path)
    before = disk.content(op.path)
    part = op.data[: len(op.data) // 2]
    if begun:
        if before is None:  # its name went to somebody else meanwhile, or nowhere
            return [Effect(("ok", None), disk, "closed, its name is gone")]
        whole = disk._replace(files=disk.files - {(op.path, before)} | {(op.path, op.data)})
        failure = ("error", errno.EIO)
        return [
            Effect(("ok", None), whole, "closed"),
            Effect(failure, whole, "all there, close reports failure", fault=True),
            Effect(failure, disk, "close fails, a part is there", fault=True),
        ]
    if folder not in disk.folders:
        return [Effect(("error", errno.ENOENT), disk)]
    after = disk._replace(files=disk.files - {(op.path, before or b"")} | {(op.path, part)})
    if before is None:
        after = changed(after, folder, name, True, lens.hosts)
    return [
        Effect(("begun", None), after, "begun"),
        Effect(("error", errno.EIO), disk, "fails, nothing was done", fault=True),
    ]


def _looks(disk: Disk, op: Scan | Read, lens: Lens) -> list[Effect]:
    folder = op.folder if isinstance(op, Scan) else _split(op.path)[0]
    stale = next((u for u in disk.unseen if u.who == lens.who and u.folder == folder), None)
    seen = disk._replace(unseen=disk.unseen - {stale}) if stale else disk
    found = [Effect(_view(disk, op, lens, None), seen)]
    if stale:
        old = Effect(_view(disk, op, lens, stale), seen, "an old view")
        if old.answer != found[0].answer:
            found.append(old)
    found.append(Effect(("error", errno.EIO), seen, "the look fails", fault=True))
    return found


def _view(disk: Disk, op: Scan | Read, lens: Lens, undo: Unseen | None) -> tuple[str, Any]:
    absent = ("error", errno.ENOENT)
    if isinstance(op, Read):
        content = disk.content(op.path)
        hidden = undo is not None and undo.appeared and undo.name == _split(op.path)[1]
        return absent if content is None or hidden else ("ok", content)
    there, names = op.folder in disk.folders, set(disk.names(op.folder))
    if undo and not undo.name:
        there = not undo.appeared
    elif undo:
        names = names - {undo.name} if undo.appeared else names | {undo.name}
    if not there:
        return absent
    return "ok", tuple(sorted(names if lens.interest is None else names & lens.interest))


def _split(path: str) -> tuple[str, str]:
    folder, _, name = path.rpartition("/")
    return folder, name
