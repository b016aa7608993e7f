"""Krum and Multi-Krum: which models are near enough to the others to be merged. Pure.

Blanchard et al. 2017, "Machine Learning with Adversaries" (arXiv 1703.02757). Only distances enter,
so the engine can stream them; the chosen models are merged in a second pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fsworker.protocol.records.rules import tolerated

Values = Mapping[str, float | None]


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
    found = scores(distances, tolerated(count, params))
    return sorted(sorted(range(count), key=lambda i: (found[i], i))[:m])
