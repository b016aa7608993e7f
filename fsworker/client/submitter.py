"""Putting batches into inboxes, with an answer to "was it submitted?" that is never a guess.

Writing may fail, and then nothing happened. The rename that submits may report anything; it is
repeated until the ledger can tell. Only when the storage goes on refusing is a batch withdrawn, and
the withdrawal itself proves that it never was submitted: its file was still ours to remove.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Iterable
from functools import partial

from fsworker.errors import FleetError, NotRunning, StorageError
from fsworker.protocol import layout, ledger
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.layout import Token
from fsworker.protocol.ledger import Move

log = logging.getLogger(__name__)

PATIENCE = 20.0
"""Seconds that a storage may refuse before its refusal is passed on."""

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
_FINAL = {errno.EACCES, errno.EPERM, errno.EROFS, errno.EFBIG}
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 1.0
_REMIND = 30.0
"""Seconds after which it is said again that there is no room."""


def never() -> bool:
    """Whether there is nobody left who waits: there is."""
    return False


class Submitter:
    """Submits batches to the inboxes of one run.

    `unique` is a part of the names of temporaries: two processes that share it must never live at
    the same time. Without `withdraw` a batch that the storage refuses to rename stays prepared, to
    be submitted later under the same names. A storage without room is asked again for
    `room_patience` seconds since it last took something, unless `given_up()`.
    """

    def __init__(
        self,
        store: Store,
        unique: str,
        *,
        withdraw: bool = True,
        patience: float = PATIENCE,
        room_patience: float = 0.0,
        given_up: Callable[[], bool] = never,
    ) -> None:
        self._store = store
        self._unique = unique
        self._may_withdraw = withdraw
        self._patience = patience
        self._room_patience, self._given_up = room_patience, given_up
        self._full_since: float | None = None
        self._said = -_REMIND

    def open_stream(self, stream: str) -> None:
        """Make the folder of a stream (encoded name), which must be there before any result."""
        folder = layout.outbox_dir(stream)
        self.insist(lambda: self._store.mkdir(folder), "make", folder)

    def temporary(self, token: Token) -> str:
        """Where a batch lies while it is prepared."""
        return layout.temporary(layout.inbox_path(token), self._unique)

    def prepare(self, token: Token, data: bytes) -> None:
        """Write a batch where no worker looks yet. When it raises, nothing was submitted."""

        def write() -> None:
            try:
                self._store.run(ledger.prepare_submission(token, self._unique, data))
            except OSError as error:
                if error.errno == errno.ENOSPC and len(data) > self._store.capacity():
                    words = "it is larger than that filesystem"
                    raise OSError(errno.EFBIG, words, error.filename) from None
                raise

        self.insist(write, "write", layout.inbox_path(token))

    def enqueue(self, token: Token) -> None:
        """Submit a prepared batch, or one that may have been submitted before.

        StorageError only when it provably was not submitted.
        """
        temp = self.temporary(token)
        pause, end = _FIRST_PAUSE, time.monotonic() + self._patience
        while (move := self._store.run(ledger.enqueue(token, temp))) is not Move.DONE:
            if move is Move.HELD and time.monotonic() > end and self._withdraw(temp):
                path = self._store.path(layout.inbox_path(token))
                raise StorageError(
                    f"cannot submit {path}: the storage refuses to rename it: "
                    "check its quota, its free space and the folder's mode",
                    path=path,
                )
            pause = self._wait(pause, "submitting %s is not settled yet", token.batch)

    def sync(self, shards: Iterable[int]) -> None:
        """Make what was put into these inboxes outlive a crash of the file server."""
        for shard in sorted(set(shards)):
            folder = layout.inbox_dir(shard)
            self.insist(partial(self._store.sync_folder, folder), "sync", folder)

    def _withdraw(self, temp: str) -> bool:
        if not self._may_withdraw:
            return True
        try:
            return self._store.remove(temp)
        except OSError:
            return False

    def insist(self, action: Callable[[], object], doing: str, rel: str) -> None:
        """Do it, again while that may help; the refusal in words when it does not."""
        pause, end = _FIRST_PAUSE, time.monotonic() + self._patience
        while True:
            try:
                action()
                self._full_since = None
                return
            except OSError as error:
                if self._is_final(error, end):
                    raise storage_error(error, doing, self._store.path(rel)) from None
                if isinstance(error, (FileNotFoundError, NotADirectoryError)):
                    raise self._gone(rel) from None
                pause = self._wait(pause, "cannot %s %s yet: %s", doing, rel, error)

    def _is_final(self, error: OSError, end: float) -> bool:
        """Whether nothing is to be hoped for: not by whoever waits, or not any longer."""
        now = time.monotonic()
        if error.errno not in _NO_ROOM:
            return error.errno in _FINAL or now > end
        if self._full_since is None:
            self._full_since = now
        return now - self._full_since >= self._room_patience or self._given_up()

    def _gone(self, rel: str) -> FleetError:
        root = self._store.root
        return NotRunning(f"there is no {rel.rpartition('/')[0]} in {root}: was the run removed?")

    def _wait(self, pause: float, why: str, *words: object) -> float:
        now = time.monotonic()
        aloud = pause >= _LONGEST_PAUSE and now - self._said >= _REMIND
        self._said = now if aloud else self._said
        log.log(logging.WARNING if aloud else logging.DEBUG, why, *words)
        time.sleep(pause)
        return min(pause * 2, _LONGEST_PAUSE)
