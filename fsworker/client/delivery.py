"""Taking results out of a stream: read and verify, hand over, and only then forget.

Between handing over and forgetting, whoever takes the results keeps them: a client in its futures,
a command in a file that is fsynced. So a process that dies in between finds the same results again
and loses none. What a stream holds for others is left alone, whatever state it is in.
"""

from __future__ import annotations

import enum
import json
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from fsworker import outcomes
from fsworker.errors import FormatError
from fsworker.protocol import layout, segment, stream, sweeping
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Outcome
from fsworker.protocol.segment import Segment
from fsworker.protocol.stream import Listing

log = logging.getLogger(__name__)

MISSING_AFTER = 10.0
"""Seconds for which a committed result may be absent before it is held to be lost."""


class Want(enum.Enum):
    """What the taker of a stream says of a committed batch."""

    TAKE = "take"
    DROP = "drop"
    """It has these results already: only forget them."""
    LEAVE = "leave"
    """They are somebody else's."""


@dataclass(slots=True)
class Delivered:
    """Results of a batch. With `lost`, they are committed but cannot be had, and this is why.

    Each row is a result record: `[index, id, status, value, elapsed, …]`, or a run (`outcomes`).
    Without `final` they are early ones.
    """

    batch: str
    rows: list[Any] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)
    lost: str | None = None
    final: bool = True
    outcome: Outcome | None = None
    leftovers: list[str] = field(default_factory=list)

    def singles(self) -> Iterator[Any]:
        """A row for each task."""
        return outcomes.singles(self.rows)


class Account(Protocol):
    """Is told what became of the results of batches."""

    def forgotten(self, batch: str) -> None:
        """They are off the root. May be said again."""
        ...

    def doubtful(self) -> None:
        """Of some that cannot be told: they may be off the root, and this is not said again."""
        ...


