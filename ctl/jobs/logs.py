"""The log of a job: those of all its attempts, one behind the other, also as they grow."""

from __future__ import annotations

import os
from collections.abc import Iterator

from fsworker.protocol import joblog, jobstate, layout
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.layout.jobs import Attempt

CHUNK = 1 << 16


class JobLog:
    """Reads a job's log from where it stopped last time, however it is cut meanwhile."""

    def __init__(self, store: Store, job: str) -> None:
        self._store, self._job = store, job
        self._places: dict[Attempt, int] = {}
        asked = jobstate.read_job(store, job)
        self._limit = asked.log_limit if asked else 0

    def more(self) -> Iterator[bytes]:
        """What came since the last call, in order."""
        for attempt, _ in jobstate.attempts(self._store, self._job):
            yield from self._of(attempt)

    def _of(self, attempt: Attempt) -> Iterator[bytes]:
        folder = layout.jobs.attempt_dir(self._job, attempt)
        path = self._store.path(f"{folder}/{layout.jobs.LOG_FILE}")
        place = self._places.get(attempt, 0)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_error(error, "read", path) from None
        try:
            while True:
                cut = joblog.read_cut(fd, self._limit)
                position = cut.position(place)
                data = os.pread(fd, CHUNK, position)
                if joblog.read_cut(fd, self._limit) != cut:
                    continue  # it was cut as we read
                if not data:
                    break
                place = cut.place(position + len(data))
                yield data
        finally:
            os.close(fd)
            self._places[attempt] = place
