"""Cancelling tasks that a client has sent: from futures to requests on the root, and back off it.

Any thread may ask; the reading thread writes the requests, one file for each batch, so that
thousands of futures that are cancelled in a loop cost a few files. A request is removed when the
batch is answered.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future
from typing import Any

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
        self._written: dict[str, list[str]] = {}
        self._due = 0.0

    def ask(self, future: Future[Any]) -> None:
        """Have a task ended. It must have been sent, or be about to be."""
        with self._lock:
            self._asked.add(future)

    def turn(self) -> None:
        """Write requests for what was asked since the last time."""
        now = time.monotonic()
        if not self._asked or now < self._due:
            return
        with self._lock:
            asked, self._asked = self._asked, set()
        for batch, receiver in self._transit.batches():
            found = receiver.places(asked)
            if found and self._write(batch, tuple(found.values())):
                asked.difference_update(found)
            if not asked:
                break
        # What no batch has is answered by now, or in the hands of the thread that sends.
        with self._lock:
            self._asked.update(future for future in asked if not future.done())
        self._due = time.monotonic() + BETWEEN

    def answered(self, batch: str) -> None:
        """A batch is answered: take back what was asked about it."""
        for path in self._written.pop(batch, ()):
            try:
                self._store.remove(path)
            except OSError as error:
                log.info("the request %s stays: %s", path, error)

    def _write(self, batch: str, places: tuple[int, ...]) -> bool:
        request = CancelRequest(f"{len(places)} tasks of {batch}", batch, places)
        try:
            path = requests.ask(self._store, batch, request)
        except OSError as error:
            log.warning("cannot ask to cancel tasks of %s yet: %s", batch, error)
            return False
        self._written.setdefault(batch, []).append(path)
        return True
