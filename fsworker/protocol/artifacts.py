"""Folders as tokens: a checkpoint, an upload, a closed round, a global model.

Each is prepared under a hidden name beside its target, synced, and published by one `rename`, which
the server refuses while a folder with something in it has the name already. So the first one wins
whole and is never written to again; whoever comes later adopts what is there. An attempt that was
given up and lives on can therefore not touch the files of its successor.

A published checkpoint is only as good as its `done.json`: it is written last, it names every file
with size and digest, and nobody looks at a checkpoint without one.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fsworker.errors import FormatError
from fsworker.protocol import fsfolders, layout
from fsworker.protocol.fsfolders import Entry
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.records.artifact import Done, FileDigest, tree_digest

__all__ = [
    "DONE",
    "Damaged",
    "Done",
    "FileDigest",
    "Latest",
    "clear_away",
    "digest_files",
    "discard",
    "latest_verified",
    "prepare",
    "publish",
    "read_done",
    "tree_digest",
    "verify",
    "verify_files",
    "write_done",
]

DONE = "done.json"
RECORD_LIMIT = 16 << 20
"""Bytes that a record about a folder may have."""

_TRIES = 3
_PAUSE = 0.1
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)
_ABSENT = (FileNotFoundError, NotADirectoryError)
_NO_RECORD = (errno.EFBIG, errno.EISDIR, errno.ENXIO, errno.ELOOP, errno.ENAMETOOLONG)
"""It is too large, a folder, a pipe or device, or a link that leads nowhere: and will be."""


class Damaged(FormatError):
    """A folder is not what its record says; the sentence names the file and what is wrong."""


def prepare(store: Store, target: str, whose: str = "") -> str:
    """A new hidden folder beside `target`, to be filled and published; its parents are made.

    `whose` begins the unique part of its name, for those who clean up.
    """
    folder = layout.temporary(target, f"{whose}{os.getpid()}-{secrets.token_hex(6)}")
    try:
        fsfolders.make_folders(store, folder)
    except OSError as error:
        raise storage_error(error, "make", store.path(folder)) from None
    return folder


def digest_files(store: Store, folder: str) -> tuple[FileDigest, ...]:
    """The digests of all files in a folder and below it, by name, but for a `done.json`.

    Each file is read once, in pieces. Damaged for a link, a pipe, or a name that cannot be listed.
    """
    found = []
    for entry in fsfolders.entries(store, folder):
        path = store.path(f"{folder}/{entry.name}")
        if entry.kind == "other":
            raise Damaged(f"{path} is neither a file nor a folder", path=path)
        if entry.kind == "folder" or entry.name == DONE:
            continue
        file = FileDigest(entry.name, *fsfolders.digest(store, f"{folder}/{entry.name}"))
        if (problem := file.problem()) is not None:
            raise Damaged(f"{path}: {problem}", path=path)
        found.append(file)
    return tuple(found)


def write_done(store: Store, prepared: str, done: Done) -> None:
    """Put the record that makes a prepared folder a finished checkpoint: last of all."""
    store.put(f"{prepared}/{DONE}", done.to_json())


def publish(store: Store, prepared: str, target: str) -> bool:
    """Give a prepared folder its name. False when the name was taken: adopt what is there.

    Everything is synced before and the name after. The prepared folder is gone in both cases.
    Raises StorageError when neither can be told or done; the prepared folder then stays.
    """
    try:
        if not store.scan(prepared):
            raise ValueError(f"{prepared} is empty: the server would let others replace it")
        fsfolders.settle(store, prepared)
        won = _rename(store, prepared, target)
        if won:
            store.sync_folder(_parent(target))
    except OSError as error:
        raise storage_error(error, "publish", store.path(target)) from None
    if not won:
        discard(store, prepared)
    return won


def discard(store: Store, prepared: str) -> None:
    """Remove a prepared folder that will not be published; what cannot go is left to cleaners."""
    fsfolders.remove_tree(store, prepared)


def clear_away(store: Store, hidden: str) -> None:
    """Remove what somebody prepared who is believed to be dead; what cannot go stays.

    By one rename first: if he lives, all of it is gone for him, and he cannot publish a folder that
    lacks what was removed so far.
    """
    folder, _, name = hidden.rpartition("/")
    final = name.rpartition("~")[2]
    aside = layout.temporary(f"{folder}/{final}", f"{os.getpid()}-{secrets.token_hex(6)}")
    try:
        store.rename(hidden, aside)
    except OSError:
        return  # he published it, or another one clears it away; else the next time
    if not fsfolders.remove_tree(store, aside):
        store.remove_quietly(aside)


def _rename(store: Store, prepared: str, target: str) -> bool:
    """Whether ours got the name. After an error the folder of both tells, not the error."""
    hidden, name = prepared.rpartition("/")[2], target.rpartition("/")[2]
    absent = 0
    for attempt in range(_TRIES):
        try:
            store.rename(prepared, target)
        except OSError as error:
            there = store.scan(_parent(target))
            if hidden not in there:
                # Only our own rename takes it away, but one look may be older than the target.
                absent += 1
                if name in there:
                    return True
                if absent > 1 or attempt == _TRIES - 1:
                    raise
            elif error.errno in _TAKEN or name in there:
                return False
            elif attempt == _TRIES - 1:
                raise
            time.sleep(_PAUSE * attempt)
        else:
            return True
    raise AssertionError("unreachable")


def read_done(store: Store, folder: str) -> Done:
    """A folder's `done.json`. Damaged when there is none or it cannot be one."""
    path = store.path(f"{folder}/{DONE}")
    try:
        return Done.from_json(store.read(f"{folder}/{DONE}", RECORD_LIMIT), path)
    except _ABSENT:
        raise Damaged(f"{path} is missing: the checkpoint was never finished", path=path) from None
    except FormatError as error:
        raise Damaged(str(error), path=path) from None
    except OSError as error:
        if error.errno in _NO_RECORD:
            raise Damaged(f"{path}: {error.strerror}", path=path) from None
        raise storage_error(error, "read", path) from None


