"""The same range of one tensor from many checkpoints, as rows of one matrix.

Each thread has a Reader whose buffers are allocated once and used for every piece: what a merge
needs of memory is decided by the largest piece, and nothing is left for the allocator to hoard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedavg.formats.base import Checkpoint

T = TypeVar("T")

Copies = tuple[tuple[Tensor, Tensor], ...]
"""(to, from) in the order in which they are to be copied."""
MOST_KEPT = 16
"""Lengths of pieces for which views are kept; a model has two or three that occur often."""


class Reader:
    """Buffers by purpose. What a call returns is valid until the next call for that purpose."""

    def __init__(self) -> None:
        self._pools: dict[str, Tensor] = {}
        self._views: dict[tuple[object, ...], Tensor] = {}
        self._made: dict[tuple[object, ...], Any] = {}

    def space(self, purpose: str, rows: int, count: int, dtype: torch.dtype) -> Tensor:
        """An uninitialised (rows, count) matrix."""
        view = self._views.get((purpose, rows, count, dtype))
        if view is None:
            size = rows * count * dtype.itemsize
            pool = self._pools.get(purpose)
            if pool is None or pool.numel() < size:
                pool = self._pools[purpose] = torch.empty(size, dtype=torch.uint8)
                self._forget()
            view = pool[:size].view(dtype).view(rows, count)
            self._views[purpose, rows, count, dtype] = view
        return view

    def rows(
        self, purpose: str, sources: Sequence[Checkpoint], key: str, start: int, stop: int
    ) -> Tensor:
        """Elements [start, stop) of `key` in each of the sources, which agree on its dtype."""
        entry = sources[0].entries[key]
        matrix = self.space(purpose, len(sources), stop - start, dtype_of(entry.dtype))
        first, last = start * entry.itemsize, stop * entry.itemsize
        room, size = bytes_of(matrix), last - first
        for row, source in enumerate(sources):
            source.read_into(key, first, last, room[row * size : (row + 1) * size])
        return matrix

    def widened(self, purpose: str, rows: Tensor) -> tuple[Tensor, Copies]:
        """A float64 matrix for a matrix of floats, and the copies that fill it from that."""
        count, length = rows.shape
        wide = self.space(f"wide {purpose}", count, length, torch.float64)
        if rows.dtype != torch.float16:
            return wide, ((wide, rows),)
        between = self.space("float32", count, length, torch.float32)  # twice as fast
        return wide, ((between, rows), (wide, between))

    def once(self, key: tuple[object, ...], make: Callable[[], T]) -> T:
        """What `make` makes of views of buffers: made anew only where a buffer is another one."""
        found: T | None = self._made.get(key)
        if found is None:
            if len(self._made) >= MOST_KEPT:
                self._forget()
            found = self._made[key] = make()
        return found

    def _forget(self) -> None:
        self._views.clear()
        self._made.clear()


def dtype_of(name: str) -> torch.dtype:
    """torch's type for a name such as "bfloat16"."""
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor, not copied."""
    return tensor.view(torch.uint8).numpy().data.cast("B")
