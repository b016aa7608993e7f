"""From the queue of a client to the inboxes of its run: who gets the next batch, and how many.

Batches go round the shards in turn, a shard as often as workers call it home, from a random start,
so that many clients do not all begin at the same worker. A batch that goes alone goes to the worker
that answered last, which is awake. A batch that needs something goes round those that offer it.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable

from fsworker.client.bookkeeping import Bookkeeping
from fsworker.client.known import KnownIds
from fsworker.client.outbound import Outbound, Outgoing
from fsworker.client.routing import Routes
from fsworker.client.sizing import Sizer
from fsworker.client.submitter import Submitter
from fsworker.client.terms import USUAL, Lane
from fsworker.client.transit import Transit
from fsworker.errors import FleetError
from fsworker.protocol import layout, segment, turns
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Token
from fsworker.protocol.records.needs import DIGEST_LENGTH
from fsworker.protocol.records.run import Manifest
from fsworker.protocol.segment import Segment

log = logging.getLogger(__name__)

ROOM_PATIENCE = 300.0
"""Seconds for which a disk may be full before what cannot be sent fails, as results do."""

AHEAD = 4
"""Batches per shard, and tasks per slot, that are on their way at most: enough to keep workers
busy over a round trip, few enough to cut what is left by what was learnt."""


class Sending:
    """Cuts, writes and submits batches of one incarnation of a client, for one thread."""

    def __init__(
        self,
        store: Store,
        manifest: Manifest,
        stream: str,
        incarnation: str,
        sizes: int,
        transit: Transit,
        books: Bookkeeping,
        known: KnownIds,
        routes: Routes,
        news: Callable[[], object],
    ) -> None:
        self.shards = [w.shard for w in manifest.workers] or list(range(manifest.shard_count))
        self.sizer = Sizer(sizes, len(self.shards))
        self.queue = Outbound(self.sizer)
        self._slots = sum(w.concurrency * w.slots.coroutines for w in manifest.workers)
        self._stream, self._encoded = stream, layout.encode(stream)
        self._incarnation = incarnation
        self._transit = transit
        self._books = books
        self._known = known
        self._routes = routes
        self._news = news
        self._submitter = Submitter(
            store, incarnation, room_patience=ROOM_PATIENCE, given_up=self._is_unwanted
        )
        self._current: str | None = None
        self._cancelled = False
        self._numbers = itertools.count()
        self._next_shard = int(incarnation, 16) % len(self.shards)
        self._homes = {w.host: w.shard for w in manifest.workers}
        self._awake: int | None = None
        self._opened = False

    def room(self, lane: Lane = USUAL) -> int:
        """How many tasks of a lane may follow those that are on their way to the same workers.

        What is urgent waits for nothing, and what is not leaves half of the room to others, so that
        nobody finds all of it taken by tasks that should have come after his.
        """
        slots, workers = self._slots, len(self.shards)
        if lane.needs:
            slots, workers = self._routes.width(lane.needs[:DIGEST_LENGTH])
        most = AHEAD * max(slots, self.sizer.choose(None) * workers)
        if lane.priority > 0:
            return most
        return (most if lane.priority == 0 else most // 2) - self._transit.away(lane.needs)

    def ready(self) -> bool:
        """Whether something waits that may be sent."""
        return any(self.room(lane) > 0 for lane in self.queue.lanes())

    def heard(self, host: object) -> None:
        """A worker answered: for a moment it looks for work more often than those that rest."""
        self._awake = self._homes.get(host) if isinstance(host, str) else None

    def cancel(self) -> int:
        """Cancel what was not sent, and wait for no room for what is being sent; how many tasks."""
        self._cancelled = True
        return self.queue.cancel()

    def send(self) -> bool:
        """Send what fits, or fail what cannot be sent; whether a batch was submitted."""
        self._open()
        used = set()
        for outgoing in self.queue.take(self.room):
            shard = self._send_batch(outgoing)
            if shard is not None:
                used.add(shard)
        if self.queue.cancelled:
            gone, self.queue.cancelled = self.queue.cancelled, 0
            self._transit.answered(gone)
        try:
            self._submitter.sync(used)
        except FleetError as error:
            log.warning("submitted, but a crash of the file server may undo it: %s", error)
        return bool(used)

    def _open(self) -> None:
        """Make the stream before anything can be answered. Raises FleetError."""
        if not self._opened:
            self._submitter.open_stream(self._encoded)
            self._opened = True

    def _send_batch(self, outgoing: Outgoing) -> int | None:
        """Submit one batch; its shard, or None when its tasks were failed instead."""
        lane = outgoing.terms.lane
        needs = lane.needs[:DIGEST_LENGTH]
        shard = self._choose(needs)
        number = turns.prior(next(self._numbers), lane.priority)
        token = Token(f"{self._encoded}-{self._incarnation}-{number}", shard, needs=needs)
        # Known before it is submitted: its results may be there before `enqueue` returns.
        self._transit.register(token.batch, outgoing.receiver, lane.needs)
        self._books.sent(token.batch, len(outgoing.records))
        self._current = token.batch
        try:
            self._note_ids(token.batch, outgoing)
            self._submitter.prepare(token, self._encode(outgoing))
            self._submitter.enqueue(token)
        except FleetError as error:
            failure = error
            self._books.unsent(token.batch)
            self._known.unsent(token.batch)
            self._transit.finish(token.batch, lambda receiver: receiver.fail(failure))
            return None
        return shard

    def _note_ids(self, batch: str, outgoing: Outgoing) -> None:
        if ids := outgoing.ids:
            where = f"{layout.outbox_dir(self._encoded)}/{batch}"
            self._submitter.insist(lambda: self._known.sent(batch, ids), "note the ids of", where)

    def _is_unwanted(self) -> bool:
        """Whether nobody waits any more for what is being sent: it was failed, or all is over."""
        self._news()  # so that somebody sees whether there are workers to wait for
        current = self._current
        return self._cancelled or (current is not None and current not in self._transit)

    def _choose(self, needs: str) -> int:
        if needs and (chosen := self._routes.shard(needs)) is not None:
            return chosen
        if self._awake is not None and not self._transit.on_their_way:
            return self._awake
        self._next_shard = (self._next_shard + 1) % len(self.shards)
        return self.shards[self._next_shard]

    def _encode(self, outgoing: Outgoing) -> bytes:
        waited = 0.0 if outgoing.since is None else time.monotonic() - outgoing.since
        meta = outgoing.terms.meta(waited) | {"stream": self._stream, "created": time.time()}
        if outgoing.form is not None:
            meta["form"] = outgoing.form
        return segment.encode(Segment(segment.BATCH, meta, outgoing.records))
