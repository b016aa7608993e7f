"""The same range of one tensor from many checkpoints, as rows of one matrix.

Each thread has a Reader whose buffers are allocated once and used for every piece: what a merge
needs of memory is decided by the largest piece, and nothing is left for the allocator to hoard.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedavg.arithmetic import widen
from fedavg.formats.base import Checkpoint


class Reader:
    """Buffers by purpose. What a call returns is valid until the next call for that purpose."""

    def __init__(self) -> None:
        self._pools: dict[str, Tensor] = {}

    def space(self, purpose: str, rows: int, count: int, dtype: torch.dtype) -> Tensor:
        """An uninitialised (rows, count) matrix."""
        size = rows * count * dtype.itemsize
        pool = self._pools.get(purpose)
        if pool is None or len(pool) < size:
            pool = self._pools[purpose] = torch.empty(size, dtype=torch.uint8)
        return pool[:size].view(dtype).view(rows, count)

    def rows(
        self, purpose: str, sources: Sequence[Checkpoint], key: str, start: int, stop: int
    ) -> Tensor:
        """Elements [start, stop) of `key` in each of the sources, which agree on its dtype."""
        entry = sources[0].entries[key]
        matrix = self.space(purpose, len(sources), stop - start, dtype_of(entry.dtype))
        size = entry.itemsize
        for source, row in zip(sources, matrix, strict=True):
            source.read_into(key, start * size, stop * size, bytes_of(row))
        return matrix

    def wide(self, purpose: str, rows: Tensor) -> Tensor:
        """A float64 copy of a matrix of floats."""
        count, length = rows.shape
        out = self.space(f"wide {purpose}", count, length, torch.float64)
        if rows.dtype == torch.float16:
            rows = self.space("float32", count, length, torch.float32).copy_(rows)
        return widen(rows, out)


def dtype_of(name: str) -> torch.dtype:
    """torch's type for a name such as "bfloat16"."""
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor, not copied."""
    return tensor.view(torch.uint8).numpy().data
