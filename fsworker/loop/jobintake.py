"""Which job a worker takes next, when it has a job slot free.

A worker must not hoard jobs that others could run, so it looks for them only with a slot free, and
takes one at a time. It passes over a job that waits for another one to end (its batch says so, and
is read once), and for a while one that this host has just declined. Listings that were made for
tasks show jobs as well; only where there were none, this looks for itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from fsworker.errors import FleetError
from fsworker.loop.intake import arrange
from fsworker.protocol import jobstate, layout, segment
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Token

log = logging.getLogger("fsworker.loop.jobintake")

LOOK_EVERY = 0.5
FOREIGN_EVERY = 5.0
"""Seconds between two looks at one foreign shard: `ctl` submits jobs to where a slot is free."""
WAITS_EVERY = 1.0
"""Seconds between two looks at what a job waits for."""
DECLINED = (10.0, 300.0)
"""Seconds for which a job is left to others after this host declined it, first and at most."""
PER_NAME = 5e-5
"""Seconds until the next look for each name in a listing, which takes a tenth of it or less: a long
backlog of tasks is not listed all the time for the sake of jobs."""
MOST_LOOKS = 20
"""Reads and listings for the sake of jobs that wait for others, at one search."""
_FORGET = 10_000


class JobIntake:
    """Candidates for the job slots of one worker; `room` tells how many are free."""

    def __init__(
        self,
        store: Store,
        home: int,
        shard_count: int,
        room: Callable[[], int],
        look_every: float = LOOK_EVERY,
    ) -> None:
        self._store, self._home, self.room = store, home, room
        self._look_every = look_every
        self._foreign = [s % shard_count for s in range(home + 1, home + shard_count)]
        self._found: dict[int, list[Token]] = {}
        self._seen: dict[int, float] = {}
        self._after: dict[str, str | None] = {}
        self._not_before: dict[str, float] = {}
        self._declined: dict[str, int] = {}
        self._home_due = self._foreign_due = 0.0
        self._home_pause = look_every
        self._trouble = False
        self._looks = 0
        self.sift: Callable[[int, list[Token]], list[Token]] = lambda _, tokens: tokens
        """Leaves of the jobs of a listing those that this worker offers what they need."""

    @property
    def due(self) -> float:
        """When `next` may find something."""
        return min(self._home_due, self._foreign_due)

    def saw(self, shard: int, tokens: Iterable[Token], now: float) -> None:
        """A listing of a shard was made: these are the jobs in it."""
        found = arrange(tokens)
        if any(t.needs for t in found):
            found = self.sift(shard, found)
        self._found[shard], self._seen[shard] = found, now
        if shard == self._home:
            self._home_due = now + self._home_pause

    def next(self, now: float) -> Token | None:
        """The next job to try."""
        if now >= self._home_due:
            self._home_pause = max(self._look_every, PER_NAME * self._look(self._home, now))
            self._home_due = now + self._home_pause
        if now >= self._foreign_due:
            self._foreign_due = now + max(FOREIGN_EVERY, self._look_every)
            if self._foreign:
                self._foreign.append(self._foreign.pop(0))
                names = self._look(self._foreign[-1], now)
                self._foreign_due = max(self._foreign_due, now + PER_NAME * names)
        self._looks = MOST_LOOKS
        candidates = self._candidates()
        waiting = {token.batch for token in candidates}
        fresh = (self._found[s] for s, at in self._seen.items() if now - at < FOREIGN_EVERY)
        pending = {layout.job_of(token.batch) for tokens in fresh for token in tokens}
        for token in candidates:
            if self._may_run(token, now, pending):
                return token
        if len(self._after) > _FORGET:
            self._after = {k: v for k, v in self._after.items() if k in waiting}
        return None

    def took(self, token: Token, now: float) -> None:
        """A candidate was tried, with whatever success."""
        for tokens in self._found.values():
            if token in tokens:
                tokens.remove(token)
        self._home_due = now

    def decline(self, batch: str, now: float) -> None:
        """Leave a job to others for a while: this host cannot run it."""
        count = self._declined[batch] = self._declined.get(batch, 0) + 1
        first, longest = DECLINED
        self._not_before[batch] = now + min(first * 2 ** min(count - 1, 10), longest)

    def _candidates(self) -> list[Token]:
        home = self._found.get(self._home, [])
        return home + [t for s in self._foreign for t in self._found.get(s, [])]

    def _may_run(self, token: Token, now: float, pending: set[str]) -> bool:
        if now < self._not_before.get(token.batch, 0.0) or self._looks <= 0:
            return False
        before = self._waits_for(token)
        if before is None:
            return True
        if before in pending:
            return False  # of a long chain only the first link is worth a look
        if self._is_over(before):
            return True
        self._not_before[token.batch] = now + WAITS_EVERY
        return False

    def _waits_for(self, token: Token) -> str | None:
        """The job that has to end before this one; read from its batch once."""
        if token.batch not in self._after:
            self._looks -= 1
            path = layout.inbox_path(token)
            try:
                found = segment.decode(self._store.read(path), segment.BATCH, path)
            except (OSError, FleetError):
                return None  # moved on, or damaged: who claims it will see
            after = found.meta.get("after")
            self._after[token.batch] = after if isinstance(after, str) else None
        return self._after[token.batch]

    def _is_over(self, job: str) -> bool:
        self._looks -= 1
        try:
            return jobstate.look(self._store, job).commit is not None
        except (FleetError, ValueError) as error:
            log.info("cannot see whether job %s is over: %s", job, error)
            return False

    def _look(self, shard: int, now: float) -> int:
        """List a shard; how many names there were."""
        try:
            names = self._store.scan(layout.inbox_dir(shard))
        except FileNotFoundError:
            names = []
        except OSError as error:
            if not self._trouble:
                log.error("cannot list the inbox of shard %d: %s", shard, error)
            self._trouble = True
            return 0
        self._trouble = False
        found = (layout.parse_inbox_name(shard, n) for n in names if layout.is_job(n))
        self.saw(shard, [t for t in found if t], now)
        return len(names)
