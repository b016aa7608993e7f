"""What a merge rule is: a function on chunks, its parameters, and what it keeps between rounds.

`Kind` is a rule as the registry has it; `Rule` is one with its parameters set, which is what a
round is closed with and what a plan writes down.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from fsworker.errors import UsageError
from fsworker.protocol.records.rules import Param, count_problem

Params = Mapping[str, float]
State = dict[str, Tensor]


@dataclass(frozen=True)
class Chunk:
    """The same n coordinates of everything that a rule may look at, in float64.

    `models` (K, n), rows in the order of the participants' ids: a rule may overwrite these, and
    nothing else. `weights` K positive numbers; `staleness` K counts of rounds since the
    participant's base; `base` (n,), the global model x, where the rule needs it; `state` (n,) each,
    by name. `room` (n,) may hold the result; None where the rule is to make room itself.
    """

    models: Tensor
    weights: tuple[float, ...]
    base: Tensor | None = None
    state: Mapping[str, Tensor] = field(default_factory=dict)
    staleness: tuple[int, ...] = ()
    room: Tensor | None = None


Apply = Callable[[Chunk, Params], tuple[Tensor, State]]
"""A chunk to the merged coordinates (n,) and the new state, float64."""

Choose = Callable[[Sequence[Sequence[float]], Mapping[str, float | None]], list[int]]
"""Squared distances between K models to the indices of those that are averaged, in order."""


@dataclass(frozen=True)
class Kind:
    """A rule of the registry.

    `state` maps the name of each kept value to what it starts from, given the parameters.
    `needs_base`: it wants the global model x. `weighted`: sample counts enter. `robust`: extreme
    values do not reach the result, so the engine looks for NaN and infinity in each input instead.
    `mean`: `apply` gives the weighted mean and nothing else, so the engine may take it by itself.
    `largest`: a participant's value beyond it cannot be squared, which the rule does, and kept in
    float32; `largest_double` the same for models in float64: it would stop the round for all.
    `squares`: the kept values that are made of squares, so that none is ever negative.
    `choose`: a first pass over distances names the models that the second one merges.
    """

    name: str
    apply: Apply
    params: Mapping[str, Param] = field(default_factory=dict)
    state: Mapping[str, Callable[[Params], float]] = field(default_factory=dict)
    needs_base: bool = False
    weighted: bool = True
    robust: bool = False
    mean: bool = False
    largest: float = math.inf
    largest_double: float = math.inf
    squares: tuple[str, ...] = ()
    choose: Choose | None = None


@dataclass(frozen=True)
class Rule:
    """A rule with its parameters."""

    kind: Kind
    params: Mapping[str, float | None]

    @property
    def name(self) -> str:
        """Its name in the registry."""
        return self.kind.name

    @property
    def numbers(self) -> Params:
        """The parameters that are set, as rules take them."""
        return {name: value for name, value in self.params.items() if value is not None}

    def initial_state(self) -> dict[str, float]:
        """What each kept value is before the first round, the same for all coordinates."""
        return {name: start(self.numbers) for name, start in self.kind.state.items()}

    def check(self, count: int) -> None:
        """UsageError when it cannot be applied to `count` participants."""
        if (problem := count_problem(self.name, self.params, count)) is not None:
            raise UsageError(problem)

    def record(self) -> dict[str, object]:
        """For a plan: the name and every parameter; `strategies.rule(**record)` is it again."""
        return {"name": self.name, "params": dict(self.params)}


def params_from(texts: Iterable[str]) -> dict[str, float]:
    """Parameters as a user writes them, `NAME=NUMBER` each. UsageError for another form."""
    found = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            raise UsageError(f"--set {text}: give it as NAME=NUMBER") from None
    return found


def bind(kind: Kind, params: Mapping[str, float | None]) -> Rule:
    """The rule with these parameters, and defaults for the others. UsageError names a wrong one."""
    if unknown := sorted(set(params) - set(kind.params)):
        known = ", ".join(kind.params) or "none"
        raise UsageError(
            f"rule {kind.name} has no parameter {', '.join(unknown)} (it has: {known})"
        )
    return Rule(
        kind, {n: _value(kind, n, params.get(n, p.default)) for n, p in kind.params.items()}
    )


def _value(kind: Kind, name: str, value: float | None) -> float | None:
    if (wrong := kind.params[name].problem(value)) is not None:
        raise UsageError(f"rule {kind.name}: {name} = {value!r} {wrong}")
    return value
