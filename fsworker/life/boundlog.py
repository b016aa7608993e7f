"""Log files that are cut in place, so that weeks of output fill no quota.

The worker writes to its log through a descriptor that it keeps for life, so a log cannot be
renamed away: it is shortened under its writer, which appends (O_APPEND) and does not notice. Space
is free at once, without a restart. And a log is never a reason to fail: what cannot be written is
dropped, and opening is tried again later.
"""

from __future__ import annotations

import logging
import os

from fsworker.protocol import layout
from fsworker.protocol.fsops import Store

LIMIT = 5_000_000
"""Bytes beyond which a log is cut."""

KEEP = 1_000_000
"""Bytes of its newest lines that stay when it is cut."""

_NOTE = b"... older lines were cut to bound this file ...\n"


class BoundLog:
    """One log file of this host. No method raises OSError."""

    @classmethod
    def of(cls, store: Store, host: str, suffix: str, limit: int = LIMIT) -> BoundLog:
        """A host's log under `ctl/`, as private or as shared as the root is."""
        mode = 0o660 if store.group_writable else 0o600
        return cls(store.path(layout.host_file(host, suffix)), limit=limit, mode=mode)

    def __init__(self, path: str, *, limit: int = LIMIT, mode: int = 0o600) -> None:
        self.path, self._limit, self._mode = path, limit, mode
        self._fd: int | None = None

    def open(self) -> int | None:
        """A descriptor that appends to the file, opened when needed; None while that fails."""
        if self._fd is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            try:
                self._fd = os.open(self.path, flags, self._mode)
            except OSError:
                return None
            self._share(self._fd)
        return self._fd

    def _share(self, fd: int) -> None:
        """Give the group what the umask took from it."""
        if self._mode & 0o070:
            try:
                os.fchmod(fd, self._mode)
            except OSError:
                pass  # a colleague's file, who gave it the mode that it has

    def close(self) -> None:
        """Close it; a later write opens it again."""
        if self._fd is not None:
            try:
                os.close(self._fd)
            except OSError:
                pass
        self._fd = None

    def write(self, data: bytes) -> None:
        """Append, or drop."""
        fd = self.open()
        if fd is None:
            return
        try:
            os.write(fd, data)
        except OSError:
            self.close()  # a stale handle does not recover: begin anew with the next line

    def tend(self) -> None:
        """Cut it if it has grown too long; follow if it was deleted."""
        fd = self.open()
        if fd is None:
            return
        try:
            if os.fstat(fd).st_nlink == 0:
                self.close()
            else:
                cut_in_place(fd, self._limit, min(KEEP, self._limit // 2))
        except OSError:
            self.close()


def cut_in_place(fd: int, limit: int, keep: int) -> bool:
    """Shorten the file to its last whole lines, at most `keep` bytes, if it exceeds `limit`.

    `fd` must be open for reading and appending, and so must every writer's. A line that is written
    in the microseconds between the last look and the cut is lost.
    """
    size = os.fstat(fd).st_size
    if size <= limit:
        return False
    tail = _read(fd, size - keep, size)
    tail = tail[tail.find(b"\n") + 1 :]
    now = os.fstat(fd).st_size
    tail += _read(fd, size, min(now, size + keep))
    os.ftruncate(fd, 0)
    view = memoryview(_NOTE + tail)
    while view:
        view = view[os.write(fd, view) :]
    return True


class StderrHandler(logging.Handler):
    """Logging to stderr, which is a file on the root: what it does not take is dropped unsaid.

    Python's own handler would fill the log with a traceback. Tried twice, since the client of a
    file server tells at the next write what became of the last one; so a line may be there twice.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        try:
            line = self.format(record).encode("utf-8", "backslashreplace") + b"\n"
        except Exception:
            self.handleError(record)
            return
        for _ in range(2):
            try:
                os.write(2, line)
                return
            except OSError:
                continue


class BoundHandler(logging.Handler):
    """Logging into a BoundLog."""

    def __init__(self, log: BoundLog) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; never raises, since a log must not end what it reports on."""
        try:
            self._log.write(self.format(record).encode("utf-8", "backslashreplace") + b"\n")
        except Exception:
            self.handleError(record)


def _read(fd: int, begin: int, end: int) -> bytes:
    chunks = []
    while begin < end and (chunk := os.pread(fd, end - begin, begin)):
        chunks.append(chunk)
        begin += len(chunk)
    return b"".join(chunks)
