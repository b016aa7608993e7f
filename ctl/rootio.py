"""The watcher's end of the pipe to the process that touches the run root.

Every call has a bound. When the answer does not come the caller gets `Late` and goes on without
it; the child is waited for, later killed, and when even that does not end it (state D), abandoned
and replaced, a bounded number of times. Answers that come after their question was given up are
thrown away.
"""

from __future__ import annotations

import json
import logging
import os
import select
import subprocess
import sys
import time
from typing import Any

import fsworker.errors as errors
from fsworker.errors import FleetError, StorageError

log = logging.getLogger("ctl.rootio")

ABANDON_AFTER = 30.0
"""Seconds without an answer after which the child is given up."""

ABANDONED_MAX = 3
"""How many children may hang at once: beyond that, one that ended is waited for."""


class Late(StorageError):
    """The root did not answer in time; whether what was asked is done is not known."""


class RootIO:
    """Requests to one child at a time. Not safe for several threads."""

    def __init__(self, root: str, *, abandon_after: float = ABANDON_AFTER) -> None:
        self.root = root
        self.generation = 0
        self._abandon_after = abandon_after
        self._child: subprocess.Popen[bytes] | None = None
        self._abandoned: list[subprocess.Popen[bytes]] = []
        self._buffer = bytearray()
        self._asked_at: float | None = None

    @property
    def pid(self) -> int | None:
        """The child's pid, for tests."""
        return self._child.pid if self._child else None

    @property
    def running(self) -> bool:
        """Whether there is a child to ask; asking starts one if not."""
        return self._child is not None

    @property
    def abandoned(self) -> int:
        """How many children were given up and have not ended yet."""
        self._reap()
        return len(self._abandoned)

    def call(self, verb: str, timeout: float, **fields: Any) -> Any:
        """Ask, and wait for the answer. Raises Late, and what the child raised."""
        child = self._ready()
        end = time.monotonic() + timeout
        self._asked_at = time.monotonic()
        try:
            self._send(child, json.dumps({"verb": verb, **fields}).encode() + b"\n", end)
            reply = self._receive(child, end)
        except (OSError, EOFError) as error:
            self._give_up()
            raise Late(
                f"the process that reads {self.root} ended while it was asked to {verb}",
                path=self.root,
            ) from error
        self._asked_at = None
        answer = json.loads(reply)
        if "error" in answer:
            kind = getattr(errors, answer["kind"], FleetError)
            raise kind(answer["error"], path=self.root)
        return answer["value"]

    def recover(self, timeout: float) -> bool:
        """Wait for the answer that is owed; True when the next question can be asked."""
        self._reap()
        if self._child is None or self._asked_at is None:
            return self._child is not None or len(self._abandoned) < ABANDONED_MAX
        try:
            self._receive(self._child, time.monotonic() + timeout)
        except Late:
            if time.monotonic() - self._asked_at < self._abandon_after:
                return False
            log.warning("the process that reads %s hangs: it is given up", self.root)
            self._give_up()
            return len(self._abandoned) < ABANDONED_MAX
        except (OSError, EOFError):
            self._give_up()
            return len(self._abandoned) < ABANDONED_MAX
        self._asked_at = None
        return True

    def close(self, patience: float = 2.0) -> None:
        """End the child; one that hangs is left behind."""
        child, self._child = self._child, None
        if child:
            _close_pipes(child)
            try:
                child.wait(patience)
            except subprocess.TimeoutExpired:
                child.kill()
                self._abandoned.append(child)
        self._reap()

    def _ready(self) -> subprocess.Popen[bytes]:
        if self._asked_at is not None and not self.recover(0.0):
            raise Late(f"the run root {self.root} does not answer", path=self.root)
        if self._child is None:
            self._child = _start(self.root)
            self._buffer.clear()
            self.generation += 1
        return self._child

    def _send(self, child: subprocess.Popen[bytes], data: bytes, end: float) -> None:
        assert child.stdin
        view = memoryview(data)
        while view:
            if not select.select([], [child.stdin], [], max(0.0, end - time.monotonic()))[1]:
                raise self._late()
            view = view[os.write(child.stdin.fileno(), view[: select.PIPE_BUF]) :]

    def _receive(self, child: subprocess.Popen[bytes], end: float) -> bytes:
        assert child.stdout
        while (at := self._buffer.find(b"\n")) < 0:
            if not select.select([child.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                raise self._late()
            data = os.read(child.stdout.fileno(), 1 << 20)
            if not data:
                raise EOFError
            self._buffer += data
        line = bytes(self._buffer[:at])
        del self._buffer[: at + 1]
        return line

    def _late(self) -> Late:
        return Late(f"the run root {self.root} does not answer", path=self.root)

    def _give_up(self) -> None:
        child, self._child = self._child, None
        self._asked_at = None
        if child:
            child.kill()
            _close_pipes(child)
            self._abandoned.append(child)
        self._reap()

    def _reap(self) -> None:
        self._abandoned = [c for c in self._abandoned if c.poll() is None]


def _start(root: str) -> subprocess.Popen[bytes]:
    # The folder that this package came from, not the working folder, which may hang as well.
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    old = os.environ.get("PYTHONPATH")
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "ctl.rootchild", root],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{package}:{old}" if old else package},
        cwd="/",
        start_new_session=True,
    )


def _close_pipes(child: subprocess.Popen[bytes]) -> None:
    for stream in (child.stdin, child.stdout):
        try:
            if stream:
                stream.close()
        except OSError:
            pass  # what could not be flushed is of no use to a process that is given up
