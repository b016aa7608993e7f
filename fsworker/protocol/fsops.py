"""The only module that creates, lists, renames, syncs or removes files of a run root.

Shared filesystems break the habits that local disks teach, so each habit is replaced once, here:
existence is seen by listing a folder that was just opened; data counts as written only after fsync
and close both succeeded; a stale handle is reopened a bounded number of times; a rename that
reports failure is never believed to have done nothing. The module knows neither names nor records.

`Store` does things at once; `ops` says the same things as values, for the verbs of `ledger`.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from fsworker.errors import StorageError

T = TypeVar("T")

STALE_RETRIES = 5
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What a filesystem says to a file that it has no room for."""
READ_LIMIT = 1 << 30
"""Bytes that `read` takes into memory at most: no file of the protocol is larger."""


class _Operation(Protocol):
    def perform(self, store: Store) -> object: ...


class Store:
    """A run root on a filesystem.

    `calls` counts the calls that cost a round trip, by kind: list, open, create, rename, unlink,
    mkdir, rmdir. Folders and files are private to the user, or open to the group when the root
    is group-writable, whatever the umask says. Methods raise OSError as the system gave it.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.fspath(root)
        self.calls: Counter[str] = Counter()
        self._unique = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._group: bool | None = None

    def path(self, rel: str) -> str:
        """The real path of `rel`, for messages and for handing to other programs."""
        return f"{self.root}/{rel}" if rel else self.root

    def scan(self, folder: str) -> list[str]:
        """The names in a folder, from a fresh open of it."""
        return self._call("list", os.listdir, self.path(folder))

    def read(self, rel: str, limit: int = READ_LIMIT) -> bytes:
        """The whole of a file, from a fresh open. OSError EFBIG for more than `limit` bytes."""
        return self.read_with_mtime(rel, limit)[0]

    def read_with_mtime(self, rel: str, limit: int = READ_LIMIT) -> tuple[bytes, float]:
        """A file's bytes and its time of change by the file server's clock (epoch seconds)."""
        return self._call("open", _read_file, self.path(rel), limit)

    def put(self, rel: str, data: bytes, *, durable: bool = True) -> None:
        """Create (or begin anew) a file under its own name; written when this returns."""
        self._call("create", self._write_file, self.path(rel), data, durable)

    def publish(self, rel: str, data: bytes, *, durable: bool = True) -> None:
        """Replace a file so that every reader sees the old bytes or the new ones, never a mix.

        Without `durable` nothing is fsynced: for heartbeats, which a crash makes worthless anyway.
        """
        folder, _, name = rel.rpartition("/")
        hidden = f".tmp~{self._unique}~{name}"
        temp = f"{folder}/{hidden}" if folder else hidden
        try:
            self.put(temp, data, durable=durable)
            try:
                self.rename(temp, rel)
            except OSError:
                # The temporary is ours alone: if it is gone, the rename was done after all.
                if hidden in self.scan(folder):
                    raise
        except OSError:
            self.remove_quietly(temp)
            raise
        if durable:
            self.sync_folder(folder)

    def create(self, rel: str) -> int:
        """The descriptor of a new empty file, for who writes it by position and then `seal`s it.

        OSError EEXIST where there is one.
        """
        return self._call("create", self._open_new, self.path(rel), os.O_EXCL)

    def seal(self, fd: int) -> None:
        """End a file of `create`: what was written to it counts once this returned."""
        try:
            os.fsync(fd)
        finally:
            os.close(fd)  # a failing close is an error of the write

    def sync_folder(self, folder: str) -> None:
        """Make the names in a folder survive a crash of the machine that holds the disk."""
        fd = self._call("open", os.open, self.path(folder), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # not every filesystem can
                raise
        finally:
            os.close(fd)

    def rename(self, source: str, target: str) -> None:
        """One rename request. An error does not say that nothing happened: look."""
        self.calls["rename"] += 1
        os.rename(self.path(source), self.path(target))

    def remove(self, rel: str) -> bool:
        """Unlink a file; False when it was not there."""
        self.calls["unlink"] += 1
        try:
            os.unlink(self.path(rel))
        except FileNotFoundError:
            return False
        return True

    def remove_quietly(self, rel: str) -> None:
        """Unlink a file that is garbage by now; what cannot be removed is left to `fsck`."""
        with suppress(OSError):
            self.remove(rel)

    def mkdir(self, rel: str) -> bool:
        """Make a folder; False when it was there. Its parent must exist."""
        self.calls["mkdir"] += 1
        path = self.path(rel)
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            return False
        if self.group_writable:
            os.chmod(path, 0o2770)  # noqa: S103 - shared with a named group, on request
        return True

    def rmdir(self, rel: str) -> None:
        """Remove a folder, which the server refuses while anything is in it."""
        self.calls["rmdir"] += 1
        os.rmdir(self.path(rel))

    def append_line(self, rel: str, line: bytes) -> None:
        """Append to a file that only this process writes."""
        line = line.removesuffix(b"\n") + b"\n"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        fd = self._call("create", os.open, self.path(rel), flags, self._file_mode)
        try:
            while line:  # a disk that gets full takes a part, and says so the next time
                line = line[os.write(fd, line) :]
        finally:
            os.close(fd)

    def server_time(self, folder: str) -> float:
        """Now, by the clock that dates the files of `folder` (epoch seconds)."""
        probe = self.path(f"{folder}/.probe~{self._unique}")
        self.calls["create"] += 1
        fd = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, b".")
            os.fsync(fd)
            return os.fstat(fd).st_mtime
        finally:
            close_quietly(fd)  # a probe has nothing to lose
            self.calls["unlink"] += 1
            os.unlink(probe)

    def capacity(self) -> int:
        """The bytes that the root's filesystem has, free or not: no file can be larger."""
        found = os.statvfs(self.root)
        return found.f_frsize * found.f_blocks

    def run(self, verb: Generator[_Operation, Any, T]) -> T:
        """Perform a protocol verb's operations until it returns."""
        try:
            op = next(verb)
            while True:
                try:
                    answer = op.perform(self)
                except OSError as error:
                    op = verb.throw(error)
                else:
                    op = verb.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result

    @property
    def group_writable(self) -> bool:
        """Whether the root is shared with its group."""
        if self._group is None:
            self._group = bool(os.stat(self.root).st_mode & stat.S_IWGRP)
        return self._group

    @property
    def _file_mode(self) -> int:
        return 0o660 if self.group_writable else 0o600

    def _open_new(self, path: str, how: int) -> int:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, self._file_mode)
        if self.group_writable:
            try:
                os.fchmod(fd, 0o660)  # the umask took the group's bits
            except BaseException:
                os.close(fd)
                raise
        return fd

    def _write_file(self, path: str, data: bytes, durable: bool) -> None:
        fd = self._open_new(path, os.O_TRUNC)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            if durable:
                os.fsync(fd)
        except BaseException as error:
            close_quietly(fd)
            self._spare_room(path, error)
            raise
        try:
            os.close(fd)  # a failing close is an error of the write
        except OSError as error:
            self._spare_room(path, error)
            raise

    def _spare_room(self, path: str, error: BaseException) -> None:
        """Remove what was written of a file that does not fit, or a full disk stays full.

        Only where the server refused for certain: after any other error the write may still be
        executed, and so might a removal, long after the file was written again.
        """
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            self.calls["unlink"] += 1
            with suppress(OSError):  # the error of the write is the one to tell
                os.unlink(path)

    def _call(self, kind: str, function: Callable[..., T], *args: Any) -> T:
        """Call, and call again while the handle is stale: each time by path, from the root."""
        for attempt in range(STALE_RETRIES):
            self.calls[kind] += 1
            try:
                return function(*args)
            except OSError as error:
                if error.errno != errno.ESTALE or attempt == STALE_RETRIES - 1:
                    raise
                time.sleep(0.02 * 2**attempt)
        raise AssertionError("unreachable")


