"""When a worker looks for work, where, and which batch it takes.

A listing is a round trip and an inbox may hold thousands of names, so one listing is used up before
the next is made. The home shard comes first, oldest work first; when it is empty, one foreign shard
a look, newest work first, so that thieves and owners meet last. Who goes through a foreign listing
looks at home meanwhile, as often as if it were idle, and goes on there if something has come.
Workers that share a shard begin at different names. Shards that were adopted, since no host calls
them home, take turns with the own one: what is sent there waits hardly longer, and an idle worker
looks no more often. Looks are frequent after success and rare when idle: `HOME_IDLE` and
`FOREIGN_IDLE` keep an idle worker within five calls a second on the root, heartbeat and stop intent
included.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable

from fsworker.protocol import layout, turns
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Token
from fsworker.protocol.records.run import Manifest

log = logging.getLogger("fsworker.loop.intake")

QUICK = 0.002
HOME_IDLE = 0.32
FOREIGN_IDLE = 10.0
FOREIGN_AWAKE = 0.3
AWAKE = 45.0
"""Seconds after the last claim for which foreign shards are looked at every FOREIGN_AWAKE at least:
what lies behind somebody's long task is taken over while a run is in use, not ten seconds later."""
_SLOWER = 1.5
LOST_RACES = 8
"""Claims lost in a row after which a listing is too old to be used up."""
MAX_AGE = 10.0
PER_NAME = 5e-5
"""Seconds until the next look at home for each name that this worker had to pass over, which costs
a tenth of it: what waits for others is not listed all the time.
"""


class Pause:
    """A time between looks that grows from QUICK to `longest` while nothing is found."""

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._pause = QUICK
        self.due = 0.0

    def hurry(self, now: float) -> None:
        """Something happened: look soon."""
        self._pause = QUICK
        self.due = min(self.due, now + QUICK)

    def wait(self, now: float, most: float | None = None) -> None:
        """Nothing was found: look later than last time, but within `most` seconds."""
        self.due = now + (self._pause if most is None else min(self._pause, most))
        self._pause = min(self._pause * _SLOWER, self._longest)


