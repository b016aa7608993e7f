"""Descriptors of many files, a bounded number of them open at once.

Thirty participants with a hundred shards each are more files than a process may hold open on most
machines. A descriptor that is in use is never closed: its number could be another file's by then.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from typing import Protocol

LIMIT = 256
"""Descriptors that stay open at most, beyond those in use."""


class Reopened(Protocol):
    """A file that can be opened again, as the same file."""

    def open_again(self) -> int:
        """A new descriptor."""


class Descriptor:
    """An open descriptor and how many threads use it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.users = 0
        self.dropped = False


class Pool:
    """Lends descriptors; those least recently used are closed first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._open: dict[Reopened, Descriptor] = {}  # the last is the most recently used

    def borrow(self, owner: Reopened) -> Descriptor:
        """A descriptor of `owner`, opened if need be; `give_back` must follow."""
        return self.borrow_all((owner,))[0]

    def borrow_all(self, owners: Sequence[Reopened]) -> list[Descriptor]:
        """One of each; `give_back` must follow. Where one cannot be opened none is lent."""
        with self._lock:
            found: list[Descriptor] = []
            try:
                for owner in owners:
                    lent = self._open.pop(owner, None) or Descriptor(owner.open_again())
                    self._open[owner] = lent
                    lent.users += 1
                    found.append(lent)
            except BaseException:
                self._end_use(found)
                raise
            if len(self._open) > self._limit:
                idle = [o for o, d in self._open.items() if not d.users]
                for other in idle[: len(self._open) - self._limit]:
                    os.close(self._open.pop(other).fd)
            return found

    def give_back(self, *lent: Descriptor) -> None:
        """End a use of each."""
        with self._lock:
            self._end_use(lent)

    def _end_use(self, some: Iterable[Descriptor]) -> None:
        for lent in some:
            lent.users -= 1
            if lent.dropped and not lent.users:
                os.close(lent.fd)

    def drop(self, owner: Reopened, lent: Descriptor) -> None:
        """Lend this descriptor no more; it is closed when its last use ends."""
        with self._lock:
            if self._open.get(owner) is lent:
                del self._open[owner]
                lent.dropped = True

    def forget(self, owner: Reopened) -> None:
        """Close what is open of `owner`, as soon as nobody uses it."""
        with self._lock:
            lent = self._open.pop(owner, None)
            if lent is None:
                return
            lent.dropped = True
            if not lent.users:
                os.close(lent.fd)


POOL = Pool(LIMIT)
"""One for the process, since the limit is the process's."""
