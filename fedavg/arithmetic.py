"""The arithmetic that all rules are made of: on chunks, in float64, rounded once.

A chunk of K models is a matrix of K rows, widened to float64 before a rule sees it. Sums run in the
order of the rows, so that a result depends on the rows' values and their order alone. Since weights
are sample counts (whole numbers, scaled by a power of two), products and sums of float32, bfloat16
and float16 values are mostly exact, and the division is the only rounding before the cast.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""The types that rules are applied to."""

_DROPPED = (1 << 29) - 1
"""The bits of a float64's fraction that a float32 has no room for."""


def widen(values: Tensor, out: Tensor | None = None) -> Tensor:
    """`values` (any shape, any type of FLOATS) as float64, in `out` or else in a new tensor."""
    if out is None:
        out = torch.empty(values.shape, dtype=torch.float64)
    if values.dtype == torch.float16:
        values = values.to(torch.float32)  # exact, and twice as fast as the direct way
    return out.copy_(values)


def narrow(values: Tensor, out: Tensor, spare: Tensor | None = None) -> None:
    """Round float64 `values` into `out` of the same shape, each to its nearest, ties to even.

    torch casts float64 to a 16-bit type by way of float32, and rounding twice can end one step
    off. So what float32 has no room for is first folded into its last bit ("round to odd"), which
    keeps a value that is above or below the middle of two neighbours there. Overwrites `values`,
    and `spare`, another float64 tensor of that shape, if there is one.
    """
    if out.dtype in (torch.bfloat16, torch.float16):
        bits = values.view(torch.int64)
        sticky = torch.empty_like(bits) if spare is None else spare.view(torch.int64)
        # The sum carries into the last kept bit exactly when a dropped bit is set.
        torch.bitwise_and(bits, _DROPPED, out=sticky).add_(_DROPPED)
        bits.bitwise_or_(sticky).bitwise_and_(~_DROPPED)
    out.copy_(values)


def weighted_mean(models: Tensor, weights: tuple[float, ...]) -> Tensor:
    """Σ weights[k] models[k] / Σ weights, float64 (K, n) to (n,). Overwrites the first model.

    `weights` are positive and finite; `weighting.weights_of` makes them of sample counts.
    """
    total = models[0]
    if weights[0] != 1.0:
        total.mul_(weights[0])
    for row, weight in zip(models[1:], weights[1:], strict=True):
        total.add_(row, alpha=weight)
    return total.div_(sum(weights))


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
