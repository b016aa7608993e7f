"""The worker's end of a runner: start it, tell it, hear it, be sure that it is gone."""

from __future__ import annotations

import logging
import os
import selectors
import subprocess
from collections.abc import Mapping
from typing import Any

from fsworker import bundled, outcomes
from fsworker.identity import Place, end_tree, find_by_environ
from fsworker.jobs import ticket as words
from fsworker.jobs.process import TOKEN
from fsworker.jobs.ticket import Ticket, heard
from fsworker.protocol import layout

log = logging.getLogger("fsworker.jobs.link")

_PRIVATE = ("FLEET_LIFE_FD", "FLEET_LOCK_FD")


def _environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k not in _PRIVATE}


class RunnerLink:
    """One runner process, from its start to its end."""

    def __init__(self, ticket: Ticket, name: str, selector: selectors.BaseSelector) -> None:
        self.ticket = ticket
        self.episode = 0
        self.last: Mapping[str, Any] = {}
        self._selector, self._rest, self._open = selector, b"", True
        self._process = subprocess.Popen(
            [*bundled.command("fsworker.jobs.runner"), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(),
            cwd="/",
            start_new_session=True,
        )
        assert self._process.stdin and self._process.stdout
        self._reading = self._process.stdout.fileno()
        os.set_blocking(self._reading, False)
        # A pipe that was just made has room for a ticket: it is shorter than the kernel's buffer.
        self._write(ticket.line())
        selector.register(self._reading, selectors.EVENT_READ, lambda _: self._hear())

    @property
    def pid(self) -> int:
        """The runner's pid."""
        return self._process.pid

    def cancel(self) -> None:
        """End the job, whose result is then cancelled."""
        self._write(words.CANCEL)

    def drain(self) -> None:
        """Let the job save what it can, and give it back."""
        self._write(words.DRAIN)

    def abandon(self) -> None:
        """Nobody wants the job here: it ends with all its processes, and says nothing."""
        assert self._process.stdin
        try:
            self._process.stdin.close()
        except OSError:
            pass

    def ended(self) -> bool:
        """Whether the process has ended and all that it said was heard."""
        if self._process.poll() is None:
            return False
        self._hear()
        if self._open:  # something that it started holds its stdout
            self._shut()
        return True

    def how(self) -> str:
        """How it ended, in words."""
        code = self._process.returncode or 0
        return outcomes.exit_words("signal" if code < 0 else "exit", abs(code))

    def kill(self) -> None:
        """End the runner itself, at once."""
        self._process.kill()
        self._process.wait()
        self.ended()

    def _write(self, data: bytes) -> None:
        assert self._process.stdin
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except (OSError, ValueError):
            log.debug("runner %d does not listen any more", self.pid)

    def _hear(self) -> None:
        while self._open:
            try:
                data = os.read(self._reading, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                self._shut()
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._take(heard(line))

    def _take(self, word: Mapping[str, Any]) -> None:
        if word.get("say") == words.EPISODE:
            self.episode = int(word.get("episode", 0))
        elif word:
            self.last = word

    def _shut(self) -> None:
        self._open = False
        self._selector.unregister(self._reading)
        assert self._process.stdout and self._process.stdin
        self._process.stdout.close()
        self.abandon()


def end_runner(link: RunnerLink) -> None:
    """End a runner that does not end by itself, and all that is below it; waits for it."""
    log.warning("the runner of pid %d does not end: it is killed", link.pid)
    place = Place.here(link.ticket.holder.host)
    token = f"{link.ticket.token.batch}.{link.ticket.attempt.name}"
    below = [link.pid]
    left = end_tree(
        find_by_environ({TOKEN: token}, place), place, tokens={TOKEN: token}, grace=0.0, below=below
    )
    link.kill()
    for one in left:
        log.error("pid %d of a job is left: %s", one.pid, one.state)


def finish(root: str, claim: str) -> subprocess.Popen[bytes]:
    """Start making the copies of a job's result; it looks for itself whether that counts."""
    token = layout.parse_claim_name(claim)
    assert token is not None
    job = layout.job_of(token.batch)
    return subprocess.Popen(
        [*bundled.command("fsworker.jobs.finish"), root, job],
        stdin=subprocess.DEVNULL,
        env=_environment(),
        cwd="/",
        start_new_session=True,
    )
