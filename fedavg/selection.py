"""Krum and Multi-Krum: which models are near enough to the others to be merged. Pure.

Blanchard et al. 2017, "Machine Learning with Adversaries" (arXiv 1703.02757). Only distances enter,
so the engine can stream them; the chosen models are merged in a second pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fsworker.errors import UsageError

Values = Mapping[str, float | None]


def tolerated(count: int, params: Values) -> int:
    """How many hostile ones `f` stands for: given, or the most that `count` allows."""
    given = params.get("f")
    return (count - 3) // 2 if given is None else int(given)


def check(count: int, params: Values) -> None:
    """UsageError unless n ≥ 2f + 3, and for Multi-Krum 1 ≤ m ≤ n."""
    f = max(0, tolerated(count, params))
    if count < 2 * f + 3:
        raise UsageError(
            f"krum against {f} hostile participants needs {2 * f + 3} of them, here are {count}"
        )
    m = params.get("m")
    if m is not None and m > count:
        raise UsageError(f"multi-krum is to merge the {m:g} best of only {count} participants")


def scores(distances: Sequence[Sequence[float]], f: int) -> list[float]:
    """Per model the sum of its squared distances to the n − f − 2 nearest others."""
    count = len(distances)
    found = []
    for i, row in enumerate(distances):
        others = sorted(d for j, d in enumerate(row) if j != i)
        found.append(math.fsum(others[: count - f - 2]))
    return found


def krum(distances: Sequence[Sequence[float]], params: Values) -> list[int]:
    """The index of the model with the least score; of equal ones the first."""
    return _best(distances, params, 1)


def multi_krum(distances: Sequence[Sequence[float]], params: Values) -> list[int]:
    """The indices of the m models with the least scores, in order; m is n − f − 2 by default."""
    count = len(distances)
    m = params.get("m")
    return _best(distances, params, count - tolerated(count, params) - 2 if m is None else int(m))


def _best(distances: Sequence[Sequence[float]], params: Values, m: int) -> list[int]:
    count = len(distances)
    check(count, params)
    found = scores(distances, tolerated(count, params))
    return sorted(sorted(range(count), key=lambda i: (found[i], i))[:m])
