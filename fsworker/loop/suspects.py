"""Finding the task that kills workers, in a batch that a worker is proven to have died with.

Such a batch is executed alone, one task at a time, and before each task the owner writes down
that it starts. So after the next death the parts of earlier attempts tell which task it was: the
one that was started and did not finish. Results in those parts are kept. A task that was running
when a worker died as often as `max_deaths` gets the result "worker died", its neighbours finish.

A part record of a suspect is a result, or `["started", index]`, or `["withdrawn", index]`: the
owner ended that execution itself, so nobody died of it.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fsworker import outcomes
from fsworker.errors import FormatError
from fsworker.executors import Executor
from fsworker.loop.holding import Holding
from fsworker.protocol import packing, segment, stream
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Outcome
from fsworker.slots.backlog import Work
from fsworker.slots.memory import Entry

log = logging.getLogger("fsworker.loop.suspects")

_OK = outcomes.CODES[outcomes.OK]
STARTED, WITHDRAWN = "started", "withdrawn"


@dataclass(slots=True)
class Evidence:
    """What earlier attempts at a batch left: results, and how often a task ran at a death."""

    results: dict[int, bytes] = field(default_factory=dict)
    fatal: Counter[int] = field(default_factory=Counter)


def weigh(attempts: Iterable[list[Any]]) -> Evidence:
    """Evidence from the decoded part records of each attempt."""
    found = Evidence()
    for records in attempts:
        begun: set[int] = set()
        for record in outcomes.singles(records):
            match record:
                case ["started", int(index)]:
                    begun.add(index)
                case ["withdrawn", int(index)]:
                    begun.discard(index)
                case [int(index), _, str(), _, _]:
                    found.results.setdefault(index, packing.pack(record))
                    begun.discard(index)
        found.fatal.update(begun)
    return found


def investigate(store: Store, holding: Holding) -> Evidence:
    """Read what earlier attempts at this batch left in its stream. Raises OSError."""
    listing = store.run(stream.look(holding.token.stream))
    attempts: dict[Outcome, list[Any]] = defaultdict(list)
    for outcome, i in sorted(listing.parts, key=lambda part: (part[0].attempt, part[1])):
        if outcome.batch != holding.token.batch or outcome == holding.outcome:
            continue
        path = outcome.part(i)
        try:
            attempts[outcome] += segment.decode(store.read(path), segment.PART, path).values()
        except (FormatError, FileNotFoundError) as error:
            log.warning("a part of an earlier attempt is left out: %s", error)
    return weigh(attempts.values())


class Suspect:
    """Drives the execution of one suspect, task by task."""

    def __init__(self, holding: Holding, work: Work, evidence: Evidence, max_deaths: int) -> None:
        self._holding, self._work, self._evidence = holding, work, evidence
        self._max_deaths = max_deaths
        self._running: int | None = None
        # Whatever became of these tasks, their earlier owner has counted it.
        work.keep(Entry(i, 1, _OK, 0.0, data) for i, data in evidence.results.items() if i >= 0)
        # Deaths that no task was on record for: the first, before anybody suspected anything.
        self._unexplained = holding.token.deaths - sum(evidence.fatal.values())

    def advance(self, executor: Executor) -> None:
        """Let the next task run once the one before it has its result."""
        if self._running is not None and self._running not in self._work.results:
            return
        finished, self._running = self._running, None
        for index in range(len(self._work.records)):
            if index in self._work.results:
                continue
            if self._doomed(index):
                self._condemn(index)
                continue
            if self._record(finished, index):
                self._running = index
                executor.release(self._work, index)
            else:
                self._running = finished  # tried again later, with that result
            return

    def withdraw(self) -> None:
        """The task that runs is ended by us: leave it no blame."""
        if self._running is not None and self._running not in self._work.results:
            record = packing.pack([WITHDRAWN, self._running])
            self._holding.put_part([record], durable=True)

    def _doomed(self, index: int) -> bool:
        if self._unexplained > self._max_deaths:
            return True  # it kills before any of its tasks begins: nobody can tell them apart
        return self._evidence.fatal[index] >= self._max_deaths

    def _record(self, finished: int | None, index: int) -> bool:
        records = [packing.pack([STARTED, index])]
        if finished is not None:
            records.insert(0, self._work.results[finished])
        return self._holding.put_part(records, durable=True)

    def _condemn(self, index: int) -> None:
        deaths = self._evidence.fatal[index] or self._holding.token.deaths
        why = f"{deaths} workers died while they executed this task"
        log.error("batch %s, task %d: %s; given up", self._holding.token.batch, index, why)
        self._holding.bury(index, why)
        value = outcomes.cause("WorkerDied", why)
        self._work.answer(index, outcomes.WORKER_DIED, value)
