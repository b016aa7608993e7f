"""Exhaustive search over every interleaving of the model's processes and every fault in budget.

Breadth first, so that a violation comes with a shortest trace. Disks, local states and sets of
late requests are numbered when first seen, so that a global state is a tuple of small integers,
and what one process can do on one disk is worked out once. `invariants` says what is checked.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

from fsworker.protocol.layout import Owner
from fsworker.protocol.ops import Op
from tests.model import telling
from tests.model.calls import lens_of
from tests.model.canonical import fitted, possible, without_garbage
from tests.model.disk import CLIENT, RECLAIMER, Disk, effects, execute
from tests.model.fairness import next_verb
from tests.model.invariants import Violation, check, check_end
from tests.model.programs import Client, Local, Start, Worker, crashed
from tests.model.scenario import KINDS, NOTHING, Bounds, Scenario

T = TypeVar("T")
Global = tuple[int, ...]
"""(disk, worker…, client, reclaimer, late requests, budget), all by number."""
COST = {"": 0, **{kind: 1 << 4 * i for i, kind in enumerate(KINDS)}}
"""Prices as one number, four bits for each kind."""
RESTLESS = 500
"""Steps after which a fair continuation is held to go on for ever."""


class Numbering(Generic[T]):
    """Values by number, and back."""

    def __init__(self) -> None:
        self.values: list[T] = []
        self._numbers: dict[T, int] = {}

    def __call__(self, value: T) -> int:
        number = self._numbers.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number


class Move(NamedTuple):
    """One step of one process: what it costs, the new disk and local state, and its label."""

    cost: int
    disk: int
    local: int
    late: Op | None
    label: int


class Explorer:
    """One search. `run` gives the number of states, or raises Violation with a trace."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.programs = scenario.programs
        self.programs.capacity, self.programs.died = scenario.capacity, scenario.died
        self.disks: Numbering[Disk] = Numbering()
        self.locals: Numbering[Local] = Numbering()
        self.lates: Numbering[frozenset[Op]] = Numbering()
        self.labels: Numbering[str] = Numbering()
        self.budgets: Numbering[Bounds] = Numbering()
        self.who = (*scenario.hosts, CLIENT, RECLAIMER)
        self._moves: dict[tuple[int, int, int], list[Move]] = {}
        self._afford: dict[tuple[int, int], int] = {}
        self._executed: dict[tuple[int, Op], int] = {}
        self._checked: set[tuple[int, int]] = set()
        self._settles: set[tuple[int, ...]] = set()
        self._fits: dict[tuple[int, int, int, bool, bool], tuple[int, int]] = {}
        self._cleaned: dict[int, int] = {}
        self._none_late = self.lates(frozenset())
        self.states: list[Global] = []
        self.parents = array("q")
        self.steps = array("q")

    def start(self) -> Global:
        """The first state."""
        numbers = [self.locals(x) for x in self.scenario.first_locals()]
        budget = self.budgets(self.scenario.bounds)
        return (self.disks(self.scenario.first_disk()), *numbers, self._none_late, budget)

    def run(self, limit: int | None = None) -> int:
        """Search everything (or raise once `limit` states were seen: a bound was set too wide)."""
        first = self.start()
        numbers = {first: 0}
        self.states, self.parents, self.steps = [first], array("q", [-1]), array("q", [-1])
        todo = deque([0])
        while todo:
            index = todo.popleft()
            state = self.states[index]
            self._check(index)
            for label, after in self.successors(state):
                if after not in numbers:
                    numbers[after] = len(self.states)
                    todo.append(len(self.states))
                    self.states.append(after)
                    self.parents.append(index)
                    self.steps.append(label)
            if limit and len(self.states) > limit:
                raise AssertionError(f"{self.scenario.name}: more than {limit} states")
        return len(self.states)

    def successors(self, state: Global) -> Iterator[tuple[int, Global]]:
        """Every (label, state) that one step leads to."""
        disk, late, budget = state[0], state[-2], state[-1]
        for slot in range(len(self.who)):
            for move in self.moves(slot, state[slot + 1], disk):
                left = self.afford(budget, move.cost)
                if left < 0:
                    continue
                after = list(state)
                after[0], after[slot + 1], after[-1] = move.disk, move.local, left
                if move.late is not None:
                    after[-2] = self.lates(self.lates.values[late] | {move.late})
                yield move.label, self.fit(after)
        for op in self.lates.values[late]:
            after = list(state)
            after[0] = self.execute_late(disk, op)
            after[-2] = self.lates(self.lates.values[late] - {op})
            yield self.labels(f"the server, late: {telling.show(op)}"), self.fit(after)

    def fit(self, state: list[int], calm: bool = False) -> Global:
        """The state without what can no longer make a difference, so that like states are one."""
        disk = state[0]
        if self.scenario.prune:
            disk = self._clean(disk)
            if not calm and state[-2] != self._none_late:
                state[-2] = self._still_possible(disk, state[-2])
        bounds = NOTHING if calm else self.budgets.values[state[-1]]
        faulty = bounds.faults > 0 or (not calm and state[-2] != self._none_late)
        for slot, who in enumerate(self.who):
            key = (slot, state[slot + 1], disk, faulty, bounds.reclaims > 0)
            after = self._fits.get(key)
            if after is None:
                me = self.locals.values[key[1]]
                pair = fitted(self.disks.values[disk], who, me, *key[3:])
                after = self._fits[key] = (self.disks(pair[0]), self.locals(pair[1]))
            disk, state[slot + 1] = after
        state[0] = disk
        return tuple(state)

    def _still_possible(self, disk: int, late: int) -> int:
        """The late requests whose source is there; a name that is gone is never used again."""
        files = {p for p, _ in self.disks.values[disk].files}
        return self.lates(frozenset(op for op in self.lates.values[late] if possible(op, files)))

    def _clean(self, disk: int) -> int:
        after = self._cleaned.get(disk)
        if after is None:
            after = self._cleaned[disk] = self.disks(without_garbage(self.disks.values[disk]))
        return after

    def moves(self, slot: int, local: int, disk: int) -> list[Move]:
        """Every step that the process in this slot can take."""
        key = (slot, local, disk)
        found = self._moves.get(key)
        if found is None:
            found = self._moves[key] = list(self._work_out(slot, local, disk))
        return found

    def _work_out(self, slot: int, local: int, disk: int) -> Iterator[Move]:
        me, seen, who = self.locals.values[local], self.disks.values[disk], self.who[slot]
        again = crashed(me) if who != CLIENT or self.scenario.client_crashes else None
        if again is not None:
            label = self.labels(f"{who}: crashes")
            yield Move(COST["crashes"], disk, self.locals(again), None, label)
        for begun, price in [Start(me)] if me.call else self.programs.starts(me, seen):
            call = begun.call
            assert call
            op = self.programs.operation(call)
            for effect in effects(seen, op, lens_of(call, who, self.scenario.hosts), call.begun):
                after = self.locals(self.programs.advance(begun, effect.answer))
                cost = COST[price] + (COST["faults"] if effect.fault else 0)
                label = self.labels(telling.step(who, call, op, effect))
                yield Move(cost, self.disks(effect.disk), after, effect.late, label)

    def afford(self, budget: int, cost: int) -> int:
        """The budget after a cost (one nibble for each kind); -1 when it does not suffice."""
        if not cost:
            return budget
        left = self._afford.get((budget, cost))
        if left is None:
            have = self.budgets.values[budget]
            rest = Bounds(*(h - (cost >> 4 * i & 15) for i, h in enumerate(have)))
            left = self.budgets(rest) if min(rest) >= 0 else -1
            self._afford[budget, cost] = left
        return left

    def execute_late(self, disk: int, op: Op) -> int:
        """The disk after the server executed a request whose caller went on."""
        key = (disk, op)
        if key not in self._executed:
            after = execute(self.disks.values[disk], op, self.scenario.hosts)[1]
            self._executed[key] = self.disks(after)
        return self._executed[key]

    def _check(self, index: int) -> None:
        state = self.states[index]
        try:
            self._check_now(state)
            self._settle(state[:-2])
        except Violation as error:
            raise Violation("\n".join([str(error), self.trace(index), *_then(error)])) from None

    def _check_now(self, state: Global) -> None:
        key = (state[0], state[len(self.scenario.hosts) + 1])
        if key not in self._checked:
            check(*self._disk_and_client(state))
            self._checked.add(key)

    def _disk_and_client(self, state: Global) -> tuple[Disk, Client]:
        client = self.locals.values[state[len(self.scenario.hosts) + 1]]
        assert isinstance(client, Client)
        return self.disks.values[state[0]], client

    def _settle(self, now: Global) -> None:
        """Follow one fair and faultless continuation to its end, or to one that is known good."""
        path: list[Global] = []
        told: list[str] = []
        try:
            while now not in self._settles:
                self._check_now(now)
                path.append(now)
                after = self._fair_step(now, told)
                if after is None:
                    check_end(*self._disk_and_client(now), self._live(now))
                    break
                if len(path) > RESTLESS:
                    raise Violation("stuck: without any fault the processes never come to rest")
                now = after
        except Violation as error:
            error.then = told
            raise
        self._settles.update(path)

    def _live(self, now: Global) -> set[Owner]:
        return {
            x.owner for x in map(self.locals.values.__getitem__, now[1:-1]) if isinstance(x, Worker)
        }

    def _fair_step(self, now: Global, told: list[str]) -> Global | None:
        """One step of the fair continuation; None at its end."""
        disk = self.disks.values[now[0]]
        found = next_verb(self.programs, disk, [self.locals.values[n] for n in now[1:]])
        if found is None:
            return None
        slot, begun = found
        call, who = begun.call, self.who[slot]
        assert call
        op = self.programs.operation(call)
        effect = effects(disk, op, lens_of(call, who, self.scenario.hosts), call.begun)[0]
        told.append(telling.step(who, call, op, effect))
        after = [*now]
        after[0] = self.disks(effect.disk)
        after[slot + 1] = self.locals(self.programs.advance(begun, effect.answer))
        return self.fit(after, calm=True)

    def trace(self, index: int) -> str:
        """How a state is reached, one step a line."""
        lines: list[str] = []
        last = self.disks.values[self.states[index][0]]
        while index > 0:
            lines.append(self.labels.values[self.steps[index]])
            index = self.parents[index]
        numbered = [f"  {n:3} {text}" for n, text in enumerate(reversed(lines), 1)]
        there = [f"      {p}" for p in sorted(p for p, _ in last.files)]
        return "\n".join(
            [f"{self.scenario.name}, {len(numbered)} steps:", *numbered, "  then there is", *there]
        )


def _then(error: Violation) -> list[str]:
    shown = [f"      {text}" for text in error.then[:40]]
    return ["  and then, by steps that need no fault,", *shown] if shown else []
