"""A regular file that is read by position: no shared offset, no mapping, every error a sentence.

A mapped file that is cut on a network mount ends the process by an uncatchable SIGBUS; `pread`
reports the same as a short read, which is refused by name.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fedavg.formats.descriptors import POOL
from fedavg.formats.errors import ChangedCheckpoint, DamagedCheckpoint, UnsupportedCheckpoint
from fsworker.errors import FormatError
from fsworker.protocol.fsops import STALE_RETRIES, storage_error


class Source:
    """One file. `size` (bytes) is fixed when it is opened: what grows later is not read.

    Safe to use from several threads, and any number of them may be open: descriptors are lent by a
    pool. Raises FormatError for what is no regular file, StorageError for what the filesystem
    refuses, ChangedCheckpoint when another file has taken its place meanwhile.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._closed = False
        self._known: tuple[int, ...] | None = None
        self.size = 0
        POOL.give_back(POOL.borrow(self))

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` (writable bytes) from `offset`. DamagedCheckpoint where the file ends."""
        for attempt in range(STALE_RETRIES):
            lent = POOL.borrow(self)
            try:
                self._fill(lent.fd, offset, buffer)
                return
            except OSError as error:
                if error.errno != errno.ESTALE or attempt == STALE_RETRIES - 1:
                    raise storage_error(error, "read", self.path) from None
                POOL.drop(self, lent)
            finally:
                POOL.give_back(lent)

    def read(self, offset: int, size: int) -> bytes:
        """`size` bytes from `offset`; for headers, not for tensors."""
        if offset < 0 or offset + size > self.size:
            raise DamagedCheckpoint(
                self.path, f"it has {self.size} bytes, its header needs {offset + size}"
            )
        data = bytearray(size)
        self.read_into(offset, memoryview(data))
        return bytes(data)

    def close(self) -> None:
        """End it; a second time does nothing."""
        self._closed = True
        POOL.forget(self)

    def check_unchanged(self) -> None:
        """Raise ChangedCheckpoint if the file was written to or replaced since it was opened.

        It is opened once more for that: what another machine wrote shows then, on NFS too.
        """
        os.close(self.open_again())

    def open_again(self) -> int:
        """A new descriptor of the same file; for the pool."""
        if self._closed:
            raise ValueError(f"{self.path} was closed")
        try:
            # Without O_NONBLOCK the open of a FIFO waits for somebody who writes to it.
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            raise FormatError(f"there is no checkpoint {self.path}", path=self.path) from None
        except OSError as error:
            raise storage_error(error, "read", self.path) from None
        try:
            self._check(os.fstat(fd))
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _check(self, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode):
            raise UnsupportedCheckpoint(self.path, "it is no regular file")
        seen = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        if self._known is None:
            self._known, self.size = seen, found.st_size
        elif seen != self._known:
            raise ChangedCheckpoint(self.path, "it was changed while it was being read")

    def _fill(self, fd: int, offset: int, left: memoryview) -> None:
        while len(left):
            count = os.preadv(fd, [left], offset)
            if not count:
                raise DamagedCheckpoint(self.path, f"it ends at byte {offset}, within its data")
            offset += count
            left = left[count:]


@contextmanager
def lent(sources: Sequence[Source]) -> Iterator[list[int]]:
    """A descriptor of each, for who reads by other means; raises what opening them raises."""
    found = POOL.borrow_all(sources)
    try:
        yield [descriptor.fd for descriptor in found]
    finally:
        POOL.give_back(*found)
