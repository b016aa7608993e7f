"""The executor of training jobs: a runner process each, and nothing that waits.

The worker hands over a batch of one and gets it back with one result, or with the word that it goes
back to the inbox. What takes long (training, digests, copies, waiting for others) is the runner's
business, so the heartbeat never depends on it. A runner that was killed is started again and goes
on from the last finished episode.
"""

from __future__ import annotations

import logging
import os
import selectors
import time
from collections.abc import Iterable
from typing import Any

from fsworker import outcomes
from fsworker.errors import FormatError
from fsworker.executors import Setting
from fsworker.jobs.link import RunnerLink, end_runner, finish
from fsworker.jobs.ticket import OVER, RETURN, Ticket
from fsworker.protocol import packing
from fsworker.protocol.records import job as records
from fsworker.protocol.records.job import Job
from fsworker.slots.backlog import Work

log = logging.getLogger("fsworker.jobs.executor")

MOST_RUNNERS = 3
"""How often in a row the runner of a job may vanish without an episode in between."""
RESTART_PAUSE = 1.0
CANCEL_PATIENCE = 20.0
"""Seconds after which a runner that was told to cancel is killed, and another one does it."""
CLOSE_PATIENCE = 5.0
MARGIN = 3.0
"""Seconds beyond its grace in which a runner publishes what was saved and gives the job back."""
STATUSES = {
    records.SUCCESS: outcomes.OK,
    records.FAILED: outcomes.ERROR,
    records.TIMEOUT: outcomes.TIMEOUT,
    records.CANCELLED: outcomes.CANCELLED,
}


class _Running:
    """A job at hand."""

    def __init__(self, work: Work, job: Job, ticket: Ticket) -> None:
        self.work, self.job, self.ticket = work, job, ticket
        self.link: RunnerLink | None = None
        self.due = 0.0
        self.vanished = 0
        self.episode = 0
        self.cancelled = self.draining = False
        self.patience: float | None = None
        self.since = time.monotonic()


