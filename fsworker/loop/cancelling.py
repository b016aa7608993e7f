"""What a worker does about requests to cancel: look for them while it has work, and obey.

Nothing is lost by a cancellation: the batch stays claimed and is committed like any other, with
the result "cancelled" for the tasks that are meant. So whoever waits gets an answer, and a request
that comes too late is a request about nothing. A worker without work does not look at all; one with
work lists one folder a second, and reads only what can concern a batch that it holds.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from fsworker.errors import FormatError
from fsworker.executors import Executor
from fsworker.loop.holding import Holding
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.records.cancel import CancelRequest

log = logging.getLogger("fsworker.loop.cancelling")

LOOK_EVERY = 1.0
_LIMIT = 1 << 20


class Cancelling:
    """The requests that lie on the root, as far as they concern the batches at hand."""

    def __init__(self, store: Store, executor: Executor) -> None:
        self._store, self._executor = store, executor
        self._by_target: dict[str, list[str]] = {}
        self._read: dict[str, CancelRequest | None] = {}
        self._obeyed: dict[tuple[str, str], Holding] = {}
        self._due = 0.0
        self._trouble = False

    def turn(self, now: float, holdings: Mapping[str, Holding]) -> bool:
        """Look if it is time, and cancel what is meant. True when something was cancelled."""
        if self._obeyed:
            self._tidy()
        if not holdings:
            return False
        if now >= self._due:
            self._due = now + LOOK_EVERY
            self._look()
        if not self._by_target:
            return False
        return sum(map(self._obey, holdings.values())) > 0

    def _look(self) -> None:
        try:
            names = self._store.scan(layout.CANCEL)
        except FileNotFoundError:
            names = []
        except OSError as error:
            if not self._trouble:
                log.error("cannot look for requests to cancel: %s", error)
            self._trouble = True
            return
        self._trouble = False
        self._by_target = {}
        for name in names:
            target = layout.parse_cancel_name(name)
            if target is not None:
                self._by_target.setdefault(target, []).append(name)
        self._read = {name: self._read[name] for name in names if name in self._read}

    def _obey(self, holding: Holding) -> bool:
        token, work = holding.token, holding.work
        if work is None or work.finished:
            return False
        done = False
        for target in (token.batch, token.stream):
            for name in self._by_target.get(target, ()):
                if (holding.key, name) in self._obeyed:
                    continue
                request = self._request(name)
                if request is None or not request.covers(token.batch):
                    continue
                self._obeyed[holding.key, name] = holding
                log.info("batch %s is cancelled, as far as %s means it", token.batch, request.id)
                self._executor.cancel(work, request.indexes(token.batch, len(work.records)))
                done = True
        if done:
            holding.hurry()
        return done

    def _request(self, name: str) -> CancelRequest | None:
        """What a request says; None when it says nothing that can be understood."""
        if name in self._read:
            return self._read[name]
        path = f"{layout.CANCEL}/{name}"
        try:
            found: CancelRequest | None = CancelRequest.from_json(
                self._store.read(path, _LIMIT), path
            )
        except FormatError as error:
            log.error("%s", error)
            found = None
        except OSError as error:
            log.info("%s cannot be read now: %s", path, error)
            return None
        self._read[name] = found
        return found

    def _tidy(self) -> None:
        """Remove requests about batches that are committed: they mean nothing any more.

        Whoever asked removes them too, unless he died meanwhile.
        """
        for (key, name), holding in list(self._obeyed.items()):
            if not holding.over:
                continue
            del self._obeyed[key, name]
            request = self._read.get(name)
            if holding.committed and request is not None and request.batch == holding.token.batch:
                try:
                    self._store.remove(f"{layout.CANCEL}/{name}")
                except OSError as error:
                    log.info("request %s stays: %s", name, error)
