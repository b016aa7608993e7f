"""Where a client's tasks go that need something of their worker, and whether anybody offers it.

Who offers what is read from the root when such a task is sent or waits, every few seconds at most;
tasks that need nothing cost nothing of this. What nobody offers is refused, after a fresh look,
unless its caller waits for workers: then it lies in some shard, and whoever comes to offer it takes
it from there, or gets it forwarded.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence

from fsworker.client.terms import WAITS, Terms
from fsworker.errors import NotOffered, NoWorkers
from fsworker.protocol import offers
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.offers import Provider
from fsworker.protocol.records.needs import DIGEST_LENGTH, Needs
from fsworker.protocol.records.run import Manifest

LOOK_EVERY = 5.0
ASK_EVERY = 2.0
"""Seconds between two counts of silence."""


class Routes:
    """Who serves which needs, for all threads of one client."""

    def __init__(
        self, store: Store, manifest: Manifest, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._manifest, self._clock = store, manifest, clock
        self._known: dict[str, Needs] = {}
        self._able: dict[str, list[Provider]] = {}
        self._providers: Sequence[Provider] = ()
        self._looked: float | None = None
        self._turn = 0
        self._lock = threading.Lock()

    def check(self, terms: Terms) -> None:
        """NotOffered when nobody of the run offers what these tasks need, and they do not wait."""
        needs = terms.options.needs
        if not needs:
            return
        with self._lock:
            self._known[needs.digest] = needs
            before = self._looked
            if self._of(needs.digest) or terms.options.wait_for_workers:
                return
            # Only a look that began after the question refuses: an answer that the caller holds
            # may come from a worker that was not there a moment ago.
            if self._looked == before:
                self._look(0.0)
            if not self._of(needs.digest):
                sentence = offers.refusal(self._store.root, self._providers, needs)
                raise NotOffered(
                    f"{sentence}; wait_for_workers=True waits for one", path=self._store.root
                )

    def learn(self, needs: Needs) -> str:
        """Its digest, which the other questions are about."""
        with self._lock:
            self._known[needs.digest] = needs
        return needs.digest

    def shard(self, digest: str) -> int | None:
        """Where the next batch of such tasks goes; None when nobody offers that now."""
        with self._lock:
            able = self._of(digest)
            self._turn += 1
            return able[self._turn % len(able)].shard if able else None

    def width(self, digest: str) -> tuple[int, int]:
        """(how many slots serve such tasks, on how many workers); at least 1 each."""
        with self._lock:
            able = self._of(digest)
        return max(1, sum(p.slots for p in able)), max(1, len(able))

    def served(self, digest: str) -> bool:
        """Whether a worker lives that offers it."""
        with self._lock:
            return any(p.live for p in self._of(digest))

    def missing(self, digest: str, limit: float) -> NoWorkers:
        """What to tell those that have waited so long for it."""
        with self._lock:
            needs = self._known[digest]
            lacking = "; ".join(offers.shortage(self._providers, needs))
        root = self._store.root
        more = f": {lacking}" if lacking else ""
        words = f"no worker that offers {needs} has served {root} for {limit:g} s{more}"
        return NoWorkers(words, path=root)

    def _of(self, digest: str) -> list[Provider]:
        self._look(LOOK_EVERY)
        if digest not in self._able:
            self._able[digest] = offers.able(self._providers, self._known[digest])
        return self._able[digest]

    def _look(self, age: float) -> None:
        now = self._clock()
        if self._looked is not None and now - self._looked < age:
            return
        try:
            self._providers = offers.read(self._store, self._manifest)
        except OSError as error:
            if self._looked is None:
                raise storage_error(error, "read", self._store.root) from None
            return  # what was seen last must do until the storage answers
        self._looked = self._clock()
        self._able.clear()


class Shortage:
    """Says which tasks have waited in vain for too long: no worker lived that offers their needs.

    `limit` is in seconds, None: never. Those that wait for workers are asked for by nobody.
    """

    def __init__(
        self, routes: Routes, limit: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._routes, self._limit, self._clock = routes, limit, clock
        self._silence: dict[str, float] = {}
        self._looked = clock()

    def check(self, waiting: Iterable[str]) -> list[tuple[str, NoWorkers]]:
        """Those of the needs that are waited for, by their names in lanes, that are given up."""
        now = self._clock()
        if self._limit is None or now - self._looked < ASK_EVERY:
            return []
        passed, self._looked = min(now - self._looked, 2 * ASK_EVERY), now
        given_up = []
        for name in waiting:
            if name.endswith(WAITS):
                continue
            digest = name[:DIGEST_LENGTH]
            silent = 0.0 if self._routes.served(digest) else self._silence.get(name, 0.0) + passed
            self._silence[name] = silent
            if silent >= self._limit:
                self._silence[name] = 0.0
                given_up.append((name, self._routes.missing(digest, self._limit)))
        return given_up