class JobExecutor:
    """Runs jobs on `job_slots` places."""

    def __init__(self, setting: Setting, selector: selectors.BaseSelector) -> None:
        self.ready, self.held_up = True, False
        self.refused: str | None = None
        self._setting, self._selector = setting, selector
        self._slots = setting.job_slots
        self._running: dict[str, _Running] = {}
        self._touched: dict[str, Work] = {}
        self._answered: set[str] = set()
        """Jobs that were answered without being run."""
        self._leaving: list[RunnerLink] = []
        self._finishing: list[Any] = []

    def room(self) -> int:
        """How many more jobs it takes now; none while the end of another is not certain."""
        return self._slots - len(self._running) - len(self._leaving)

    def add(self, work: Work) -> None:
        """Take a job, and start its runner."""
        self._touched[work.key] = work
        if work.finished:  # answered already: it came too late
            self._answered.add(work.key)
            return
        try:
            job = records.from_batch(packing.unpack(work.records[0]), work.meta["batch"])
        except (FormatError, packing.NotPacked) as error:
            value = outcomes.cause("InvalidJob", str(error))
            self._answered.add(work.key)
            self._answer(work, outcomes.INVALID, value, 0.0)
            return
        ticket = Ticket(
            os.environ["FLEET_RUN_ROOT"],
            work.meta["owner"],
            work.key,
            job.to_json().decode(),
            self._setting.max_deaths,
        )
        work.started = True
        self._running[work.key] = running = _Running(work, job, ticket)
        self._start(running)

    def release(self, work: Work, index: int) -> None:
        """A job is one task, and runs since it was added."""

    def drop(self, key: str) -> None:
        """Forget a job: end what runs of it, or make the copies of a result that counts."""
        self._touched.pop(key, None)
        running = self._running.pop(key, None)
        if running is not None and running.link is not None:
            running.link.abandon()
            self._leaving.append(running.link)
        elif key in self._answered or (running is not None and running.work.finished):
            self._answered.discard(key)
            self._finishing.append(finish(os.environ["FLEET_RUN_ROOT"], key))

    def cancel(self, work: Work, indexes: Iterable[int]) -> None:
        """End a job, which answers as cancelled."""
        running = self._running.get(work.key)
        if running is not None and not running.cancelled and 0 in set(indexes):
            running.cancelled = True
            running.patience = time.monotonic() + CANCEL_PATIENCE
            self._pass_on(running)

    def wind_down(self) -> float:
        """Give every job its chance to save; the seconds that they may take for it."""
        for running in self._running.values():
            running.draining = True
            self._pass_on(running)
        return max((r.job.grace + MARGIN for r in self._running.values()), default=0.0)

    def step(self, now: float) -> list[Work]:
        """Do what is due; the jobs that ended since the last call."""
        for running in list(self._running.values()):
            if running.link is not None and running.link.ended():
                self._heard_last(running, now)
            elif running.link is not None and running.patience and now >= running.patience:
                running.patience = None  # it is frozen, or copies: the next one only cancels
                running.link.kill()
            elif running.link is None and not self._settled(running) and now >= running.due:
                self._start(running)
        self._leaving = [link for link in self._leaving if not link.ended()]
        self._finishing = [child for child in self._finishing if child.poll() is None]
        touched, self._touched = list(self._touched.values()), {}
        return touched

    def busy(self) -> int:
        """Jobs that run."""
        return sum(r.link is not None for r in self._running.values())

    def total(self) -> int:
        """All places."""
        return self._slots

    def pids(self) -> set[int]:
        """Our own children, which are nobody's leftovers."""
        links = [r.link for r in self._running.values() if r.link] + self._leaving
        return {link.pid for link in links} | {child.pid for child in self._finishing}

    def close(self) -> None:
        """End every process."""
        for key in list(self._running):
            self.drop(key)
        end = time.monotonic() + CLOSE_PATIENCE
        while (self._leaving or self._finishing) and time.monotonic() < end:
            self.step(time.monotonic())
            time.sleep(0.02)
        for link in self._leaving:
            end_runner(link)
        self._leaving = []

    # -- runners

    def _start(self, running: _Running) -> None:
        try:
            running.link = RunnerLink(running.ticket, running.job.job_id, self._selector)
        except OSError as error:
            log.error("job %s: cannot start its runner: %s", running.job.job_id, error)
            self._vanished(running, time.monotonic())
            return
        self._pass_on(running)

    def _pass_on(self, running: _Running) -> None:
        if running.link is not None and running.cancelled:
            running.link.cancel()
        elif running.link is not None and running.draining:
            running.link.drain()

    def _heard_last(self, running: _Running, now: float) -> None:
        """A runner has ended: by its last word, or without one."""
        link, running.link = running.link, None
        assert link is not None
        word = link.last
        if link.episode > running.episode:
            running.episode, running.vanished = link.episode, 0
        if word.get("say") == OVER:
            told = word["result"]
            value = told if told["status"] == records.SUCCESS else _cause(told)
            status = STATUSES.get(told["status"], outcomes.ERROR)
            self._answer(running.work, status, value, now - running.since)
        elif word.get("say") == RETURN:
            log.warning("job %s goes back: %s", running.job.job_id, word.get("reason"))
            running.work.returned = str(word.get("why") or RETURN)
            self._touched[running.work.key] = running.work
        else:
            log.error("job %s: its runner vanished (%s)", running.job.job_id, link.how())
            self._vanished(running, now)

    def _vanished(self, running: _Running, now: float) -> None:
        running.vanished += 1
        running.due = now + RESTART_PAUSE * running.vanished
        if running.vanished > MOST_RUNNERS:
            value = outcomes.cause("Crashed", f"its runner vanished {running.vanished} times")
            self._answer(running.work, outcomes.CRASHED, value, now - running.since)

    def _settled(self, running: _Running) -> bool:
        return running.work.finished or running.work.returned is not None

    def _answer(self, work: Work, status: str, value: Any, elapsed: float) -> None:
        work.answer(0, status, value, elapsed)
        self._touched[work.key] = work

    def episodes(self) -> dict[str, int]:
        """The episode that each running job is at."""
        links = {r.job.job_id: r.link for r in self._running.values()}
        return {job: link.episode for job, link in links.items() if link is not None}


def _cause(told: dict[str, Any]) -> dict[str, str]:
    kind = {records.TIMEOUT: "JobTimeout", records.CANCELLED: "JobCancelled"}
    return outcomes.cause(kind.get(told["status"], "JobFailed"), told["error"] or told["status"])
