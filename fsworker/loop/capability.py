"""Which batches this worker may claim, and where those belong that it may not.

The name of a batch holds a digest of what it needs. What a digest stands for is read once, from a
batch that has it, and proves itself: it must have that digest. A batch that this worker cannot
serve is left to others. Where no live worker of its shard can serve it either (it waited for a
worker that came later, or its worker is gone), it is forwarded to the shard of one that can: so it
is found by whoever looks at the shard, not only by the few who could execute it.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from fsworker.errors import FormatError
from fsworker.loop.holding import NO_FILE
from fsworker.loop.withdrawal import Overdue, withdraw
from fsworker.protocol import layout, ledger, offers, segment
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Token
from fsworker.protocol.offers import Provider
from fsworker.protocol.records.needs import Needs, Offer, of_inventory, of_meta
from fsworker.protocol.records.run import Manifest

log = logging.getLogger("fsworker.loop.capability")

LOOK_EVERY = 5.0
A_LOOK_COSTS = 0.5
"""Seconds between two looks at who offers what: as many for each host, and this at least."""
MOST_READS = 8
"""Batches that are read for what they need, for one listing."""
MOST_MOVES = 64
"""Batches that are forwarded in one turn."""
_FORGET = 10_000


class Capability:
    """What the worker of a host can serve. `look` gives who offers what in the run."""

    def __init__(
        self, store: Store, host: str, offer: Offer, look: Callable[[], Sequence[Provider]]
    ) -> None:
        self._store, self._host, self._offer, self._look = store, host, offer, look
        self._known: dict[str, Needs] = {}
        self._verdicts: dict[tuple[str, bool], bool] = {}
        self._others: dict[tuple[int, bool], list[Token]] = {}
        self._overdue = Overdue(store)
        self._due = 0.0
        self._reads = MOST_READS
        self._turns = itertools.count()

    def serves(self, token: Token) -> bool:
        """Whether this worker offers what a batch needs. No, as long as that is not known."""
        if not token.needs:
            return True
        kind = token.needs, token.is_job
        if kind not in self._verdicts:
            needs = self._known.get(token.needs) or self._learn(token)
            serves = needs is not None and not self._offer.lacks(needs, job=token.is_job)
            if token.needs not in self._known:
                return serves
            self._verdicts[kind] = serves
        return self._verdicts[kind]

    def sift(self, shard: int, tokens: Iterable[Token]) -> list[Token]:
        """Of the batches of tasks in a shard, those that it can serve; the others are noted."""
        return self._sift((shard, False), tokens)

    def sift_jobs(self, shard: int, tokens: Iterable[Token]) -> list[Token]:
        """The same of the jobs in a shard."""
        return self._sift((shard, True), tokens)

    def _sift(self, place: tuple[int, bool], tokens: Iterable[Token]) -> list[Token]:
        self._reads = MOST_READS
        mine: list[Token] = []
        others: list[Token] = []
        for token in tokens:
            (mine if self.serves(token) else others).append(token)
        self._others[place] = [t for t in others if t.needs in self._known]
        return mine

    def turn(self, now: float) -> int:
        """Forward what lies where nobody serves it, or answer it when it was cancelled or waits
        too long, if it is time; how many batches that were."""
        if not any(self._others.values()) or now < self._due:
            return 0
        self._due = now + LOOK_EVERY
        try:
            providers = self._look()
        except OSError as error:
            log.info("cannot see who offers what: %s", error)
            return 0
        self._due = now + max(LOOK_EVERY, A_LOOK_COSTS * len(providers))
        moved = answered = 0
        left = []
        able: dict[tuple[str, bool], list[int]] = {}
        for token in itertools.chain.from_iterable(self._others.values()):
            if moved == MOST_MOVES:
                self._due = now + A_LOOK_COSTS
                break
            kind = token.needs, token.is_job
            if kind not in able:
                needs = self._known.get(token.needs)
                able[kind] = shards_of(providers, needs, job=token.is_job) if needs else []
            if able[kind] and token.shard not in able[kind] and self._forward(token, able[kind]):
                moved += 1
            else:
                left.append(token)
        self._others.clear()
        try:
            late = self._overdue.find(left, now)
            answered = withdraw(self._store, self._host, left, late)
        except OSError as error:
            log.info("cannot answer what was cancelled or waits too long: %s", error)
        if moved:
            log.info("%d batches are forwarded to workers that offer what they need", moved)
        return moved + answered

    def _forward(self, token: Token, shards: Sequence[int]) -> bool:
        try:
            return self._store.run(ledger.forward(token, shards[next(self._turns) % len(shards)]))
        except OSError as error:
            log.info("cannot forward batch %s: %s", token.batch, error)
            return False

    def _learn(self, token: Token) -> Needs | None:
        """What a digest stands for, read from a batch that has it; None when it has moved on.

        What is damaged, or no file, or not what its name says, needs nothing: whoever finds it
        shall claim it, and so answer whoever waits.
        """
        if self._reads <= 0:
            return None
        self._reads -= 1
        found = self._read(token)
        if found is None or found.digest != token.needs:
            return found
        if len(self._known) >= _FORGET:
            self._known.clear()
            self._verdicts.clear()
        self._known[token.needs] = found
        return found

    def _read(self, token: Token) -> Needs | None:
        path = layout.inbox_path(token)
        for _ in range(2):  # damage is believed after a second, fresh open
            try:
                meta = segment.decode(self._store.read(path), segment.BATCH, path).meta
            except OSError as error:
                return Needs() if error.errno in NO_FILE else None
            except FormatError:
                continue
            found = of_meta(meta)
            if found is not None and found.digest == token.needs:
                return found
            break
        log.warning("batch %s does not say what it needs: it is taken as it is", token.batch)
        return Needs()


def of_worker(
    store: Store, manifest: Manifest, host: str, labels: Iterable[str], inventory: Mapping[str, Any]
) -> Capability:
    """That of a worker, by what its heartbeat says that it offers."""
    offer = of_inventory(labels, inventory) or Offer(tasks=False, jobs=False)
    return Capability(store, host, offer, partial(offers.read, store, manifest))


def shards_of(providers: Iterable[Provider], needs: Needs, *, job: bool) -> list[int]:
    """The home shards of the live workers that offer this."""
    return [p.shard for p in providers if p.live and p.serves(needs, job=job)]
