"""What was sent to streams and read from them, as those who sent and read have noted it.

A client leaves its counters in its stream, exact once it is over. `ctl submit` and `ctl results`
note every step, so theirs can be judged at any time: what was submitted is read before the root is
looked at, what was taken after, so that whatever moves in between is counted on both sides.
"""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field

from ctl import streams
from ctl.streams import Sent, Submission, Taken
from fsworker.errors import FleetError, FormatError
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.records.counters import StreamCounters

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Account:
    """One sender's numbers, in batches. `taken` names those that were read, where that is known.

    Without `settled` they are too old to be held against anybody.
    """

    stream: str
    life: str
    submitted: int
    read: int
    settled: bool
    source: str
    taken: frozenset[int] | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Encoded stream and incarnation, as batch ids hold them."""
        return layout.encode(self.stream), self.life

    def missing(self, found: set[int]) -> int:
        """How many batches are neither found nor read; below 0: so many too many are found."""
        if not self.settled:
            return 0
        if self.taken is None:
            return self.submitted - self.read - len(found)
        return sum(n not in found and n not in self.taken for n in range(self.submitted))

    def read_of(self, found: set[int]) -> int:
        """How many were read and are not found any more."""
        return self.read if self.taken is None else len(self.taken - found)


@dataclass
class Submitted:
    """The submissions of `ctl submit`, as they were before the root was looked at."""

    rows: list[tuple[Submission, int, bool]] = field(default_factory=list)

    @property
    def preparing(self) -> set[str]:
        """Incarnations whose temporaries are batches that will yet be submitted."""
        return {submission.incarnation for submission, _, _ in self.rows}


def submitted(store: Store) -> Submitted:
    """How much `ctl submit` has submitted to each stream, and whether all of it was taken."""
    found = Submitted()
    for name in streams.names(store):
        try:
            submission = streams.read(store, Submission, name)
            sent = streams.read(store, Sent, name)
            taken = streams.read(store, Taken, name)
        except FormatError as error:
            log.warning("%s: the stream is not added up", error)
            continue
        if submission is not None:
            complete = taken is not None and taken.complete
            found.rows.append((submission, sent.submitted if sent else 0, complete))
    return found


def of_submissions(store: Store, before: Submitted) -> list[Account]:
    """The accounts of `ctl submit`, with what `ctl results` has taken by now."""
    found = []
    for submission, count, complete in before.rows:
        taken = frozenset(range(count)) if complete else _taken(store, submission)
        read = 0 if taken is None else len(taken)
        found.append(
            Account(
                submission.stream,
                submission.incarnation,
                count,
                read,
                taken is not None,
                "ctl submit",
                taken,
            )
        )
    return found


def of_clients(store: Store, paths: Iterable[str]) -> list[Account]:
    """What these counters of clients say; what cannot be read says nothing."""
    found = []
    for path in paths:
        try:
            c: StreamCounters = StreamCounters.from_json(store.read(path), store.path(path))
            where = layout.counters_path(layout.encode(c.stream), c.incarnation)
        except (OSError, FormatError, ValueError) as error:
            log.info("the counters of a client are left out: %s", error)
            continue
        if where == path:
            found.append(Account(c.stream, c.incarnation, c.submitted, c.read, c.settled, "client"))
    return found


def _taken(store: Store, submission: Submission) -> frozenset[int] | None:
    """The batches that `ctl results` keeps; None when that is not known here."""
    try:
        taken = streams.read(store, Taken, submission.stream)
    except FleetError:
        return None
    if taken is None:
        return frozenset()
    if taken.complete:
        return frozenset(range(len(submission.ends)))
    if taken.machine != socket.gethostname():
        return None
    return _kept(taken.out + ".partial")


def _kept(partial: str) -> frozenset[int] | None:
    numbers = set()
    try:
        with open(partial, "rb") as file:
            next(file, None)
            for line in file:
                if line.endswith(b"\n"):
                    numbers.add(int(json.loads(line)["batch"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return frozenset(numbers)
