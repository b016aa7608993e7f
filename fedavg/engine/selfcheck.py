"""Whether compiled loops give torch's bytes on this machine: tried once, when they are loaded.

That they do rests on things that no version promises: that torch's library for linear algebra adds
the models one after the other, and rounds and keeps subnormal numbers as the compiled code does. On
another processor, or with another such library, it may not; then merges do without the loops.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedavg.arithmetic import shares, weighted_mean, widen
from fedavg.engine.crew import one_torch_thread

SHAPES = ((1, 525), (2, 525), (3, 525), (5, 525), (8, 4101), (11, 525), (14, 525))
"""Of models (K, n): libraries go through a matrix by some columns and rows at a time, and end
otherwise; real merges give them blocks of 4096 numbers and more."""

WIDTH = 3000
"""Elements of a model that are read at once."""

SEED = 5

BITS_OF = {4: torch.int32, 2: torch.int16}


def differing(loops: Mapping[torch.dtype, Any], array: Callable[[Tensor], Any]) -> str | None:
    """What a loop computes otherwise than torch, as a sentence's part; None when all is the same.

    `loops` are as in `compiled.loops`; `array` gives a tensor as they take it. OSError.
    """
    with one_torch_thread():
        pairs = ((models, loop) for dtype, loop in loops.items() for models in _inputs(dtype))
        return next((words for pair in pairs if (words := _difference(*pair, array))), None)


def _difference(models: Tensor, loop: Any, array: Callable[[Tensor], Any]) -> str | None:
    half = max(1, len(models) // 2)  # those that cancel have one weight
    weights = tuple(float(3 + 2 * (k % half)) for k in range(len(models)))
    found, wanted = _by_loop(loop, models, weights, array), _by_torch(models, weights)
    wrong = (~_same(found, wanted)).nonzero()
    if not len(wrong):
        return None
    means = f"{float(found[wrong[0]]):.9g} instead of {float(wanted[wrong[0]]):.9g}"
    return f"the mean of {len(models)} numbers of type {models.dtype} is {means}"


def _same(found: Tensor, wanted: Tensor) -> Tensor:
    """Where two results are the same bits, or both not finite: how is all one, they are refused."""
    bits = BITS_OF[wanted.dtype.itemsize]
    wild = ~torch.isfinite(found) & ~torch.isfinite(wanted)
    return wild | (found.view(bits) == wanted.view(bits))


def _by_torch(models: Tensor, weights: tuple[float, ...]) -> Tensor:
    return weighted_mean(widen(models), weights).to(models.dtype)


def _by_loop(
    loop: Any, models: Tensor, weights: tuple[float, ...], array: Callable[[Tensor], Any]
) -> Tensor:
    (count, length), dtype = models.shape, models.dtype
    vector, factor = shares(weights)
    out, room = torch.zeros(length, dtype=dtype), torch.empty(count, WIDTH, dtype=dtype)
    fd = os.memfd_create("models", os.MFD_CLOEXEC)
    try:
        os.pwrite(fd, array(models).tobytes(), 0)
        offsets = np.arange(count, dtype=np.int64) * (length * dtype.itemsize)
        fds, lengths = np.full(count, fd), np.full(count, length * dtype.itemsize)
        loop(fds, offsets, lengths, array(room), vector.numpy(), factor, array(out))
    finally:
        os.close(fd)
    return out


def _inputs(dtype: torch.dtype) -> Iterator[Tensor]:
    """Models (K, n) of numbers that tell one way of computing from another.

    Of all sizes, subnormal ones and infinities among them; with some that cancel, so that what
    remains shows in which order sums were made; and small whole numbers, whose means are often
    halfway between two numbers of a narrow type.
    """
    random = torch.Generator().manual_seed(SEED)
    for count, length in SHAPES:
        plain = torch.randn(count, length, generator=random)
        large = torch.randint(-140, 120, (count, length), generator=random).float().exp2()
        cancelling = plain.clone()
        if count > 2:
            cancelling[0] *= 2.0**40
            cancelling[count // 2] = -cancelling[0]
        steps = torch.randint(1 << 8, 1 << 10, (count, length), generator=random).float()
        mixed = torch.stack((plain, plain * large, cancelling, steps, plain * 2.0**-133))
        picked = torch.randint(len(mixed), (length,), generator=random)
        models = mixed.gather(0, picked.expand(1, count, length))[0]
        models[:, :4] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf])
        yield models.to(dtype)
