"""Whole folders and large files of a run root: what `fsops` does for names and small files.

A checkpoint may be larger than memory and may be a folder of many files, so it is read, copied and
digested in pieces; and it may have been written by a program that knows nothing of the protocol, so
its modes and its fsync are made good here before it is published. Like `fsops` this knows neither
names nor records. Symbolic links are never followed: a folder that somebody uploaded says nothing
about what lies outside of it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from fsworker.protocol.fsops import Store

CHUNK = 1 << 20
"""Bytes that are in memory at a time."""
DEPTH = 16
"""Folders within folders that are looked into; what is deeper is no checkpoint."""

Kind = Literal["file", "folder", "other"]
_UNSYNCABLE = (errno.EINVAL, errno.ENOTSUP)
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Not blocking: a pipe that lies where a file should must not stop its reader for ever."""


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """Something in a folder: its name relative to it (`/` between parts), what it is, its size."""

    name: str
    kind: Kind
    size: int = 0


def entries(store: Store, folder: str) -> list[Entry]:
    """All that is in a folder and below it, by name; each folder freshly opened.

    What is neither a regular file nor a folder (a link, a pipe) is `other`. NotADirectoryError when
    the folder itself is a link.
    """
    if not is_folder(store, folder):
        raise NotADirectoryError(errno.ENOTDIR, "not a folder", store.path(folder))
    return sorted(_entries(store, folder, "", DEPTH))


def _entries(store: Store, folder: str, prefix: str, depth: int) -> Iterator[Entry]:
    for name in store.scan(folder):
        path = f"{folder}/{name}"
        try:
            found = os.lstat(store.path(path))
        except FileNotFoundError:
            continue  # it went between the listing and now
        if stat.S_ISDIR(found.st_mode) and depth:
            yield Entry(prefix + name, "folder")
            yield from _entries(store, path, f"{prefix}{name}/", depth - 1)
        elif stat.S_ISREG(found.st_mode):
            yield Entry(prefix + name, "file", found.st_size)
        else:
            yield Entry(prefix + name, "other")


def digest(store: Store, rel: str) -> tuple[int, str]:
    """(bytes, SHA-256 in hex) of a regular file, from a fresh open. OSError ELOOP for a link."""
    hasher, size = hashlib.sha256(), 0
    for chunk in _chunks(store, rel):
        hasher.update(chunk)
        size += len(chunk)
    return size, hasher.hexdigest()


def copy(store: Store, source: str, target: str) -> tuple[int, str]:
    """Copy a regular file to a new name and sync it: (bytes, SHA-256) of what was copied."""
    hasher, size = hashlib.sha256(), 0
    store.calls["create"] += 1
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(store.path(target), flags, 0o600)
    try:
        for chunk in _chunks(store, source):
            hasher.update(chunk)
            size += len(chunk)
            view = memoryview(chunk)
            while view:
                view = view[os.write(fd, view) :]
        _settle(store, fd, 0o660)
    finally:
        os.close(fd)
    return size, hasher.hexdigest()


def settle(store: Store, folder: str) -> None:
    """Make a folder that others wrote into complete: every file synced, modes as the root's."""
    for entry in entries(store, folder):
        if entry.kind != "other":
            _open_and_settle(store, f"{folder}/{entry.name}", entry.kind == "folder")
    _open_and_settle(store, folder, True)


def make_folders(store: Store, folder: str) -> None:
    """Make a folder and those above it, as far as they are missing."""
    parent = folder.rpartition("/")[0]
    try:
        store.mkdir(folder)
    except FileNotFoundError:
        if not parent:
            raise
        make_folders(store, parent)
        store.mkdir(folder)


def is_folder(store: Store, rel: str) -> bool:
    """Whether this is a folder itself, and no link to one. OSError when it is not there."""
    return stat.S_ISDIR(os.lstat(store.path(rel)).st_mode)


def remove_tree(store: Store, folder: str, *, first: str | None = None) -> bool:
    """Remove a folder that nobody will read again; False when something of it stays.

    `first` is the file that makes readers look at the rest, so it goes before the rest. What a
    server keeps of open files (`.nfs…`) stays for the next time. Of a link only the link goes.
    """
    try:
        if not is_folder(store, folder):
            store.remove(folder)
            return True
        if first is not None:
            store.remove(f"{folder}/{first}")
        for entry in reversed(entries(store, folder)):
            path = f"{folder}/{entry.name}"
            if entry.kind == "folder":
                store.rmdir(path)
            else:
                store.remove(path)
        store.rmdir(folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def stamp(store: Store, rel: str) -> tuple[int, ...]:
    """What changes when a file is replaced or written to: compare with an earlier one."""
    found = os.lstat(store.path(rel))
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def last_change(store: Store, folder: str) -> float:
    """When anything in a folder was last written, by the file server's clock (epoch seconds)."""
    times = [os.lstat(store.path(folder)).st_mtime]
    for entry in entries(store, folder):
        try:
            times.append(os.lstat(store.path(f"{folder}/{entry.name}")).st_mtime)
        except FileNotFoundError:
            continue
    return max(times)


def _chunks(store: Store, rel: str) -> Iterator[bytes]:
    store.calls["open"] += 1
    fd = os.open(store.path(rel), _READ)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", store.path(rel))
        while chunk := os.read(fd, CHUNK):
            yield chunk
    finally:
        os.close(fd)


def _open_and_settle(store: Store, rel: str, folder: bool) -> None:
    store.calls["open"] += 1
    fd = os.open(store.path(rel), _READ | (os.O_DIRECTORY if folder else 0))
    try:
        _settle(store, fd, 0o2770 if folder else 0o660)
    finally:
        os.close(fd)


def _settle(store: Store, fd: int, shared_mode: int) -> None:
    if store.group_writable and os.fstat(fd).st_uid == os.getuid():
        os.fchmod(fd, shared_mode)  # its writer's umask may have shut the group out
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _UNSYNCABLE:
            raise
