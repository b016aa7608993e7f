"""Merging low-rank adapters by the matrices that their factors stand for.

A pair of factors A (r, in) and B (out, r) adds B·A to a weight. The mean of B·A over participants
is not the product of the means, and has a rank of up to K·r. What is written is its best
approximation of rank r (Eckart and Young 1936), by a singular value decomposition of the small core
between the orthogonal bases of all B and all A side by side, so the full matrix is never made.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedavg.arithmetic import widen


def mean_of_products(
    pairs: Sequence[tuple[Tensor, Tensor]], weights: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """Factors (A, B) of rank r nearest to Σ weights[k] B_k A_k / Σ weights, in float64.

    `pairs` holds (A, B) of each participant: (r, …) and (out, r, …), convolutions' further
    dimensions included; the results have the same shapes. Both factors get the root of the singular
    values. Signs are fixed, so that equal inputs give equal bytes.
    """
    shape_a, shape_b = pairs[0][0].shape, pairs[0][1].shape
    rank, total = shape_a[0], sum(weights)
    left = [widen(b).flatten(1) * (w / total) for (_, b), w in zip(pairs, weights, strict=True)]
    right = [widen(a).flatten(1) for a, _ in pairs]
    basis_b, core_b = torch.linalg.qr(torch.cat(left, 1))
    basis_a, core_a = torch.linalg.qr(torch.cat(right, 0).T)
    u, s, vh = torch.linalg.svd(core_b @ core_a.T, full_matrices=False)
    u, s, vh = _padded(u, s, vh, rank)
    root = s.sqrt()
    b = (basis_b @ u) * root
    a = root[:, None] * (vh @ basis_a.T)
    signs = _signs(b)
    return (a * signs[:, None]).reshape(shape_a), (b * signs).reshape(shape_b)


def _padded(u: Tensor, s: Tensor, vh: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """The `rank` largest singular values; zeros where there are fewer."""
    lack = rank - len(s)
    if lack <= 0:
        return u[:, :rank], s[:rank], vh[:rank]
    pad = torch.nn.functional.pad
    return pad(u, (0, lack)), pad(s, (0, lack)), pad(vh, (0, 0, 0, lack))


def _signs(b: Tensor) -> Tensor:
    """Per column 1 or -1, so that its largest element becomes positive."""
    largest = b.gather(0, b.abs().argmax(0, keepdim=True))[0]
    return torch.where(largest < 0, -1.0, 1.0).to(b.dtype)
