"""The arithmetic that all rules are made of: on chunks, in float64, cast once at the end.

A chunk of K models is a matrix of K rows, widened to float64 before a rule sees it. What a result
is depends on the values of its coordinate and their order alone. Since weights are sample counts
(whole numbers, scaled by a power of two), products and sums of float32, bfloat16 and float16 values
are mostly exact; what rounds before the cast is the division, as a product, which takes a third of
its time and is off by a unit in the last of 53 bits.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""The types that rules are applied to."""


def widen(values: Tensor, out: Tensor | None = None) -> Tensor:
    """`values` (any shape, any type of FLOATS) as float64, in `out` or else in a new tensor."""
    if out is None:
        out = torch.empty(values.shape, dtype=torch.float64)
    if values.dtype == torch.float16:
        values = values.to(torch.float32)  # exact, and twice as fast as the direct way
    return out.copy_(values)


def weighted_mean(models: Tensor, weights: tuple[float, ...], out: Tensor | None = None) -> Tensor:
    """Σ weights[k] models[k] / Σ weights, float64 (K, n) to (n,), in `out` or a new tensor.

    `weights` are positive and finite; `weighting.weights_of` makes them of sample counts.
    """
    vector, factor = shares(weights)
    total = torch.mv(models.T, vector, out=out)
    return total if factor == 1.0 else total.mul_(factor)


@functools.lru_cache(maxsize=64)
def shares(weights: tuple[float, ...]) -> tuple[Tensor, float]:
    """Positive finite weights as a float64 vector, and the factor that makes their sum 1."""
    return torch.tensor(weights, dtype=torch.float64), 1 / sum(weights)


def ordered(models: Tensor) -> Tensor:
    """The K rows of float64 `models` sorted per coordinate in place: the first has the smallest.

    A network of compare-exchanges on whole rows (Batcher's odd-even merge sort), many times faster
    than sorting columns that are K apart in memory. NaN spreads; refuse it first.
    """
    rows, spare = list(models), torch.empty_like(models[0])
    for low, high in _network(len(rows)):
        torch.minimum(rows[low], rows[high], out=spare)
        torch.maximum(rows[low], rows[high], out=rows[high])
        rows[low].copy_(spare)
    return models


@functools.lru_cache(maxsize=64)
def _network(count: int) -> tuple[tuple[int, int], ...]:
    """Batcher's network for `count` rows (Knuth, TAOCP 3, 5.2.2, algorithm M): pairs in order."""
    if count < 2:
        return ()
    pairs: list[tuple[int, int]] = []
    top = 1 << ((count - 1).bit_length() - 1)
    p = top
    while p > 0:
        q, r, distance = top, 0, p
        while True:
            pairs += [(i, i + distance) for i in range(count - distance) if i & p == r]
            if q == p:
                break
            q, r, distance = q // 2, p, q - p
        p //= 2
    return tuple(pairs)


def squared_distances(models: Tensor) -> Tensor:
    """‖models[i] − models[j]‖² for all pairs, float64 (K, n) to a symmetric (K, K).

    Differences are taken first: ‖x‖² + ‖y‖² − 2xy loses a small spread between large models.
    """
    count = len(models)
    found = torch.zeros(count, count, dtype=torch.float64)
    for i in range(count - 1):
        for j in range(i + 1, count):
            apart = models[j] - models[i]
            found[i, j] = torch.dot(apart, apart)
    return found + found.T
