"""The worker: one thread, one loop, which polls, claims, hands out, collects, commits and beats.

User code never runs in this process, so nothing that it does can stop the loop; and since the
heartbeat is published by the loop, it stops when the loop does. The ways to end are here too: a
first TERM or INT drains (what has not begun is given back at once, what runs may finish within the
grace), a second one, or the end of the wrapper, gives everything back now. Where a scheduler sends
TERM to all processes of an allocation, and KILL after a while, a TERM leaves the `term_grace`.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import time
from typing import Any

from fsworker.errors import Busy, FleetError, Refused
from fsworker.executors import Setting
from fsworker.life import hostlock, lifefiles
from fsworker.loop import admission, surroundings
from fsworker.loop.cancelling import Cancelling
from fsworker.loop.capability import of_worker
from fsworker.loop.crew import Crew
from fsworker.loop.custody import Custody
from fsworker.loop.heartbeat import BEAT_EVERY, Pulse
from fsworker.loop.intake import Intake
from fsworker.loop.jobintake import JobIntake
from fsworker.loop.leaving import Leaving
from fsworker.loop.neighbours import Neighbours
from fsworker.loop.options import Options
from fsworker.loop.predecessors import Predecessors
from fsworker.protocol import layout, ledger
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.layout import Owner
from fsworker.protocol.ledger import Expelled
from fsworker.protocol.records.run import HostIdentity, Manifest
from fsworker.slots import devices
from fsworker.slots.backlog import Work
from fsworker.slots.process import inherit_orphans

log = logging.getLogger("fsworker.worker")

STOP_EVERY = 2.0
LOOK_EVERY = 0.05
JOB_LOOK_EVERY = 0.2


class Worker:
    """One life of a worker."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._store = Store(os.path.realpath(options.root))
        self._wrapped = surroundings.wrapped()
        # Without a wrapper the variable is that of a worker above this one, whose task we are.
        given = os.environ.get("FLEET_INCARNATION", "") if self._wrapped else ""
        self._owner = Owner(options.host, _valid(given) or layout.new_incarnation())
        self._pulse = Pulse(self._store, self._owner, options)
        self._leaving = Leaving(options)
        self._selector = selectors.DefaultSelector()
        self._due = {"beat": 0.0, "stop": 0.0}
        self._before = Predecessors(self._store)
        self._deadline: float | None = None
        self._served = False
        self._refusal: str | None = None
        self._kept: list[socket.socket] = []

    def run(self) -> int:
        """Live; returns the exit code. Raises FleetError for what the user has to know."""
        try:
            manifest = admission.admit(self._store, self._options.shard)
            self._open(manifest)
        except FleetError as error:
            self._refuse(error)
            raise
        try:
            while not self._over():
                for key, mask in self._selector.select(self._pause()):
                    key.data(mask)
                self._turn(time.monotonic())
        finally:
            self._close()
        return self._leaving.code

    # -- the beginning

    def _open(self, manifest: Manifest) -> None:
        options, setting = self._options, self._setting(manifest)
        self._kept = [hostlock.hold(self._store.root, manifest.run_id, options.host)]
        self._kept += surroundings.listen(self._selector, self._on_signal, self._on_wrapper_gone)
        inherit_orphans()
        surroundings.set_environment(self._store.root, manifest.run_id, self._owner, options.shard)
        try:
            self._store.run(ledger.enlist(self._owner))
            if not self._wrapped:
                me = self._pulse.me
                lifefiles.publish(
                    self._store,
                    HostIdentity(options.host, options.launch, None, me, self._owner.incarnation),
                )
        except OSError as error:
            raise storage_error(error, "write to", self._store.root) from error
        self._executor = Crew(setting, self._selector)
        self._intake = Intake(self._store, manifest, options.host, options.shard)
        room, pause = self._executor.job_room, options.poll_interval
        jobs = JobIntake(self._store, options.shard, manifest.shard_count, room, pause)
        self._intake.saw_jobs = jobs.saw
        offered = (options.host, options.labels, self._pulse.inventory)
        capability = of_worker(self._store, manifest, *offered)
        self._intake.sift, jobs.sift = capability.sift, capability.sift_jobs
        store, counters = self._store, self._pulse.counters
        self._custody = Custody(
            store, manifest, self._owner, self._executor, self._intake, counters, jobs
        )
        self._cancelling = Cancelling(self._store, self._executor)
        self._neighbours = Neighbours(self._store, options.host, self._intake, capability)

    def _setting(self, manifest: Manifest) -> Setting:
        """What the executor is told. Refused for slots that cannot be as they were asked for."""
        options = self._options
        surroundings.need_files(options.concurrency * options.slots.coroutines)
        found, slot_env = devices.plan(options.slots, options.concurrency, os.environ)
        self._pulse.inventory.update(devices.inventory(found, slot_env) | options.offered())
        return Setting(
            options.concurrency,
            admission.function_names(manifest),
            manifest.task_timeout,
            devices.start_method(manifest.slot_start, found),
            inherits=True,
            allow=manifest.allow,
            terms=options.slots,
            slot_env=slot_env,
            job_slots=options.job_slots,
            max_deaths=manifest.max_deaths,
            heard=self._pulse.code.learn,
        )

    def _refuse(self, error: FleetError) -> None:
        """Say in the heartbeat why this worker does not run, for whoever waits for it."""
        if isinstance(error, Busy):
            return  # the heartbeat is another worker's, who is well
        self._refusal = str(error)
        if os.path.isdir(self._store.path(layout.STATUS)):
            self._pulse.beat(ready=False, refused=self._refusal)

    # -- the loop

    def _over(self) -> bool:
        if self._deadline is None:
            return False
        return self._custody.quiet or time.monotonic() >= self._deadline

    def _pause(self) -> float:
        now = time.monotonic()
        due = min(self._due["beat"], self._custody.due(now, taking=self._taking()))
        if not self._wrapped:
            due = min(due, self._due["stop"])
        if not self._served or self._executor.busy():
            due = min(due, now + LOOK_EVERY)
        elif self._executor.jobs()[0]:
            due = min(due, now + JOB_LOOK_EVERY)
        if self._deadline is not None:
            due = min(due, self._deadline)
        return max(0.0, min(due - now, BEAT_EVERY))

    def _taking(self) -> bool:
        return self._served and self._deadline is None and self._executor.total() > 0

    def _turn(self, now: float) -> None:
        touched = self._executor.step(now)
        if self._executor.refused:
            raise self._declined(self._executor.refused)
        try:
            self._custody.turn(now, touched)
            if self._taking():
                self._custody.take(now)
                self._custody.take_job(now)
            # Between the claim and the first task: what is cancelled in time never runs.
            if self._cancelling.turn(now, self._custody.holdings) or self._taking():
                self._custody.note(now, self._executor.step(now))
        except Expelled:
            self._renew()
        if self._taking():
            self._neighbours.turn(now, idle=self._custody.quiet)
        if not self._served and self._executor.ready and self._before.returned(self._owner, now):
            self._served = True
            self._due["beat"] = now
            log.info("ready: %d slots, shard %d", self._executor.total(), self._options.shard)
        if self._leaving.due(now, self._served, self._custody.quiet):
            self._drain(self._options.grace)
        if now >= self._due["beat"]:
            self._due["beat"] = now + BEAT_EVERY
            self._beat()
        if not self._wrapped and now >= self._due["stop"]:
            self._due["stop"] = now + STOP_EVERY
            self._poll_stop()

    def _beat(self, **state: Any) -> None:
        log.debug("calls on the root: %s", dict(self._store.calls))
        self._pulse.beat(
            ready=self._taking(),
            draining=self._deadline is not None,
            slots_busy=self._executor.busy(),
            slots_total=self._executor.slots(),
            jobs_busy=self._executor.jobs()[0],
            jobs_total=self._executor.jobs()[1],
            **state,
        )

    def _declined(self, why: str) -> FleetError:
        if self._served:
            return FleetError(f"no slot can be started any more: {why}")
        error = Refused(why)
        self._refuse(error)
        return error

    def _renew(self) -> None:
        """Our claims were revoked as those of a dead worker: go on under a new incarnation."""
        self._custody.drop_all()
        self._owner = Owner(self._owner.host, layout.new_incarnation())
        log.warning("expelled: all claims were revoked; going on as %s", self._owner.name)
        try:
            self._store.run(ledger.enlist(self._owner))
        except OSError as error:
            raise storage_error(error, "write to", self._store.root) from error
        self._custody.owner = self._pulse.owner = self._owner

    # -- the end

    def _on_signal(self, signum: int) -> None:
        log.info("%s", signal.Signals(signum).name)
        grace, firm = self._leaving.told(signum)
        self._drain(self._grace() if grace is None else grace, firm=firm)

    def _on_wrapper_gone(self) -> None:
        log.warning("the wrapper is gone")
        self._drain(0.0)

    def _drain(self, grace: float, *, firm: bool = False) -> None:
        # A job that is told to save may take longer than what tasks are given, unless KILL follows.
        patience = self._executor.wind_down() if grace > 0 and not firm else 0.0
        deadline = time.monotonic() + max(grace, patience)
        if self._deadline is None:
            self._deadline = deadline
            self._due["beat"] = 0.0
            self._custody.give_back(everything=grace <= 0)
        self._deadline = min(self._deadline, deadline)

    def _grace(self) -> float:
        """Seconds that what runs may take: as many as a drain was given, else our own."""
        options = self._options
        try:
            told = lifefiles.drain_patience(self._store, options.host, options.launch)
        except OSError as error:
            log.warning("cannot look for the patience of a drain: %s", error)
            return options.grace
        return options.grace if told is None else told

    def _poll_stop(self) -> None:
        try:
            wanted = lifefiles.stop_wanted(self._store, self._options.host, self._options.launch)
        except OSError as error:
            log.error("cannot look for a stop intent: %s", error)
            return
        if wanted and self._deadline is None:
            log.info("stop intent")
            self._drain(self._grace())

    def _close(self) -> None:
        """Give back what is left, end the slots, and say so."""
        end = time.monotonic() + 2.0
        self._custody.give_back(everything=True)
        self._executor.close()
        while not self._custody.quiet and time.monotonic() < end:
            touched: list[Work] = []
            try:
                self._custody.turn(time.monotonic(), touched)
                self._custody.give_back(everything=True)
            except Expelled:
                self._custody.drop_all()
            time.sleep(0.02)
        self._custody.abandon()
        try:
            self._store.rmdir(self._owner.folder)
        except OSError as error:
            log.warning("cannot remove %s: %s", self._owner.folder, error)
        self._deadline = self._deadline or end
        self._pulse.beat(stopped=True, refused=self._refusal, slots_total=self._executor.slots())
        if not self._wrapped:
            try:
                lifefiles.withdraw(self._store, self._options.host, [os.getpid()])
            except OSError as error:
                log.warning("cannot remove the pid file: %s", error)


def _valid(incarnation: str) -> str | None:
    return incarnation if layout.parse_owner(f"x~{incarnation}") else None
