"""How much a client has sent and read, noted beside its results so that an audit can add up.

A note costs two calls on the root, and a batch may cost ten in its whole life, so there is one now
and then, and one at the end. Only the last one is exact, and says so.
"""

from __future__ import annotations

import logging
import time

from fsworker.protocol import layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.records.counters import StreamCounters

log = logging.getLogger(__name__)

NOTE_EVERY = 10.0
"""Seconds between two notes of a client at work."""


class Bookkeeping:
    """The books of one incarnation of a client. One thread sends, another reads and notes."""

    def __init__(self, store: Store, stream: str, incarnation: str) -> None:
        self._store = store
        self._stream, self._incarnation = stream, incarnation
        self._path = layout.counters_path(stream, incarnation)
        self._open: dict[str, int] = {}
        self._submitted = self._submitted_tasks = self._read = self._read_tasks = 0
        self._doubtful = self._noted = False
        self._due = time.monotonic() + NOTE_EVERY

    def sent(self, batch: str, tasks: int) -> None:
        """A batch is about to be submitted: it may be answered before that returns."""
        self._open[batch] = tasks
        self._submitted += 1
        self._submitted_tasks += tasks

    def unsent(self, batch: str) -> None:
        """It was not submitted after all."""
        self._submitted -= 1
        self._submitted_tasks -= self._open.pop(batch, 0)

    def forgotten(self, batch: str) -> None:
        """The results of a batch were read, and are off the root."""
        tasks = self._open.pop(batch, None)
        if tasks is not None:
            self._read += 1
            self._read_tasks += tasks

    def doubtful(self) -> None:
        """Whether something that was read is off the root cannot be told any more."""
        self._doubtful = True

    def note(self) -> None:
        """Write down how it stands, if the last note is a while ago."""
        if time.monotonic() >= self._due:
            self._write(settled=False)

    def close(self, *, settled: bool) -> None:
        """Write the last note. `settled`: every batch that was sent was read or given up."""
        if settled and not self._open:
            self.withdraw()
        elif self._open:
            self._write(settled=settled and not self._doubtful)

    def withdraw(self) -> None:
        """Remove the note: there is nothing to add up any more."""
        if self._noted:
            self._store.remove_quietly(self._path)

    def _write(self, *, settled: bool) -> None:
        self._due = time.monotonic() + NOTE_EVERY
        counters = StreamCounters(
            layout.decode(self._stream),
            self._incarnation,
            self._submitted,
            self._read,
            self._submitted_tasks,
            self._read_tasks,
            settled,
        )
        try:
            self._store.publish(self._path, counters.to_json(), durable=settled)
            self._noted = True
        except OSError as error:
            log.debug("cannot note the counters of stream %s: %s", self._stream, error)