class Delivery:
    """Reads the stream with this encoded name; `judge` says which batches are its taker's."""

    def __init__(
        self,
        store: Store,
        name: str,
        judge: Callable[[str], Want],
        account: Account | None = None,
    ) -> None:
        self._store = store
        self._name = name
        self._judge = judge
        self._account = account
        self._parts: dict[str, set[tuple[Outcome, int]]] = {}
        self._missing: dict[str, float] = {}

    def poll(self, *, early: bool = True) -> Iterator[Delivered]:
        """Look once; hand over what is new. The taker calls `forget` once it is kept.

        Raises OSError when the storage does not answer; nothing is lost by calling again.
        """
        listing = self._store.run(stream.look(self._name))
        worthless = _by_batch(listing)
        for outcome in listing.committed:
            want = self._judge(outcome.batch)
            if want is Want.TAKE:
                delivered = self._take(outcome)
                if delivered is None:
                    continue
            elif want is Want.DROP:
                delivered = Delivered(outcome.batch)
            else:
                continue
            delivered.outcome = outcome
            delivered.leftovers = stream.leftovers(worthless[outcome.batch], outcome)
            if want is Want.DROP:
                self.forget(delivered)
            else:
                yield delivered
        if early and listing.parts:
            yield from self._early(listing)

    def forget(self, delivered: Delivered) -> None:
        """Remove from the root what is kept by now. A failure is made good by a later poll."""
        self._parts.pop(delivered.batch, None)
        self._missing.pop(delivered.batch, None)
        if delivered.outcome is None:
            return
        try:
            self._store.run(stream.forget(delivered.outcome, delivered.leftovers))
        except OSError as error:
            log.info("cannot remove what was read of %s yet: %s", delivered.batch, error)
            self._doubt()
        else:
            self._tell([delivered.outcome])

    def clear(self) -> None:
        """Remove all that is left of batches that are to be dropped: commits that were kept by
        somebody who died before he forgot them, and what other attempts wrote."""
        try:
            listing = self._store.run(stream.look(self._name))
            paths = [
                path for o in listing.committed for path in (o.done, o.result) if self._drop(o)
            ]
            paths += [o.result for o in listing.results if self._drop(o)]
            paths += [o.part(number) for o, number in listing.parts if self._drop(o)]
            for path in dict.fromkeys(paths):
                self._store.remove(path)
            self._tell(o for o in listing.committed if self._drop(o))
        except OSError as error:
            log.info("cannot clear stream %s: %s", self._name, error)
            self._doubt()

    def sweep(self) -> None:
        """Remove results that can never count: of somebody who died while he forgot them."""
        try:
            for path in self._store.run(sweeping.sweep(self._name)):
                log.info("%s was left behind, and is removed", path)
        except OSError as error:
            log.info("cannot look for what was left behind in stream %s: %s", self._name, error)

    def _tell(self, forgotten: Iterable[Outcome]) -> None:
        if self._account is not None:
            for outcome in forgotten:
                self._account.forgotten(outcome.batch)

    def _doubt(self) -> None:
        if self._account is not None:
            self._account.doubtful()

    def _drop(self, outcome: Outcome) -> bool:
        return self._judge(outcome.batch) is Want.DROP

    def _take(self, outcome: Outcome) -> Delivered | None:
        try:
            collected = self._store.run(stream.collect(outcome))
        except FileNotFoundError:
            return self._not_there(outcome)
        except FormatError as error:
            return self._refuse(outcome.batch, outcome.result, str(error))
        if collected.results is None:
            return self._refuse(outcome.batch, outcome.result, str(collected.damage))
        return self._decode(outcome.batch, outcome.result, collected.results)

    def _decode(self, batch: str, path: str, found: Segment) -> Delivered:
        why = found.meta.get("damaged")
        if why is not None:
            return Delivered(batch, meta=found.meta, lost=f"batch {batch} was damaged: {why}")
        try:
            return Delivered(batch, found.values(), found.meta)
        except FormatError as error:
            return self._refuse(batch, path, f"{path} is damaged: {error}")

    def _not_there(self, outcome: Outcome) -> Delivered | None:
        """A `.done` without its `.result`: an old look, or a result that the storage lost."""
        now = time.monotonic()
        if now - self._missing.setdefault(outcome.batch, now) < MISSING_AFTER:
            return None
        path = self._store.path(outcome.result)
        return Delivered(outcome.batch, lost=f"{path} is missing though it was committed")

    def _refuse(self, batch: str, path: str, why: str) -> Delivered:
        """Set a file aside that is not what it claims to be; its tasks fail by name."""
        log.error("%s; its tasks fail, the file is kept in %s/", why, layout.QUARANTINE)
        target = f"{layout.QUARANTINE}/{path.rpartition('/')[2]}"
        reason = json.dumps({"batch": batch, "from": path, "why": why}).encode() + b"\n"
        try:
            self._store.publish(target, self._store.read(path))
            self._store.publish(f"{target}.reason.json", reason)
        except OSError as error:
            log.error("cannot set %s aside: %s", path, error)
        return Delivered(batch, lost=why)

    def _early(self, listing: Listing) -> Iterator[Delivered]:
        committed = {o.batch for o in listing.committed}
        for outcome, number in listing.parts:
            if outcome.batch in committed or self._judge(outcome.batch) is not Want.TAKE:
                continue
            seen = self._parts.setdefault(outcome.batch, set())
            if (outcome, number) in seen:
                continue
            rows = self._read_part(outcome.part(number))
            if rows is not None:
                seen.add((outcome, number))
                yield Delivered(outcome.batch, rows, final=False)

    def _read_part(self, path: str) -> list[Any] | None:
        """The rows of a part; a part that cannot be read is no loss, its results come again."""
        try:
            rows = segment.decode(self._store.read(path), segment.PART, path).values()
        except (OSError, FormatError) as error:
            log.debug("%s is not read: %s", path, error)
            return None
        # A part also tells which tasks were begun; those rows are for workers.
        return [row for row in rows if isinstance(row, list) and row and row[0] != "started"]


def _by_batch(listing: Listing) -> dict[str, Listing]:
    """What a listing holds beside commits, a batch each: one pass, however many there are."""
    found: dict[str, Listing] = defaultdict(lambda: Listing([], [], []))
    for outcome in listing.results:
        found[outcome.batch].results.append(outcome)
    for outcome, number in listing.parts:
        found[outcome.batch].parts.append((outcome, number))
    return found
