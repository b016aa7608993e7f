"""What becomes of clients when their process forks or ends.

A forked child has its parent's locks, in whatever state, and none of its threads: every client in
it begins anew. A process that ends takes threads and futures along, but what was submitted is sent.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from typing import Protocol

AT_EXIT = 10.0
"""Seconds for which a process that ends waits for its last tasks to be sent."""


class Renewed(Protocol):
    """A client, which begins anew in a forked child."""

    def _renew(self) -> None:
        """Forget what is the parent's."""


class Flushed(Protocol):
    """An engine, which sends what it has before the process ends."""

    def flush(self, timeout: float) -> None:
        """Send it, within so many seconds."""


clients: weakref.WeakSet[Renewed] = weakref.WeakSet()
engines: weakref.WeakSet[Flushed] = weakref.WeakSet()
ended = threading.Event()
"""The process ends: nothing can be submitted any more."""


def _forked() -> None:
    engines.clear()
    for client in list(clients):
        client._renew()


def _at_exit() -> None:
    ended.set()
    for engine in list(engines):
        engine.flush(AT_EXIT)


os.register_at_fork(after_in_child=_forked)
atexit.register(_at_exit)
