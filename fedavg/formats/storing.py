"""Has the disk store a file while more of it is written, so that little is left for its fsync.

To ask the system to begin writing (`sync_file_range`, `posix_fadvise`) is not enough: the bytes may
wait in a disk's, a host's or a file server's cache until somebody asks for them to be durable, and
to have half a GiB made durable takes as long as to merge it. So a thread of each output does ask.
"""

from __future__ import annotations

import os
import threading

STEP = 16 << 20
"""Bytes that are stored together. What is shorter is left to the fsync."""


class Storing:
    """The thread of one output, which may have many files. It is started when it is first needed.

    An error of storing is told once, to whoever asks first; so it is kept here, and raised by every
    call from then on: an fsync later would know nothing of it.
    """

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._written: dict[int, int] = {}
        self._thread: threading.Thread | None = None
        self._error: OSError | None = None
        self._ended = False

    def wrote(self, fd: int, count: int) -> None:
        """So many bytes were written to `fd`, which stays open until `end`. OSError of storing."""
        with self._change:
            self._raise()
            self._written[fd] = self._written.get(fd, 0) + count
            if self._written[fd] < STEP:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="storing", daemon=True)
                self._thread.start()
            self._change.notify()

    def end(self) -> None:
        """Wait until the thread is through with what it does. OSError of storing."""
        with self._change:
            self._ended = True
            self._change.notify()
        if self._thread is not None:
            self._thread.join()
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while (fd := self._next()) is not None:
            try:
                os.fdatasync(fd)
            except OSError as error:
                with self._change:
                    self._error = error
                return

    def _next(self) -> int | None:
        """The file of which most is to be stored, once that is enough; None at the end."""
        with self._change:
            while not self._ended:
                fd = max(self._written, key=lambda f: self._written[f])
                if self._written[fd] >= STEP:
                    self._written[fd] = 0
                    return fd
                self._change.wait()
            return None
