"""Sleeping that ends early: for a signal, or for a thread that has news.

A plain sleep would make a watcher slow to end and slow to act. A condition variable cannot be set
from a signal handler of the thread that waits on it; a pipe can be written by anyone.
"""

from __future__ import annotations

import os
import select
import signal
import time
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Alarm:
    """A sleep for one thread. `told`: the signal that asked this process to end, if one did."""

    def __init__(self) -> None:
        self.told = ""
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._open = True

    def ring(self) -> None:
        """End the sleep; may be called from any thread and from a signal handler."""
        if self._open:
            try:
                os.write(self._write, b"!")
            except BlockingIOError:
                pass  # it rings already

    def rest(self, until: float) -> bool:
        """Sleep until this monotonic time, or until it rings: True."""
        left = max(0.0, until - time.monotonic())
        if not select.select([self._read], [], [], left)[0]:
            return False
        try:
            os.read(self._read, 1 << 16)
        except BlockingIOError:
            pass
        return True

    def catch_signals(self) -> None:
        """From now on the first signal to end is noted, and the second ends at once."""
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup must stay what it is
                signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.told:
            raise KeyboardInterrupt(number)
        self.told = signal.Signals(number).name
        self.ring()

    def close(self) -> None:
        """Let go of the pipe."""
        self._open = False
        os.close(self._read)
        os.close(self._write)
