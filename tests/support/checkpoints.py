"""Checkpoints in tests: read as a merge reads them, and written as it writes them."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from fedavg.checkpoint import Checkpoint, Writer, open_checkpoint


def tensor_of(checkpoint: Checkpoint, key: str, piece: int = 1 << 20) -> torch.Tensor:
    """A tensor read in pieces of about `piece` bytes."""
    entry = checkpoint.entries[key]
    data = bytearray(entry.nbytes)
    step = max(1, piece // entry.itemsize) * entry.itemsize
    for start in range(0, entry.nbytes, step):
        stop = min(start + step, entry.nbytes)
        checkpoint.read_into(key, start, stop, memoryview(data)[start:stop])
    dtype = getattr(torch, entry.dtype)
    if not data:
        return torch.empty(entry.shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(entry.shape)


def tensors_of(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint by key."""
    with open_checkpoint(path) as checkpoint:
        return {key: tensor_of(checkpoint, key) for key in checkpoint.entries}


def rest_of(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The other leaves of a checkpoint."""
    with open_checkpoint(path) as checkpoint:
        return dict(checkpoint.rest)


def copy(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    piece: int = 1 << 20,
    seed: int = 0,
    replace: Mapping[str, object] | None = None,
) -> None:
    """Write what a checkpoint holds as another, in shuffled pieces from two threads."""
    with open_checkpoint(source) as checkpoint:
        writer = Writer.create(os.fspath(target), checkpoint, replace=replace)
        pieces = []
        for key in writer.keys:
            entry = checkpoint.entries[key]
            step = max(1, piece // entry.itemsize) * entry.itemsize
            pieces += [(key, s, min(s + step, entry.nbytes)) for s in range(0, entry.nbytes, step)]
        random.Random(seed).shuffle(pieces)

        def write(piece: tuple[str, int, int]) -> None:
            key, start, stop = piece
            buffer = bytearray(stop - start)
            checkpoint.read_into(key, start, stop, memoryview(buffer))
            writer.write(key, start, buffer)

        with writer, ThreadPoolExecutor(2) as pool:
            list(pool.map(write, pieces))


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors have one dtype, one shape and the same bits."""
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        return False
    flat = [torch.empty(t.shape, dtype=t.dtype).copy_(t.detach()).view(-1) for t in (left, right)]
    return torch.equal(*(t.view(torch.uint8) for t in flat))
