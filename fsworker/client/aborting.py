"""Cancelling tasks that a client has sent: from futures to requests on the root, and back off it.

Any thread may ask; the reading thread writes the requests, one file for each batch, so that
thousands of futures that are cancelled in a loop cost a few files. A request is removed when the
batch is answered.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import Any

from fsworker.client.receivers import Piece, Strip
from fsworker.client.transit import Transit
from fsworker.protocol import requests
from fsworker.protocol.fsops import Store
from fsworker.protocol.records.cancel import CancelRequest

log = logging.getLogger(__name__)

BETWEEN = 0.02
"""Seconds between two searches for the batches of futures: each goes through all that are open."""


class Aborting:
    """The requests of one client."""

    def __init__(self, store: Store, transit: Transit) -> None:
        self._store, self._transit = store, transit
        self._asked: set[Future[Any]] = set()
        self._lock = threading.Lock()
        self._strips: deque[Strip] = deque()
        self._written: dict[str, list[str]] = {}
        self._due = 0.0

    def ask(self, future: Future[Any]) -> None:
        """Have a task ended. It must have been sent, or be about to be."""
        with self._lock:
            self._asked.add(future)

    def drop(self, strip: Strip) -> None:
        """Have what was sent of a strip ended.

        Without a lock: iterators of `map` are closed by whichever thread collects garbage, even by
        the reading thread while it holds the lock.
        """
        if not strip.complete:
            self._strips.append(strip)

    def turn(self) -> None:
        """Write requests for what was asked since the last time."""
        now = time.monotonic()
        if not (self._asked or self._strips) or now < self._due:
            return
        if self._strips:
            self._end_strips()
        if self._asked:
            self._end_futures()
        self._due = time.monotonic() + BETWEEN

    def _end_strips(self) -> None:
        """Ask for all batches of the strips that were dropped, until those are answered: one that
        the thread that sends has in hand is found the next time."""
        for _ in range(len(self._strips)):
            strip = self._strips.popleft()
            if strip.complete:
                continue
            self._strips.append(strip)
            for batch, receiver in self._transit.batches():
                ours = isinstance(receiver, Piece) and receiver.is_of(strip)
                if ours and batch not in self._written:
                    self._write(batch, (), receiver.count)

    def _end_futures(self) -> None:
        with self._lock:
            asked, self._asked = self._asked, set()
        for batch, receiver in self._transit.batches():
            found = receiver.places(asked)
            if found and self._write(batch, tuple(found.values()), len(found)):
                asked.difference_update(found)
            if not asked:
                break
        # What no batch has is answered by now, or in the hands of the thread that sends.
        with self._lock:
            self._asked.update(future for future in asked if not future.done())

    def answered(self, batch: str) -> None:
        """A batch is answered: take back what was asked about it."""
        for path in self._written.pop(batch, ()):
            try:
                self._store.remove(path)
            except OSError as error:
                log.info("the request %s stays: %s", path, error)

    def _write(self, batch: str, places: tuple[int, ...], count: int) -> bool:
        request = CancelRequest(f"{count} tasks of {batch}", batch, places)
        try:
            path = requests.ask(self._store, batch, request)
        except OSError as error:
            log.warning("cannot ask to cancel tasks of %s yet: %s", batch, error)
            return False
        self._written.setdefault(batch, []).append(path)
        return True