def close_quietly(fd: int) -> None:
    """Close what is given up: a server that refused a write may refuse again at the end."""
    with suppress(OSError):
        os.close(fd)


def _read_file(path: str, limit: int) -> tuple[bytes, float]:
    # A pipe that nobody writes to would keep us for ever, and a socket says ENXIO.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(fd)
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            raise OSError(errno.ENXIO, "it is a pipe or a device", path)
        size = found.st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"larger than {limit} bytes", path)
        chunks = []
        left = limit + 1
        while left and (chunk := os.read(fd, min(left, max(size, 1 << 16)))):
            chunks.append(chunk)
            left -= len(chunk)
        if not left:
            raise OSError(errno.EFBIG, f"larger than {limit} bytes", path)
        return b"".join(chunks), os.fstat(fd).st_mtime
    finally:
        os.close(fd)


def storage_error(error: OSError, doing: str, path: str) -> StorageError:
    """An OSError as the one sentence that an operator can act on."""
    advice = {
        errno.ENOSPC: ": free space on that filesystem",
        errno.EDQUOT: ": the quota is used up",
        errno.EACCES: ": check who owns it and its mode",
        errno.EROFS: ": the filesystem is mounted read-only",
    }.get(error.errno or 0, "")
    return StorageError(f"cannot {doing} {path}: {error.strerror or error}{advice}", path=path)
