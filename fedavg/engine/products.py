"""Merging pairs of LoRA factors as wholes: they are small, and cannot be merged in pieces."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedavg.agreement import Unmergeable
from fedavg.engine.crew import work_off
from fedavg.engine.inputs import Inputs
from fedavg.engine.lora import mean_of_products
from fedavg.engine.pieces import Piece
from fedavg.engine.piecework import NotFinite, Put, fits, is_finite
from fedavg.engine.reading import Reader, bytes_of
from fedavg.formats.base import Checkpoint, Entry
from fedavg.formats.keys import LORA, lora_pairs
from fedavg.policy import FLOAT_DTYPES, Policy
from fsworker.errors import UsageError


@dataclass(frozen=True)
class Pairs:
    """The pairs (key of A, key of B) that are merged by their product, if that was asked for."""

    found: tuple[tuple[str, str], ...] = ()

    @cached_property
    def factors(self) -> frozenset[str]:
        """All keys of them."""
        return frozenset(key for pair in self.found for key in pair)

    def merge(self, inputs: Inputs, put: Put, threads: int) -> None:
        """Merge all pairs and write them. NotFinite."""
        work_off(self.found, lambda: _merger(inputs, put), threads)


def pairs(entries: Mapping[str, Entry], inputs: Inputs, policy: Policy) -> Pairs:
    """The pairs of the checkpoints, if the policy wants their products. As `pairs_alone`.

    UsageError where participants have bases of their own, since what changed in a product is not a
    product of what changed.
    """
    found = pairs_alone(entries, policy)
    if policy.lora == "product" and inputs.bases:
        raise UsageError("the product of LoRA factors cannot be moved from one base to another")
    return found


def pairs_alone(entries: Mapping[str, Entry], policy: Policy) -> Pairs:
    """The pairs of one checkpoint by itself.

    Unmergeable for a factor without a partner, for two that have no product, and for a factor that
    is one tensor with another, or a part of it: the new factors of each pair are its own, so that
    of two that share one the second would be left with half of the first's.
    """
    if policy.lora != "product":
        return Pairs()
    found = Pairs(tuple(lora_pairs(entries).values()))
    for key, entry in entries.items():
        if entry.owner != key and not found.factors.isdisjoint((key, entry.owner)):
            factor, other = (key, entry.owner) if key in found.factors else (entry.owner, key)
            raise Unmergeable(
                f"{factor} is a LoRA factor that shares its numbers with {other}, so it cannot be "
                "written anew for its own product: use --lora factors",
                key=factor,
            )
    for key in entries:
        if any(mark in f".{key}." for mark in LORA) and key not in found.factors:
            raise Unmergeable(f"{key} is a LoRA factor without its partner", key=key)
    for a, b in found.found:
        if why := _misfit(entries[a], entries[b]):
            raise Unmergeable(f"{a} and {b} are no pair of LoRA factors: {why}", key=a)
    return found


def _misfit(a: Entry, b: Entry) -> str | None:
    """Why B·A cannot be taken, of A (rank, …) and B (out, rank, …), each flattened to a matrix."""
    for entry in (a, b):
        if entry.dtype not in FLOAT_DTYPES:
            return f"{entry.key} is {entry.dtype}"
        if len(entry.shape) < 2 or not entry.nbytes:
            return f"{entry.key} has the shape {entry.shape}, which is no matrix"
    ranks = a.shape[0], math.prod(b.shape[1:])
    return None if ranks[0] == ranks[1] else f"their ranks are {ranks[0]} and {ranks[1]}"


def _merger(inputs: Inputs, put: Put) -> Callable[[tuple[str, str]], None]:
    def merge(pair: tuple[str, str]) -> None:
        a, b = (_whole(inputs.models, key) for key in pair)
        try:
            merged = mean_of_products(list(zip(a, b, strict=True)), inputs.weights)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # products are not finite
            raise NotFinite(_piece(pair[1], b[0])) from None
        for key, old, value in zip(pair, (a[0], b[0]), merged, strict=True):
            out = torch.empty_like(old)
            if not fits(value, out.dtype):
                raise NotFinite(_piece(key, out))
            out.copy_(value)
            put(key, 0, bytes_of(out))

    return merge


def _whole(models: tuple[Checkpoint, ...], key: str) -> list[Tensor]:
    """The whole tensor from each model, in buffers of its own."""
    entry = models[0].entries[key]
    rows = Reader().rows(key, models, key, 0, entry.nbytes // entry.itemsize)
    if not is_finite(rows):
        raise NotFinite(_piece(key, rows[0]))
    return [row.view(entry.shape) for row in rows]


def _piece(key: str, values: Tensor) -> Piece:
    return Piece(key, 0, values.numel(), "mean")
