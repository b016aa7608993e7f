"""Every commit of the soak, as the kernel tells of it: a witness that the product has no part in.

A commit is a rename into the stream's folder. The kernel reports each one to whoever watches the
folder, however quickly the client removes it again: so a batch that is committed twice is seen,
and so is the moment at which a host commits again after a kill.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from fsworker.protocol import layout
from soak_processes import ENDS_LIFE, Process

_MOVED_TO, _CREATE, _OVERFLOW = 0x80, 0x100, 0x4000
_EVENT = struct.Struct("iIII")


@dataclass
class Wait:
    """A kill, and the seconds until its host committed again."""

    killed: Process
    at: float
    seconds: float | None = None


@dataclass
class Commits:
    """What was seen of the stream with this encoded name on the root."""

    root: str
    name: str
    of_batch: Counter[str] = field(default_factory=Counter)
    waits: list[Wait] = field(default_factory=list)
    open: list[Wait] = field(default_factory=list)
    """Those that are not over."""
    complete: bool = True
    """Whether the kernel told of everything."""

    def __enter__(self) -> Commits:
        self._hosts: dict[str, str] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        stream = layout.outbox_dir(self.name)
        os.makedirs(f"{self.root}/{stream}", exist_ok=True)
        for folder, mask in ((stream, _MOVED_TO), (layout.CLAIMS, _CREATE)):
            path = os.fsencode(f"{self.root}/{folder}")
            if libc.inotify_add_watch(self._fd, path, mask) < 0:
                raise OSError(ctypes.get_errno(), f"cannot watch {self.root}/{folder}")
        for name in os.listdir(f"{self.root}/{layout.CLAIMS}"):
            self._owner(name)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        os.close(self._fd)

    def killed(self, process: Process) -> None:
        """Measure how long its host takes to commit again: if its life was ended, in a new one."""
        with self._lock:
            wait = Wait(process, time.monotonic())
            self.waits.append(wait)
            self.open.append(wait)

    def twice(self) -> dict[str, int]:
        """The batches that were committed more than once."""
        return {batch: count for batch, count in self.of_batch.items() if count > 1}

    def _watch(self) -> None:
        while not self._over.is_set():
            if select.select([self._fd], [], [], 0.1)[0]:
                self._read(os.read(self._fd, 1 << 16))

    def _read(self, data: bytes) -> None:
        at, now = 0, time.monotonic()
        while at < len(data):
            _, mask, _, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size
            name = data[at : at + length].rstrip(b"\0").decode(errors="replace")
            at += length
            if mask & _OVERFLOW:
                self.complete = False
            elif mask & _CREATE:
                self._owner(name)
            else:
                self._moved(name, now)

    def _owner(self, name: str) -> None:
        owner = layout.parse_owner(name)
        if owner is not None:
            self._hosts[owner.incarnation] = owner.host

    def _moved(self, name: str, now: float) -> None:
        parsed = layout.parse_outbox_name(name)
        if parsed is None or parsed[1] != "done":
            return
        outcome = parsed[0]
        self.of_batch[outcome.batch] += 1
        host = self._hosts.get(outcome.incarnation)
        with self._lock:
            for wait in [w for w in self.open if w.killed.host == host]:
                if wait.killed.kind not in ENDS_LIFE or outcome.incarnation != wait.killed.life:
                    wait.seconds = now - wait.at
                    self.open.remove(wait)