class Intake:
    """Candidates for a claim, one after the other."""

    def __init__(self, store: Store, manifest: Manifest, host: str, shard: int) -> None:
        self._store = store
        self._home = shard
        self._order = _rotated(manifest.shard_count, shard)
        self._foreign = [s for s in self._order if s != shard]
        self._homes = deque([shard])
        sharing = [w.host for w in manifest.workers if w.shard == shard]
        if host not in sharing:  # it joined later
            sharing.append(host)
        self._sharers = len(sharing)
        self._rank = sharing.index(host)
        self._found: deque[Token] = deque()
        self._listed = self._looked_home = 0.0
        self._lost = 0
        self._rest = 0.0
        self._claimed: float | None = None
        self.home = Pause(HOME_IDLE)
        self.foreign = Pause(FOREIGN_IDLE)
        self._trouble = False
        self.saw_jobs: Callable[[int, list[Token], float], None] = lambda *_: None
        """Told of the jobs in each listing, which are not for who executes tasks."""
        self.sift: Callable[[int, list[Token]], list[Token]] = lambda _, tokens: tokens
        """Leaves of the batches of a listing those that this worker offers what they need."""

    @property
    def head(self) -> Token | None:
        """The next candidate of the listing at hand."""
        return self._found[0] if self._found else None

    @property
    def due(self) -> float:
        """When `next` may find something."""
        if self._found:
            return 0.0
        home = max(self.home.due, self._rest)
        return min(home, self.foreign.due) if self._foreign else home

    def adopt(self, shards: Iterable[int]) -> None:
        """Treat these shards as the own one; those that were adopted before no longer."""
        self._homes = deque([self._home, *shards])
        self._foreign = [s for s in self._order if s not in self._homes]

    def next(self, now: float, *, steal: bool) -> Token | None:
        """The next batch to try, from the listing at hand or a new one if that is due."""
        if self._claimed is None:  # who has just come looks around as if it had found something
            self._claimed = now
        if self._found and (self._lost >= LOST_RACES or now - self._listed > MAX_AGE):
            self._found.clear()
        if self._found and self._found[0].shard not in self._homes:
            self._home_first(now)
        steals = steal and self._foreign and now >= self.foreign.due
        # Right before it steals, too: what is at home costs others nothing.
        if not self._found and now >= max(0.0 if steals else self.home.due, self._rest):
            self._look_home(now)
            if not self._found:
                self.home.wait(now)
        if not self._found and steals:
            self._look(self._foreign[0], now)
            if not self._found:
                self._foreign.append(self._foreign.pop(0))
                awake = now - self._claimed < AWAKE
                self.foreign.wait(now, FOREIGN_AWAKE if awake else None)
        return self._found[0] if self._found else None

    def took(self, token: Token, *, won: bool, now: float) -> None:
        """The candidate was tried; `won`: we have it."""
        self._found.popleft()
        self._lost = 0 if won else self._lost + 1
        pause = self.home if token.shard in self._homes else self.foreign
        if won:
            self._claimed = now
            pause.hurry(now)
        elif not self._found or self._lost >= LOST_RACES:
            pause.wait(now)  # or a folder that refuses us would be tried without a rest

    def hurry(self, now: float) -> None:
        """Slots became free: look at home soon."""
        self.home.hurry(now)

    def _home_first(self, now: float) -> None:
        """See whether something has come home since; else go on with the listing at hand."""
        if now < max(self._looked_home + HOME_IDLE, self._rest):
            return
        foreign, listed, lost = self._found, self._listed, self._lost
        self._found = deque()
        self._look_home(now)
        if not self._found:
            self._found, self._listed, self._lost = foreign, listed, lost

    def _look_home(self, now: float) -> None:
        self._looked_home = now
        self._homes.rotate(-1)
        self._look(self._homes[-1], now)

    def _look(self, shard: int, now: float) -> None:
        try:
            names = self._store.scan(layout.inbox_dir(shard))
        except FileNotFoundError:
            names = []
        except OSError as error:
            if not self._trouble:
                log.error("cannot list the inbox of shard %d: %s", shard, error)
            self._trouble = True
            return
        self._trouble = False
        self._listed, self._lost = now, 0
        tokens = [t for name in names if (t := layout.parse_inbox_name(shard, name))]
        jobs = [t for t in tokens if t.is_job]
        self.saw_jobs(shard, jobs, now)
        if jobs:
            tokens = [t for t in tokens if not t.is_job]
        if any(t.needs for t in tokens):
            mine = self.sift(shard, tokens)
            if shard in self._homes:
                self._rest = now + PER_NAME * (len(tokens) - len(mine))
            tokens = mine
        self._found.extend(
            arrange(
                tokens,
                newest_first=shard not in self._homes,
                rank=self._rank,
                sharers=self._sharers if shard == self._home else 1,
            )
        )


def arrange(
    tokens: Iterable[Token], *, newest_first: bool = False, rank: int = 0, sharers: int = 1
) -> list[Token]:
    """The order in which to try: by priority, then by sequence, and each of several sharers its
    own ones first."""
    ordered = sorted(tokens, key=lambda t: _turn(t, newest_first))
    if sharers > 1:
        places = {t: i % sharers != rank for i, t in enumerate(ordered)}
        ordered.sort(key=lambda t: (turns.turn_of(t.batch)[0], places[t]))
    return ordered


def _turn(token: Token, newest_first: bool) -> tuple[int, int, str]:
    lane, number = turns.turn_of(token.batch)
    return lane, -number if newest_first else number, token.batch


def _rotated(count: int, start: int) -> list[int]:
    return [(start + i) % count for i in range(count)]
