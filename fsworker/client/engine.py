"""The two threads of a client: one that sends what was submitted, one that reads what came back.

Two, because either may wait for the storage: a slow submission must not delay results that are
there, nor the other way round. They share the table of batches that are on their way, and never
hold a lock while they touch the disk. Whatever goes wrong ends in an exception for those who wait;
a thread that stops without a word would leave them waiting for ever.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from fsworker.blob import Shelf
from fsworker.client import receivers
from fsworker.client.aborting import Aborting
from fsworker.client.bookkeeping import Bookkeeping
from fsworker.client.delivery import Delivered, Delivery, Want
from fsworker.client.idbook import IdBook
from fsworker.client.known import KnownIds
from fsworker.client.liveness import Liveness
from fsworker.client.outbound import Call, anything
from fsworker.client.pace import Pace
from fsworker.client.receivers import Receiver, Strip
from fsworker.client.routing import Routes, Shortage
from fsworker.client.sending import Sending
from fsworker.client.settings import Settings
from fsworker.client.terms import WAITS
from fsworker.client.transit import Transit
from fsworker.errors import FleetError
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.records.run import Manifest
from fsworker.remote import lost

log = logging.getLogger(__name__)

LINGER = 0.001
"""Seconds to wait for company while many submit. A task that comes alone is sent at once."""


class Engine:
    """Sends and reads for one client; its threads end when it is closed and all is answered."""

    def __init__(self, store: Store, manifest: Manifest, settings: Settings) -> None:
        self.incarnation = layout.new_incarnation()
        self.stream = settings.stream or f"client-{self.incarnation}"
        self.settings = settings
        self._store = store
        self._encoded = layout.encode(self.stream)
        self._transit = Transit(settings.outstanding)
        self._aborting = Aborting(store, self._transit)
        self._books = Bookkeeping(store, self._encoded, self.incarnation)
        self._news = threading.Event()
        book = IdBook(store, self._encoded, self.incarnation, journal=settings.stream is not None)
        self.known = KnownIds(book, self._transit, self._news.set)
        self.shelf = Shelf(store, self._encoded, self.incarnation)
        self.routes = Routes(store, manifest)
        self._shortage = Shortage(self.routes, settings.no_worker_timeout)
        parts = (self._transit, self._books, self.known, self.routes, self._news.set)
        size = settings.batch_size
        self._sending = Sending(store, manifest, self.stream, self.incarnation, size, *parts)
        self._queue = self._sending.queue
        self._delivery = Delivery(store, self._encoded, self._judge, self._books)
        self._liveness = Liveness(store, settings.no_worker_timeout)
        self._wake = threading.Event()
        self._closing = False
        self._sent_all = False
        self._broken: BaseException | None = None
        self._sender = self._thread(self._send_loop, "send")
        self._reader = self._thread(self._read_loop, "read")

    def start(self) -> None:
        """Begin."""
        self._sender.start()
        self._reader.start()

    def submit(self, call: Call) -> None:
        """Queue a call; waits while too many are unanswered, except in a future's callback."""
        self._check()
        common = call.terms.common and call.id is None
        if not common:
            self.routes.check(call.terms)
        if not self._transit.admit_one():
            # A callback that waited in the reading thread would wait for itself.
            waits = threading.get_ident() != self._reader.ident
            self._transit.admit(1, self._is_over if waits else None)
            self._check()
        if common:
            self._queue.add_call(call)
        else:
            call.since = time.monotonic()
            self._queue.add_prior(call)
        self._added()

    def send(self, strip: Strip) -> None:
        """Queue a strip. Whoever makes strips bounds them: this never waits."""
        self._check()
        self._transit.admit(strip.waiting)
        self._queue.add_strip(strip)
        self._added()

    def withdraw(self, strip: Strip) -> None:
        """Cancel what is open of a strip, whose values nobody wants any longer."""
        self._transit.answered(self._queue.drop(strip))
        self._wake_sender()
        self._aborting.drop(strip)
        self._news.set()

    def abort(self, future: Future[Any]) -> None:
        """Ask the workers to end a task that was sent."""
        self._aborting.ask(future)
        self._news.set()

    def close(self, *, cancel: bool = False) -> None:
        """Accept nothing more; with `cancel` drop what was not sent yet."""
        self._closing = True
        if cancel:
            self._cancel_rest()
        self._transit.wake()
        self._wake.set()
        self._news.set()

    def join(self, timeout: float | None = None) -> None:
        """Wait until everything is answered, at most `timeout` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        for thread in (self._sender, self._reader):
            if thread is not threading.current_thread():
                thread.join(None if end is None else max(0.0, end - time.monotonic()))

    def flush(self, timeout: float) -> None:
        """Close, and wait until everything is sent: the results may be read by another."""
        self.close()
        self._sender.join(timeout)

    # -- sending

    def _send_loop(self) -> None:
        while self._await_room():
            if self._transit.on_their_way:
                time.sleep(LINGER)
            try:
                if self._sending.send():
                    self._news.set()
            except FleetError as error:
                self._give_up(error)
        self._sent_all = True
        self._cancel_rest()
        self._news.set()

    def _added(self) -> None:
        """Something was queued: have it sent, or cancelled if nobody is there to send it."""
        self._wake_sender()
        if self._sent_all or self._broken is not None:
            self._cancel_rest()

    def _cancel_rest(self) -> None:
        self._transit.answered(self._sending.cancel())

    def _await_room(self) -> bool:
        """Wait until something can be sent; False when there will be nothing more."""
        while True:
            self._wake.clear()
            if self._broken is not None:
                return False
            if self._sending.ready():
                return True
            if self._closing and not self._queue:
                return False
            self._wake.wait()

    # -- reading

    def _read_loop(self) -> None:
        pace = Pace()
        while self._await_pending():
            if self._news.is_set():
                self._news.clear()
                pace.reset()
            if self._read_once():
                pace.reset()
                self._liveness.heard()
            elif (reason := self._liveness.check()) is not None:
                self._give_up(reason, lambda needs: not needs.endswith(WAITS))
                self._liveness.heard()
            if self._transit.needy:
                for needs, error in self._shortage.check(list(self._transit.needy)):
                    self._give_up(error, needs.__eq__)
            self._books.note()
            self._aborting.turn()
            self._news.wait(pace.next())
        self._delivery.clear()
        if self.settings.stream is None:
            self._books.withdraw()
            self._remove_stream()
        else:
            self._delivery.sweep()
            self._books.close(settled=self._broken is None)

    def _await_pending(self) -> bool:
        """Wait until a result can come; False when none will."""
        while not self._transit:
            if self._sent_all or self._broken is not None:
                return bool(self._transit)
            self._news.wait()
            self._news.clear()
            self._liveness.heard()
        return self._broken is None

    def _read_once(self) -> bool:
        """Look at the stream once; whether something came."""
        came = False
        kept: list[Delivered] = []
        try:
            for delivered in self._delivery.poll():
                came = True
                self._deliver(delivered)
                if delivered.final:
                    kept.append(delivered)
        except OSError as error:
            log.warning("cannot read results in %s yet: %s", self._store.root, error)
        for delivered in kept:
            if self.known.settled(delivered.batch):
                self._delivery.forget(delivered)
            self._aborting.answered(delivered.batch)
        return came

    def _deliver(self, delivered: Delivered) -> None:
        if not delivered.final:
            receiver = self._transit.receiver(delivered.batch)
            if receiver is not None:
                receiver.take(delivered.rows)
            return

        def answer(receiver: Receiver) -> None:
            if delivered.lost is not None:
                receiver.fail(lost(delivered.lost))
                return
            self._sending.sizer.learn(receiver.count, delivered.meta.get("elapsed"))
            self._sending.heard(delivered.meta.get("host"))
            receiver.take(delivered.rows)
            receivers.close(receiver)

        self._transit.finish(delivered.batch, answer)
        self._wake_sender()

    def _judge(self, batch: str) -> Want:
        if batch in self._transit:
            return Want.TAKE
        if (known := self.known.judge(batch)) is not None:
            return known
        mine = batch.rsplit("-", 2)[1] == self.incarnation
        return Want.DROP if mine else Want.LEAVE

    def _remove_stream(self) -> None:
        try:
            self._store.rmdir(layout.outbox_dir(self._encoded))
        except OSError as error:
            log.debug("%s stays: %s", layout.outbox_dir(self._encoded), error)

    # -- both

    def _give_up(self, reason: BaseException, meant: Callable[[str], bool] = anything) -> None:
        """Fail everything that waits whose needs are `meant`."""
        self._transit.fail(reason, meant)
        self._transit.answered(self._queue.fail(reason, meant))
        self._wake_sender()  # it may have nothing left to wait for

    def _wake_sender(self) -> None:
        if not self._wake.is_set():
            self._wake.set()

    def _check(self) -> None:
        if self._broken is not None:
            raise FleetError(f"this client has failed: {self._broken}") from self._broken
        if self._closing:
            raise RuntimeError("cannot schedule new futures after shutdown")

    def _is_over(self) -> bool:
        return self._closing or self._broken is not None

    def _thread(self, loop: Callable[[], None], name: str) -> threading.Thread:
        def run() -> None:
            try:
                loop()
            except BaseException as error:
                log.exception("the client's thread %r failed", name)
                self._break(error)

        return threading.Thread(target=run, name=f"shardfleet-{name}", daemon=True)

    def _break(self, error: BaseException) -> None:
        self._broken = error
        self._give_up(error if isinstance(error, FleetError) else FleetError(f"failed: {error!r}"))
        self._wake.set()
        self._news.set()
