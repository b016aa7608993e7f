"""The process: keeps every group of a run going until it is told to end.

It may be started anywhere the root is mounted, killed at any moment, and started twice: what counts
is decided by what is published, so the lock only saves the second one its work. It opens no port
and needs nobody; what it has to say, it writes beside the groups.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from fedavg.keeper import GroupKeeper, Step
from fsworker.errors import Busy, FleetError, NotRunning
from fsworker.protocol import aggregators, federation, fsfolders, layout
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.layout import groups
from fsworker.protocol.locks import lock_of, take
from fsworker.protocol.records.round import AggregatorBeat, GroupReport

log = logging.getLogger(__name__)

POLL = 1.0
LONGEST_PAUSE = 60.0
"""Seconds after which a group that failed is tried again, at the latest."""
BEAT = 2.0
QUIET, QUIET_AFTER, RARELY = ("idle", "finished", "absent"), 60.0, 2.0
"""States of groups in which a look costs nearly nothing, the seconds after which it is taken more
rarely, and by what factor."""
REMIND = 60.0
"""Seconds after which it is said again that there is no such group."""


@dataclass
class _Trouble:
    """A group that failed: how often in a row, and when it is tried again (monotonic seconds)."""

    count: int = 0
    until: float = 0.0


@dataclass
class Aggregator:
    """All groups of a run, or those named in `only`.

    `alone`: this process holds the lock. `patience` multiplies the pauses after failures.
    """

    store: Store
    only: Sequence[str] = ()
    alone: bool = True
    threads: int = 2
    reports: dict[str, GroupReport] = field(default_factory=dict)
    errors: dict[str, FleetError] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._keepers: dict[str, GroupKeeper] = {}
        self._trouble: dict[str, _Trouble] = {}
        self._told: dict[str, str] = {}
        self._missed: dict[str, float] = {}
        self._incarnation = layout.new_incarnation()
        self._seq = 0
        self._beaten = -BEAT
        self._busy = time.monotonic()
        self._beats = False
        self._beat_file = aggregators.beat_file(self._incarnation, alone=self.alone)

    def groups(self) -> list[str]:
        """The groups that are looked after, by name; also those that are not there yet."""
        return sorted(self.only) if self.only else federation.all_groups(self.store)

    def absent(self) -> list[str]:
        """Those that were named and are not there (yet)."""
        return absent(self.store, self.only)

    def sweep(self, *, retry: bool = True) -> bool:
        """Give every group one step; whether any of them merged, so that there may be more to do.

        A group that fails stops no other. `retry`: also those whose pause is not over.
        """
        merged, missing = False, self.absent()
        for group in self.groups():
            if group in missing:
                self._miss(group)
                continue
            trouble = self._trouble.get(group)
            if trouble and not retry and time.monotonic() < trouble.until:
                continue
            step = self._step(group)
            merged = merged or (step is not None and step.merged)
        return merged

    @property
    def finished(self) -> bool:
        """Whether every group has had its last round; False when there is none."""
        names = self.groups()
        states = [self.reports[n].state if n in self.reports else "" for n in names]
        return bool(states) and all(state == "finished" for state in states)

    def run(
        self, stop: threading.Event, *, poll: float = POLL, until_finished: bool = False
    ) -> None:
        """Sweep until `stop` is set, or until every group is finished if that was asked for.

        NotRunning when the run was removed.
        """
        self._beats = True
        while not stop.is_set():
            try:
                merged = self.sweep(retry=False)
                self.beat()
            except NotRunning:
                raise
            except Exception as error:  # the root itself does not answer; no group ends the others
                merged = False
                self._tell("", str(error) if isinstance(error, FleetError) else _unexpected(error))
                log.debug("where it failed", exc_info=True)
            if until_finished and self.finished:
                break
            if not merged:
                stop.wait(poll * (RARELY if self._is_quiet() else 1))
        self.beat(stopped=True)

    def catch_up(self, most: int) -> None:
        """Sweep until nothing is merged any more, or `most` times; NotRunning as `run`."""
        self._beats = True
        try:
            for _ in range(most):
                merged = self.sweep()
                self.beat()
                if not merged:
                    break
        finally:
            self.beat(stopped=True)

    def beat(self, *, stopped: bool = False) -> None:
        """Say that this process lives and what it knows, at most every BEAT seconds.

        Who never beat does not say either that it stopped: it was standing by, and another beats.
        """
        if stopped and not self._seq:
            return
        if not stopped and time.monotonic() - self._beaten < BEAT:
            return
        self._seq += 1
        self._beaten = time.monotonic()
        beat = AggregatorBeat(
            socket.gethostname(), os.getpid(), self._incarnation, self._seq, time.time(),
            dict(self.reports), stopped,
        )  # fmt: skip
        path = self._beat_file
        try:
            self.store.publish(path, beat.to_json(), durable=False)
            if self._seq == 1:
                aggregators.forget_ended(self.store, but=path)
        except OSError as error:
            if layout.MANIFEST not in federation.names(self.store, ""):
                raise NotRunning(f"the run {self.store.root} is gone") from None
            log.warning("%s", storage_error(error, "write", self.store.path(path)))

    def _is_quiet(self) -> bool:
        """Whether nothing was uploaded anywhere for a minute, so that looking may cost less."""
        now = time.monotonic()
        if any(report.state not in QUIET for report in self.reports.values()):
            self._busy = now
        return now - self._busy > QUIET_AFTER

    def _step(self, group: str) -> Step | None:
        keeper = self._keepers.get(group)
        if keeper is None:
            keeper = self._keepers[group] = GroupKeeper(
                self.store,
                group,
                alone=self.alone,
                threads=self.threads,
                tell=partial(self._at_work, group),
            )
        try:
            step = keeper.step()
        except FleetError as error:
            self._failed(group, error)
            return None
        except Exception as error:
            log.exception("group %s", group)
            self._failed(group, FleetError(f"group {group!r}: {_unexpected(error)}"))
            return None
        self._trouble.pop(group, None)
        self.errors.pop(group, None)
        self.reports[group] = step.report
        self._tell(group, f"round {step.report.round}: {step.report.state}: {step.report.why}")
        return step

    def _at_work(self, group: str, report: GroupReport) -> None:
        """What may take long is said before, since there is no beat while it is done."""
        self.reports[group] = report
        if self._beats:
            self._beaten = -BEAT
            self.beat()

    def _failed(self, group: str, error: FleetError) -> None:
        trouble = self._trouble.setdefault(group, _Trouble())
        trouble.count += 1
        trouble.until = time.monotonic() + min(LONGEST_PAUSE, 2.0 ** (trouble.count - 1))
        self.errors[group] = error
        known = self.reports.get(group)
        self.reports[group] = GroupReport(known.round if known else 0, "failed", str(error))
        self._tell(group, f"failed: {error}")

    def _miss(self, group: str) -> None:
        """Say at once and now and then that there is nothing to look after, and wait for it."""
        words = f"there is no group {group!r} in {self.store.root} yet: waiting for it to be made"
        self.reports[group] = GroupReport(0, "absent", words)
        if time.monotonic() - self._missed.get(group, -REMIND) >= REMIND:
            self._missed[group] = time.monotonic()
            log.warning("%s", words)

    def _tell(self, group: str, words: str) -> None:
        """Log what changed, once."""
        if self._told.get(group) != words:
            self._told[group] = words
            log.info("%s%s", f"{group}: " if group else "", words)


def _unexpected(error: Exception) -> str:
    return f"unexpected {type(error).__name__}: {error}"


def absent(store: Store, named: Sequence[str]) -> list[str]:
    """Of the groups that a command names those that a run does not have."""
    return sorted(set(named) - set(federation.all_groups(store))) if named else []


def refuse_absent(store: Store, named: Sequence[str], hint: str) -> None:
    """NotRunning for a command that cannot wait for a group that is not there; `hint` what to do.

    A job makes its group when it is submitted, so nothing that was submitted names it either.
    """
    if missing := absent(store, named):
        there = ", ".join(federation.all_groups(store)) or "none"
        raise NotRunning(
            f"there is no group {missing[0]!r:.80} in {store.root} (there are: {there}): {hint}",
            path=store.path(groups.FEDERATION),
        )


@contextmanager
def leadership(
    store: Store, stop: threading.Event | None = None, poll: float = POLL
) -> Iterator[bool]:
    """Hold the one lock of a run's aggregators: True. Without `stop`, Busy when another holds it.

    With `stop`, waits until the other one ends, or until `stop` is set: then False. Where the
    filesystem has no locks, goes on without: two at once do twice the work and no harm. False too.
    """
    from filelock import Timeout  # lazily: reading commands do without

    path = store.path(groups.AGGREGATOR_LOCK)
    try:
        fsfolders.make_folders(store, groups.FEDERATION)
    except OSError as error:
        raise storage_error(error, "make", store.path(groups.FEDERATION)) from None
    lock = lock_of(store, groups.AGGREGATOR_LOCK)
    told = False
    while True:
        try:
            take(lock, 0)
            break
        except Timeout:
            if stop is None:
                raise Busy(f"another aggregator is at work in {store.root}", path=path) from None
            if not told:
                log.info("another aggregator is at work in %s: standing by", store.root)
                told = True
            if stop.wait(poll):
                yield False
                return
        except (NotImplementedError, OSError) as error:
            log.warning("%s cannot be locked (%s): going on without", path, error)
            yield False
            return
    try:
        yield True
    finally:
        lock.release()
