"""The batches that a worker holds: taking them in, finishing them, noticing that they are gone.

Everything between the inbox and the executor and back to the outbox goes through here. A worker
takes only what it can serve soon; while the storage refuses its results it takes nothing new; and
it believes that a claim is its own only until a fresh look at its folder says otherwise.
"""

from __future__ import annotations

import logging
import time

from fsworker import executors, outcomes
from fsworker.executors import Executor
from fsworker.loop import suspects
from fsworker.loop.heartbeat import Counters
from fsworker.loop.holding import Holding
from fsworker.loop.intake import Intake
from fsworker.loop.jobintake import JobIntake
from fsworker.loop.suspects import Suspect
from fsworker.protocol import ledger
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Owner, Token
from fsworker.protocol.ledger import Move
from fsworker.protocol.records.run import Manifest
from fsworker.slots.backlog import Work

log = logging.getLogger("fsworker.loop.custody")

CHECK_EVERY = 30.0
"""Seconds between two looks at the own folder."""
SUSPICIOUS_LOSSES = 8
"""Claims lost in a row after which that look is made at once."""
TURN = 0.02
"""Seconds that one turn may spend on taking work in, or on commits, before slots are heard."""


class Custody:
    """The holdings of one incarnation."""

    def __init__(
        self,
        store: Store,
        manifest: Manifest,
        owner: Owner,
        executor: Executor,
        intake: Intake,
        counters: Counters,
        jobs: JobIntake | None = None,
    ) -> None:
        self.owner = owner
        self.holdings: dict[str, Holding] = {}
        self._store, self._manifest = store, manifest
        self._executor, self._intake, self._counters = executor, intake, counters
        self._jobs = jobs
        self._returning: dict[str, Holding] = {}
        self._suspects: dict[str, Suspect] = {}
        self._finished: dict[str, Holding] = {}
        self._unread: dict[str, Holding] = {}
        self._check_due = time.monotonic() + CHECK_EVERY
        self._parts_due = 0.0
        self._losses = 0
        self._disowned = False

    @property
    def quiet(self) -> bool:
        """Whether nothing is held."""
        return not self.holdings

    def due(self, now: float, *, taking: bool) -> float:
        """When `turn` or `take` has something to do next."""
        due = self._check_due
        for holding in {**self._finished, **self._unread, **self._returning}.values():
            due = min(due, max(holding.due, now))
        if self.holdings:
            due = min(due, self._parts_due)
        if taking and self._jobs and self._jobs.room() > 0 and self._at_ease():
            due = min(due, self._jobs.due)
        head = self._intake.head
        if not taking or not self._may_take() or (head and self._must_wait(head)):
            return due
        return min(due, self._intake.due)

    def turn(self, now: float, touched: list[Work]) -> None:
        """Take note of what has finished, and do what is due. Raises Expelled."""
        self.note(now, touched)
        for holding in list(self._unread.values()):
            if now >= holding.due:
                self._read(holding)
        for key, suspect in list(self._suspects.items()):
            self._advance(key, suspect, now)
        self._commit(now)
        for holding in list(self._returning.values()):
            if now >= holding.due and holding.give_back():
                self._let_go(holding)
        if now >= self._parts_due:
            self._parts_due = now + 0.25
            for holding in self.holdings.values():
                if now >= holding.due:
                    holding.publish_early(now)
        if now >= self._check_due:
            self.check_folder(now)
        self._disown(not self._executor.total())

    def note(self, now: float, touched: list[Work]) -> None:
        """Take note of batches in which something has finished."""
        for work in touched:
            self._note(work, now)

    def take_job(self, now: float) -> None:
        """Claim one job if there is a slot for it."""
        if self._jobs is None or self._jobs.room() <= 0 or not self._at_ease():
            return
        token = self._jobs.next(now)
        if token is not None:
            claimed = self._claim(token)
            self._jobs.took(token, now)
            if claimed is not None:
                self._hold(claimed, now)

    def take(self, now: float) -> None:
        """Claim batches as long as there is room for them."""
        deadline = now + TURN
        while self._may_take() and now < deadline:
            token = self._intake.next(now, steal=True)
            if token is None or self._must_wait(token):
                return
            claimed = self._claim(token)
            self._intake.took(token, won=claimed is not None, now=now)
            if claimed is not None:
                self._losses = 0
                self._hold(claimed, now)
            else:
                self._losses += 1
                if self._losses >= SUSPICIOUS_LOSSES:
                    self._losses = 0
                    self.check_folder(now)  # without a folder of ours no claim can succeed
            now = time.monotonic()

    def _claim(self, token: Token) -> Token | None:
        try:
            return self._store.run(ledger.claim(self.owner, token))
        except OSError as error:
            log.error("cannot claim batch %s: %s", token.batch, error)
            return None

    def check_folder(self, now: float) -> None:
        """See what the own folder holds: adopt what is not known, drop what is gone."""
        self._check_due = now + CHECK_EVERY
        try:
            tokens = self._store.run(ledger.adopt(self.owner))
        except OSError as error:
            log.error("cannot list the own claims: %s", error)
            return
        present = {Holding(self._store, self.owner, t, now).key: t for t in tokens}
        for key, token in present.items():
            if key not in self.holdings:
                log.warning("batch %s is held after all; adopted", token.batch)
                self._hold(token, now)
        for key, holding in list(self.holdings.items()):
            # Twice in a row: a listing may be a moment older than the claim.
            holding.missed = 0 if key in present or holding.committing else holding.missed + 1
            if holding.missed > 1:
                log.warning("batch %s was revoked; its execution is ended", holding.token.batch)
                self._let_go(holding)

    def drop_all(self) -> None:
        """Forget everything: it is not ours any more."""
        for holding in list(self.holdings.values()):
            log.warning("batch %s was revoked; its execution is ended", holding.token.batch)
            self._let_go(holding)

    def give_back(self, *, everything: bool) -> None:
        """Return what has not begun, or everything that is not finished."""
        for key, holding in list(self.holdings.items()):
            if key in self._finished:
                continue
            if holding.work is None or not holding.work.started or everything:
                if key in self._suspects:
                    self._suspects[key].withdraw()
                self._executor.drop(key)
                if holding.give_back():
                    log.info("batch %s is given back", holding.token.batch)
                    self._let_go(holding)

    def _disown(self, lame: bool) -> None:
        """What no slot of ours can execute, or none soon, others shall have."""
        if lame and not self._disowned:
            log.error("no slot can be used: all claims are given back, and nothing is taken")
        self._disowned = lame
        if lame or self._executor.held_up:
            self.give_back(everything=lame)

    def abandon(self) -> None:
        """Last of all: return even what is finished, rather than keep it from everybody."""
        for holding in list(self.holdings.values()):
            if holding.give_back():
                self._let_go(holding)

    def _commit(self, now: float) -> None:
        deadline = now + TURN
        for holding in list(self._finished.values()):
            if now < holding.due:
                continue
            move = holding.commit()
            if move is not None:
                self._let_go(holding)
            if move is Move.GONE:
                self._check_due = 0.0  # perhaps all our claims were revoked
            if time.monotonic() > deadline:
                return

    def _must_wait(self, token: Token) -> bool:
        """A suspect is executed alone: it is not taken before our hands are empty."""
        return token.deaths > 0 and any(not h.token.is_job for h in self.holdings.values())

    def _may_take(self) -> bool:
        return self._executor.room() > 0 and self._at_ease()

    def _at_ease(self) -> bool:
        stuck = any(h.trouble for h in self.holdings.values())
        alone = any(h.suspect for h in self.holdings.values())
        return not (stuck or alone or self._unread)

    def _hold(self, token: Token, now: float) -> None:
        holding = Holding(self._store, self.owner, token, now)
        self.holdings[holding.key] = self._unread[holding.key] = holding
        self._read(holding)

    def _read(self, holding: Holding) -> None:
        manifest = self._manifest
        if holding.work is None and not holding.read(manifest.reward_fn, manifest.task_timeout):
            if holding.over:
                self._let_go(holding)
            return
        work = holding.work
        assert work is not None
        try:
            late = holding.too_late()
            evidence = suspects.investigate(self._store, holding) if holding.suspect else None
        except OSError as error:
            holding.failed("read what earlier attempts left", error)
            return
        holding.recovered()
        del self._unread[holding.key]
        self._counters.claimed += len(work.records)
        if executors.kind_of(work.meta) not in executors.EXECUTORS:
            why = f"no executor for work of kind {work.meta['kind']!r:.60}"
            work.answer_all(outcomes.REFUSED, outcomes.cause("Refused", why))
        elif late is not None:
            work.answer_all(outcomes.EXPIRED, outcomes.cause("Expired", late))
        elif evidence is not None:
            log.warning(
                "batch %s is suspect (%d deaths): one task at a time",
                holding.token.batch,
                holding.token.deaths,
            )
            suspect = Suspect(holding, work, evidence, manifest.max_deaths)
            self._suspects[holding.key] = suspect
        else:
            work.open_all()
        self._executor.add(work)

    def _advance(self, key: str, suspect: Suspect, now: float) -> None:
        holding = self.holdings[key]
        if now < holding.due:
            return
        suspect.advance(self._executor)
        if holding.work is not None and holding.work.finished:
            self._note(holding.work, now)

    def _note(self, work: Work, now: float) -> None:
        holding = self.holdings.get(work.key)
        if holding is None:
            return
        if work.returned is not None:
            if work.returned != "drain" and self._jobs:
                self._jobs.decline(holding.token.batch, now)
            self._returning[work.key] = holding
            return
        counted = self._counters
        counted.done += len(work.results) - holding.counted
        holding.counted = len(work.results)
        counted.progress = now
        if work.finished and work.key not in self._finished:
            counted.failed += work.results.failed
            counted.timeouts += work.results.timeouts
            if self._suspects.pop(work.key, None):
                self._executor.drop(work.key)
            self._finished[work.key] = holding
            self._intake.hurry(now)

    def _let_go(self, holding: Holding) -> None:
        key = holding.key
        self.holdings.pop(key, None)
        for group in (self._finished, self._unread, self._suspects, self._returning):
            group.pop(key, None)
        self._executor.drop(key)
        holding.over = True
