"""From what each worker says of its code to who differs from the others, and in what. Pure.

What most workers have is the reference, since nobody wants to be told of all hosts but one. Of
several that equally many have it is what the worker has that started last: half-way through a
rolling restart the new code is the one to be reached. The head is no reference: it runs no tasks,
and has packages of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Age = Literal["older", "newer", ""]
SLACK = 4.0
"""Seconds that births must be apart to tell who was first: two beats."""


@dataclass(frozen=True)
class Member:
    """What one host's worker says. `lived`: seconds since it started, None where it is not known.

    `packages` is a digest of what is installed; `kind` is that of its installation: packages of
    hosts that run from a bundle are not held against those of others. `functions` are digests of
    their sources by name, None where there is no source.
    """

    host: str
    release: str = ""
    python: str = ""
    packages: str = ""
    functions: Mapping[str, str | None] = field(default_factory=dict)
    kind: str = ""
    lived: float | None = None


@dataclass(frozen=True)
class Odd:
    """One host that differs: what it has, and whether it started before or after all others."""

    host: str
    value: str | None
    age: Age = ""


@dataclass(frozen=True)
class Difference:
    """Something in which workers differ. `what`: release, python, packages or function.

    `usual` is what the `others`, by name, have.
    """

    what: str
    name: str
    usual: str | None
    others: tuple[str, ...]
    odd: tuple[Odd, ...]

    def fields(self) -> dict[str, Any]:
        """Its JSON object."""
        return {
            "what": self.what,
            "name": self.name,
            "usual": self.usual,
            "others": len(self.others),
            "hosts": [vars(one) for one in self.odd],
        }


def compare(members: Sequence[Member]) -> list[Difference]:
    """All differences, those that matter most first."""
    found = [
        _differ("release", "", {m.host: m.release for m in members if m.release}, members),
        _differ("python", "", {m.host: m.python for m in members if m.python}, members),
    ]
    for name in sorted({name for m in members for name in m.functions}):
        values = {m.host: m.functions[name] for m in members if name in m.functions}
        found.append(_differ("function", name, values, members))
    for kind in sorted({m.kind for m in members}):
        values = {m.host: m.packages for m in members if m.packages and m.kind == kind}
        found.append(_differ("packages", kind, values, members))
    return [one for one in found if one is not None]


def _differ(
    what: str, name: str, values: Mapping[str, str | None], members: Sequence[Member]
) -> Difference | None:
    if len(set(values.values())) < 2:
        return None
    lived = {m.host: m.lived for m in members}
    usual = _usual(values, lived)
    others = tuple(host for host, value in values.items() if value == usual)
    odd = (
        Odd(host, value, _age(lived[host], [lived[h] for h in others]))
        for host, value in values.items()
        if value != usual
    )
    return Difference(what, name, usual, others, tuple(odd))


def _usual(values: Mapping[str, str | None], lived: Mapping[str, float | None]) -> str | None:
    """What most have; of several, what the youngest worker has."""
    counts = Counter(values.values())
    most = max(counts.values())
    some = [host for host, value in values.items() if counts[value] == most]
    return values[min(some, key=lambda host: (_known(lived[host]), host))]


def _known(lived: float | None) -> float:
    return float("inf") if lived is None else lived


def _age(lived: float | None, others: Sequence[float | None]) -> Age:
    known = [one for one in others if one is not None]
    if lived is None or len(known) != len(others):
        return ""
    if lived > max(known) + SLACK:
        return "older"
    return "newer" if lived < min(known) - SLACK else ""


Changes = dict[str, tuple[str | None, str | None]]
"""Packages by name: the version there, and the usual one; None where it is not installed."""


def changes(there: Mapping[str, str], usual: Mapping[str, str]) -> Changes:
    """In which packages one host differs from another."""
    names = sorted(set(there) | set(usual))
    pairs = {name: (there.get(name), usual.get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