def verify(store: Store, folder: str, *, full: bool, exact: bool = False) -> Done:
    """A folder's record, when all that it names is there with the right size; Damaged otherwise.

    With `full` every byte is read and its digest compared, once from a fresh open. `exact`: nothing
    else lies there, which the record does not name and a reader might open.
    """
    done = read_done(store, folder)
    verify_files(store, folder, done.files, full=full, exact=exact)
    return done


def verify_files(
    store: Store, folder: str, files: Iterable[FileDigest], *, full: bool, exact: bool = False
) -> None:
    """Damaged, naming the first file that is not as its digest says; StorageError if unreadable."""
    try:
        there = {entry.name: entry for entry in fsfolders.entries(store, folder)}
        files = tuple(files)
        if exact:
            _refuse_others(store, folder, there, {file.name for file in files})
        for file in files:
            path, entry = store.path(f"{folder}/{file.name}"), there.get(file.name)
            if entry is None:
                raise Damaged(f"{path} is missing", path=path)
            if entry.kind != "file":
                raise Damaged(f"{path} is not a regular file", path=path)
            size, sha256 = entry.size, file.sha256
            if full and size == file.size:
                size, sha256 = fsfolders.digest(store, f"{folder}/{file.name}")
            if size != file.size:
                raise Damaged(f"{path} has {size} bytes, not {file.size}", path=path)
            if sha256 != file.sha256:
                raise Damaged(f"{path} has other content than its digest says", path=path)
    except _ABSENT:
        path = store.path(folder)
        raise Damaged(f"{path} is missing, or went while it was read", path=path) from None
    except OSError as error:
        raise storage_error(error, "read", store.path(folder)) from None


def _refuse_others(store: Store, folder: str, there: Mapping[str, Entry], named: set[str]) -> None:
    for name, entry in there.items():
        if entry.kind != "folder" and name not in named | {DONE} and not _is_hidden(name):
            path = store.path(f"{folder}/{name}")
            raise Damaged(f"{path} is there, and {DONE} does not name it", path=path)


def _is_hidden(name: str) -> bool:
    return any(layout.is_foreign(part) for part in name.split("/"))


@dataclass(frozen=True)
class Latest:
    """The best of a row of numbered folders, and those that claimed to be better and are not."""

    number: int
    folder: str
    done: Done | None
    bad: tuple[tuple[str, str], ...] = ()
    """(folder, what is wrong with it), from the highest number down."""


def latest_verified(store: Store, parent: str, prefix: str = "after_ep_") -> Latest:
    """The folder of the highest number in `parent` that verifies in full.

    Names are `prefix` and a number, in whatever width; all others are passed over. `done` is None
    and the number 0 when there is none. Bad ones are named and left. A parent that is missing has
    none.
    """
    try:
        names = store.scan(parent)
    except _ABSENT:
        names = []
    except OSError as error:
        raise storage_error(error, "list", store.path(parent)) from None
    pattern = re.compile(re.escape(prefix) + r"([0-9]{1,10})")
    found = [(int(m[1]), name) for name in names if (m := pattern.fullmatch(name))]
    bad = []
    # Of two spellings of one number, the shorter is what this project writes.
    for number, name in sorted(found, key=lambda f: (-f[0], len(f[1]))):
        folder = f"{parent}/{name}"
        try:
            done = verify(store, folder, full=True)
        except Damaged as error:
            bad.append((folder, str(error)))
        else:
            return Latest(number, folder, done, tuple(bad))
    return Latest(0, "", None, tuple(bad))


def _parent(path: str) -> str:
    return path.rpartition("/")[0]
