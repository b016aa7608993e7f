"""What user code may leave behind in its slot, put right before the next task could suffer from it.

An alarm that it set would hit the next task; descriptors 0 to 2 that it closed would be missing, or
become somebody's file; and a child that it forked may come back from the call as if it were us.
"""

from __future__ import annotations

import os
import signal

from fsworker.slots.process import Standard


class Aftermath:
    """Watches one process for what tasks leave behind."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._standard = Standard()

    def settle(self) -> None:
        """Put it right; whoever is a child of this process ends here, it has no business here."""
        signal.alarm(0)
        if os.getpid() != self._pid:
            os._exit(0)
        if self._standard.broken(0):
            self._standard.restore()
