"""A regular file that is read by position: no shared offset, no mapping, every error a sentence.

A mapped file that is cut on a network mount ends the process by an uncatchable SIGBUS; `pread`
reports the same as a short read, which is refused by name.
"""

from __future__ import annotations

import os
import stat

from fedavg.formats.errors import DamagedCheckpoint, UnsupportedCheckpoint
from fsworker.errors import FormatError
from fsworker.protocol.fsops import storage_error


class Source:
    """One open file. `size` (bytes) is fixed when it is opened: what grows later is not read.

    Safe to use from several threads. Raises FormatError for what is no regular file, StorageError
    for what the filesystem refuses.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            # Without O_NONBLOCK the open of a FIFO waits for somebody who writes to it.
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            found = os.fstat(self._fd)
        except FileNotFoundError:
            raise FormatError(f"there is no checkpoint {path}", path=path) from None
        except OSError as error:
            raise storage_error(error, "read", path) from None
        if not stat.S_ISREG(found.st_mode):
            self.close()
            raise UnsupportedCheckpoint(path, "it is no regular file")
        self.size = found.st_size

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` (writable bytes) from `offset`. DamagedCheckpoint where the file ends."""
        left = buffer
        while len(left):
            try:
                count = os.preadv(self._fd, [left], offset)
            except OSError as error:
                raise storage_error(error, "read", self.path) from None
            if not count:
                raise DamagedCheckpoint(self.path, f"it ends at byte {offset}, within its data")
            offset += count
            left = left[count:]

    def read(self, offset: int, size: int) -> bytes:
        """`size` bytes from `offset`; for headers, not for tensors."""
        if offset < 0 or offset + size > self.size:
            raise DamagedCheckpoint(
                self.path, f"it has {self.size} bytes, and {offset + size} are spoken of"
            )
        data = bytearray(size)
        self.read_into(offset, memoryview(data))
        return bytes(data)

    def close(self) -> None:
        """Close it; a second time does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
