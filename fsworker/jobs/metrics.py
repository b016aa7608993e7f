"""From a process that reports to files that people read: the runner's end of `fsworker.report`.

Points come through a pipe, so they outlive the process that sent them, and are written in batches
of `BATCH` points or every `EVERY` seconds: a shared filesystem sees few and large appends, by one
writer. A line is `[step, time, {name: value}]`; a last line that is cut short was never written.
"""

from __future__ import annotations

import json
import logging
import os
import time
from typing import Any

from fsworker.protocol.fsops import Store

log = logging.getLogger("fsworker.jobs.metrics")

BATCH, EVERY = 500, 2.0
MOST_LINE = 1 << 16
VARIABLE = "FLEET_METRICS"
_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
REWARD = "reward"


class Collector:
    """The pipe of one attempt and the file that its points go to."""

    def __init__(self, store: Store, path: str) -> None:
        self._store, self._path = store, path
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)
        try:
            import fcntl

            fcntl.fcntl(self.writing, _F_SETPIPE_SZ, _PIPE_BYTES)
        except OSError as error:
            log.debug("the pipe for reports stays small: %s", error)
        self._rest = b""
        self._lines: list[bytes] = []
        self._since: float | None = None
        self.rewards: dict[Any, float | None] = {}
        """The last `reward` of each step since `begin`."""

    @property
    def address(self) -> str:
        """Where a process writes: descriptor, and what proves that it is this pipe."""
        found = os.fstat(self.writing)
        return f"{self.writing}:{found.st_dev}:{found.st_ino}:{os.getpid()}"

    def begin(self) -> None:
        """A new training process: forget the rewards of the one before."""
        self.rewards = {}

    def hear(self) -> None:
        """Take what is in the pipe."""
        while True:
            try:
                data = os.read(self.reading, 1 << 16)
            except BlockingIOError:
                break
            if not data:
                break
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._take(line)
            if len(self._rest) > MOST_LINE:
                self._rest = b""
        self.tend()

    def tend(self) -> None:
        """Write what is due."""
        if self._since is None:
            return
        if len(self._lines) >= BATCH or time.monotonic() - self._since >= EVERY:
            self.flush()

    def flush(self) -> None:
        """Write everything; what cannot be written is dropped with a word, training goes on."""
        if not self._lines:
            return
        data = b"\n".join(self._lines) + b"\n"
        self._lines, self._since = [], None
        try:
            self._store.append_line(self._path, data)
        except OSError as error:
            log.warning("%d bytes of metrics are lost: %s", len(data), error)

    def _take(self, line: bytes) -> None:
        try:
            step, _, values = json.loads(line)
            reward = values.get(REWARD)
        except (ValueError, TypeError, AttributeError):
            return  # not by `report`
        self._lines.append(line)
        if self._since is None:
            self._since = time.monotonic()
        numbers = isinstance(step, (int, float)) and isinstance(reward, (int, float, type(None)))
        if numbers and REWARD in values:
            self.rewards[step] = reward
        if len(self._lines) >= BATCH:
            self.flush()


def parse(data: bytes) -> list[tuple[float, float, dict[str, float | None]]]:
    """The points in a file of metrics, in order; lines that are none are passed over."""
    found = []
    for line in data.split(b"\n")[:-1]:
        try:
            step, at, values = json.loads(line)
            if isinstance(values, dict):
                found.append((float(step), float(at), values))
        except (ValueError, TypeError):
            continue
    return found
