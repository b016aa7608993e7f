"""Connections that are kept between calls: one per host, each made by one thread at a time.

Apart from the protocol that makes them, because keeping them has its own ways to go wrong: two
threads that connect at once, a dead one that is used again, one that outlives its launcher.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Protocol

from ctl.launchers.base import ScriptLauncher, Sink
from ctl.launchers.errors import LaunchError


class Link(Protocol):
    """An open connection to one host."""

    def alive(self) -> bool:
        """Whether it can be used, as far as that is known without using it."""

    def run(self, body: bytes, sink: Sink, end: float) -> int | None:
        """Run the script before the monotonic time `end`, as `run_script` does."""

    def close(self) -> None:
        """Close it; whoever uses it gets an error. May be called twice."""


class ConnectedLauncher(ScriptLauncher):
    """A launcher that reaches its hosts by connections; what makes one is `connect`."""

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self._guard = threading.Lock()
        self._slots: dict[str, _Slot] = {}

    def connect(self, host: str, end: float) -> Link:
        """A new connection to `host` before the monotonic time `end`. LaunchError."""
        raise NotImplementedError

    def run_script(self, host: str, body: bytes, sink: Sink, timeout: float) -> int | None:
        """Run the script on `host`, over the connection that is there or a new one."""
        end = time.monotonic() + timeout
        slot = self._slot(host)
        link = self._link(host, slot, end)
        try:
            return link.run(body, sink, end)
        except LaunchError:
            # What failed once is in no known state; the next call starts from nothing.
            slot.drop(link)
            raise
        finally:
            if self._closing.is_set():
                slot.drop(link)

    def close(self) -> None:
        """Close every connection, also those that are in use."""
        super().close()
        with self._guard:
            slots = list(self._slots.values())
        for slot in slots:
            if slot.link:
                slot.drop(slot.link)

    def _slot(self, host: str) -> _Slot:
        with self._guard:
            return self._slots.setdefault(host, _Slot())

    def _link(self, host: str, slot: _Slot, end: float) -> Link:
        if not slot.lock.acquire(timeout=max(0.0, end - time.monotonic())):
            raise LaunchError(
                f"host {host}: another call is still connecting to it",
                host=host,
                stage="connect",
                transient=True,
                timed_out=True,
            )
        try:
            if slot.link and not slot.link.alive():
                slot.drop(slot.link)
            if slot.link is None:
                slot.link = self.connect(host, end)
            return slot.link
        finally:
            slot.lock.release()


class _Slot:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.link: Link | None = None

    def drop(self, link: Link) -> None:
        if self.link is link:
            self.link = None
        link.close()
