"""One attempt at a job: its folder, its log, its note, and commands that run before and after.

Everything that it writes lies in `attempts/<k>~<incarnation>/`, until an episode or the result is
published. Its log has a line of ours before each process, so that one file tells the whole story.
"""

from __future__ import annotations

import logging
import os
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from fsworker import bundled
from fsworker.errors import StorageError
from fsworker.identity import Place
from fsworker.jobs import environment, process
from fsworker.jobs.control import Control
from fsworker.jobs.metrics import Collector
from fsworker.jobs.process import Command, Ended
from fsworker.jobs.ticket import Ticket
from fsworker.protocol import fsfolders, joblog, jobstate, layout
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.records.job import AttemptNote, Job, utc_now

log = logging.getLogger("fsworker.jobs.attempt")

T = TypeVar("T")

CHECK_PATIENCE = 300.0
"""Seconds that a command before or after a job may take."""
LOG_EVERY = 1.0
"""Seconds between two looks at the length of the log."""
PREFLIGHT, POSTFLIGHT = "FLEET_PREFLIGHT", "FLEET_POSTFLIGHT"
"""Variables of a worker: commands of the host, for every job."""
_PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 120.0)


class AttemptFolder:
    """What an attempt owns."""

    def __init__(self, store: Store, ticket: Ticket, job: Job, control: Control) -> None:
        self.store, self.ticket, self.job, self.control = store, ticket, job, control
        self.attempt = ticket.attempt
        self.folder = layout.jobs.attempt_dir(job.job_id, self.attempt)
        self.log_path = f"{self.folder}/{layout.jobs.LOG_FILE}"
        self.place = Place.here(ticket.holder.host)
        self.rank = (layout.seq_of(ticket.token.batch), self.attempt.number)
        self.token = f"{ticket.token.batch}.{self.attempt.name}"
        self.left: set[int] = set()
        self.insist(lambda: fsfolders.make_folders(store, self.folder))
        self._log = self.insist(lambda: _open_log(store, self.log_path))
        self.metrics = Collector(store, f"{self.folder}/{jobstate.METRICS_FILE}")
        control.attach(self.metrics.reading, self.metrics.hear)
        self._log_due = 0.0
        control.each_time(self._tend)
        self._env = self._environment()
        self.note = AttemptNote(
            job.job_id,
            ticket.holder.host,
            self.attempt.number,
            self.attempt.incarnation,
            utc_now(),
            deaths=ticket.token.deaths,
        )

    def _tend(self) -> None:
        self.metrics.tend()
        if time.monotonic() < self._log_due:
            return
        self._log_due = time.monotonic() + LOG_EVERY
        try:
            joblog.shorten(self._log, self.job.log_limit)
        except OSError as error:
            log.warning("cannot bound the log of job %s: %s", self.job.job_id, error)

    def say(self, sentence: str) -> None:
        """A line of ours in the log of the job, and in the worker's."""
        log.info("job %s: %s", self.job.job_id, sentence)
        try:
            os.write(self._log, f"[shardfleet {utc_now()}] {sentence}\n".encode(errors="replace"))
        except OSError as error:
            log.warning("cannot write to the log of job %s: %s", self.job.job_id, error)

    def write_note(self, **fields: object) -> None:
        """Say what this attempt is."""
        self.note = replace(self.note, **fields)  # type: ignore[arg-type]
        path = jobstate.note_path(self.job.job_id, self.attempt)
        self.insist(lambda: self.store.publish(path, self.note.to_json()))

    def insist(self, action: Callable[[], T]) -> T:
        """Do what the storage may refuse for a while. Raises StorageError, Interrupted."""
        for pause in _PAUSES:
            try:
                return action()
            except (StorageError, OSError) as error:
                log.warning("job %s: %s; trying again", self.job.job_id, error)
            self.control.rest(pause)
        try:
            return action()
        except OSError as error:
            raise storage_error(error, "use", self.store.path(self.folder)) from None

    def run(self, argv: list[str], env: Mapping[str, str], timeout: float) -> Ended:
        """Run one process of the job. OSError when it cannot be started."""
        self.metrics.begin()
        try:
            ended = process.run(self.command(argv, env, timeout), self.place, self.control)
        finally:
            self.metrics.hear()
            self.metrics.flush()
        self.left.update(ended.left)
        return ended

    def command(self, argv: list[str], env: Mapping[str, str], timeout: float) -> Command:
        """A process of the job, to be started."""
        return Command(
            argv,
            env,
            self.job.cwd or "/",
            self._log,
            self.token,
            timeout,
            self.job.grace,
            (self.metrics.writing,),
        )

    @property
    def env(self) -> dict[str, str]:
        """The environment of every process of the job."""
        return self._env

    def sweep(self) -> None:
        """End what an earlier runner of this attempt left."""
        for one in process.sweep(self.token, self.place, self.control):
            self.say(f"pid {one.pid} of an earlier process cannot be ended: {one.state}")

    def preflight(self) -> tuple[str, str] | None:
        """(word, sentence) of why this host cannot run the job; None when it can."""
        missing = environment.missing(self.job, os.environ)
        if missing:
            names = ", ".join(missing)
            return "environment", f"it has no {names}: start it with ctl start --pass-env"
        for command in (os.environ.get(PREFLIGHT), self.job.preflight):
            if command and (why := self._check(command)) is not None:
                return "preflight", f"the check {command!r} failed: {why}"
        return None

    def postflight(self) -> None:
        """Clean up, however it ended; what goes wrong is said."""
        for command in (self.job.postflight, os.environ.get(POSTFLIGHT)):
            if command and (why := self._check(command)) is not None:
                self.say(f"the command after the job, {command!r}, failed: {why}")

    def _check(self, command: str) -> str | None:
        self.say(f"runs {command}")
        told, self.control.told = self.control.told, None
        try:
            ended = self.run(["/bin/sh", "-c", command], self.env, CHECK_PATIENCE)
        except OSError as error:
            return str(error)
        finally:
            self.control.told = self.control.told or told
        if ended.why == "exit":
            return f"exit code {ended.code}" if ended.code else None
        return f"it took longer than {CHECK_PATIENCE:g} s" if ended.why == "timeout" else ended.why

    def _environment(self) -> dict[str, str]:
        home = bundled.library()
        env = environment.of_host(self.job, os.environ, () if home is None else (home,))
        artifacts = self.store.path(f"{self.folder}/artifacts")
        self.insist(lambda: self.store.mkdir(f"{self.folder}/artifacts"))
        return {**env, "FLEET_ARTIFACTS": artifacts, "FLEET_METRICS": self.metrics.address}


def _open_log(store: Store, path: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    fd = os.open(store.path(path), flags, 0o600)
    if store.group_writable:
        os.fchmod(fd, 0o660)  # whatever the umask says
    return fd


def words(argv: list[str]) -> str:
    """A command line as it would be typed."""
    return shlex.join(argv)
