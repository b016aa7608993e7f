"""The process of one attempt at a job: `python -m fsworker.jobs.runner JOB`, below its worker.

It may wait, read and copy as long as it likes, which the worker's loop must never do. It ends with
its worker, whose pipe closes; it ends when its claim is gone; and it takes the whole tree of the
training process with it. What it says last is the result, which the worker commits.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fsworker.errors import FleetError
from fsworker.jobs import episodes, handing, story, ticket
from fsworker.jobs.attempt import AttemptFolder
from fsworker.jobs.control import Claim, Control, Interrupted
from fsworker.jobs.course import Course
from fsworker.jobs.episodes import End, Train
from fsworker.jobs.ticket import Ticket
from fsworker.life.boundlog import StderrHandler
from fsworker.life.lifetime import be_subreaper
from fsworker.protocol import jobstate, layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.records.job import CANCELLED, FAILED, SUCCESS, Job

log = logging.getLogger("fsworker.jobs.runner")

DEAF_TO = (signal.SIGINT, signal.SIGHUP)
"""Whoever wants a job to end tells its worker, or closes our pipe; but a TERM that comes to us came
to everybody, the training process too: what that saved is kept, and the job goes on elsewhere."""


@dataclass(frozen=True)
class Back:
    """The job is given back: the sentence, and the word for scripts."""

    why: str
    reason: str


class Runner:
    """One attempt, from its sweep to its last word."""

    def __init__(self, asked: Ticket, store: Store, job: Job, control: Control) -> None:
        self._began = time.monotonic()
        self._asked, self._store, self._job, self._control = asked, store, job, control
        self._at = AttemptFolder(store, asked, job, control)
        self._course: Course | None = None

    def live(self) -> bytes:
        """Run the attempt; the last word. Raises Interrupted("gone") when nobody wants it."""
        try:
            how = self._run()
        except Interrupted as stop:
            how = self._interrupted(stop)
        except FleetError as error:
            how = End(FAILED, str(error))
        if self._course is not None:
            self._course.close()
        if self._control.told == "gone":
            raise Interrupted("gone")
        self._at.postflight()
        if isinstance(how, Back):
            self._at.say(f"given back: {how.reason}")
            self._at.write_note(returned=how.reason, why=how.why)
            return ticket.said(ticket.RETURN, why=how.why, reason=how.reason)
        return self._over(how)

    def _run(self) -> End | Back:
        at = self._at
        at.sweep()
        self._control.look()  # the one before may have ended because its claim was gone
        self._control.check()
        handing.tidy(self._store, at.job.job_id, at.rank)
        notes = at.insist(lambda: story.notes_before(self._store, at.job.job_id, at.attempt))
        state = at.insist(lambda: story.progress(self._store, self._job))
        at.write_note(first=state.done + 1)
        given_up = story.refused_too_often(notes) or story.too_deadly(
            notes, state.done + 1, at.note.deaths, self._asked.max_deaths
        )
        if given_up is not None:
            return End(FAILED, given_up)
        chained = self._chained()
        if isinstance(chained, End):
            return chained
        declined = at.preflight()
        self._control.check()
        if declined is not None:
            return Back(*declined)
        self._course = Course(at, chained)
        return self._follow(state)

    def _follow(self, state: episodes.Progress) -> End:
        assert self._course is not None
        while not isinstance(step := episodes.next_step(self._job, state), End):
            if isinstance(step, Train):
                _tell(ticket.said(ticket.EPISODE, episode=step.first))
            event = self._course.perform(step)
            if event.why:
                self._at.say(event.why)
            state = episodes.after(self._job, state, event)
        return step

    def _chained(self) -> str | End | None:
        """The last checkpoint of the job that this one follows."""
        before = self._job.after
        if before is None:
            return None
        folder = self._at.insist(lambda: jobstate.look(self._store, before))
        if folder.commit is None:
            return End(FAILED, f"job {before}, whose weights it starts from, is not over")
        commit = folder.commit
        found = self._at.insist(lambda: jobstate.read_result(self._store, before, commit))
        if found.status != SUCCESS or found.checkpoint is None:
            return End(FAILED, f"job {before}, whose weights it starts from, is {found.status}")
        return found.checkpoint

    def _interrupted(self, stop: Interrupted) -> End | Back:
        if stop.told == "cancel":
            return End(CANCELLED, "cancelled on request")
        return Back("drain", f"host {self._at.note.host} was told to stop")

    def _over(self, end: End) -> bytes:
        course = self._course
        told = story.result(
            self._at,
            end,
            self._began,
            uncounted=course.uncounted if course else False,
            exit_code=course.exit_code if course else None,
        )
        self._at.say(f"{told.status}: {told.error}" if told.error else told.status)
        path = f"{self._at.folder}/{layout.jobs.RESULT_FILE}"
        data = told.to_json()
        self._at.insist(lambda: self._store.publish(path, data))
        fields: Mapping[str, Any] = {k: v for k, v in vars(told).items() if k != "left"}
        return ticket.said(ticket.OVER, result={**fields, "left": list(told.left)})


def _tell(line: bytes) -> None:
    try:
        os.write(1, line)
    except BrokenPipeError:
        pass  # the worker is gone, which its pipe tells


def _first_line(fd: int) -> tuple[bytes, bytes]:
    data = b""
    while b"\n" not in data:
        chunk = os.read(fd, 1 << 16)
        if not chunk:
            sys.exit(1)
        data += chunk
    line, _, rest = data.partition(b"\n")
    return line, rest


def main() -> int:
    """Entry point. The ticket comes on stdin."""
    for signum in (*DEAF_TO, signal.SIGTERM):
        signal.signal(signum, lambda *_: None)  # ignored, the training process would be deaf too
    level = os.environ.get("FLEET_LOG_LEVEL", "INFO")
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=level, handlers=[StderrHandler()], format=form)
    be_subreaper()
    line, rest = _first_line(0)
    asked = Ticket.parse(line)
    store = Store(asked.root)
    control = Control(0, Claim(store, asked.holder, asked.claim), rest)
    signal.signal(signal.SIGTERM, lambda *_: control.drain())
    job = Job.from_json(asked.job.encode(), "job.json")
    try:
        _tell(Runner(asked, store, job, control).live())
    except Interrupted:
        log.info("job %s: this attempt is over without a result", job.job_id)
    return 0


if __name__ == "__main__":
    sys.exit(main())
