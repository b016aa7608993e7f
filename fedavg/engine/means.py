"""The weighted mean of a piece, which most merges are made of, in as few calls as possible.

Two threads share one interpreter, and a call of torch holds it for some microseconds: with five
calls a block they spend a fifth of their time waiting for each other. Here a block takes two, and
what is left (the division, the cast) is done for the piece. `compiled` has a faster way for most.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedavg.arithmetic import shares
from fedavg.engine.inputs import Models, Rows
from fedavg.engine.reading import Copies, Reader


@dataclass(frozen=True)
class _Part:
    """A block: the copies that widen its models, these as columns, and where their sum goes."""

    copies: Copies
    columns: Tensor
    total: Tensor


class Means:
    """Takes means of pieces; one a thread, with its reader's buffers."""

    def __init__(self, models: Models, reader: Reader, weights: tuple[float, ...]) -> None:
        self._models, self._reader = models, reader
        self._weights, self._factor = shares(weights)

    def take(self, rows: Rows, out: Tensor) -> None:
        """Write Σ weights[k] models[k] / Σ weights of a piece to `out`, cast once.

        The same as `arithmetic.weighted_mean` of each of its blocks.
        """
        total = self._reader.space("total", 1, len(out), torch.float64)[0]
        parts = self._reader.once(("mean", *rows.shape), lambda: self._parts(rows, total))
        for part in parts:
            for wide, values in part.copies:
                wide.copy_(values)
            torch.mv(part.columns, self._weights, out=part.total)
        if self._factor != 1.0:
            total.mul_(self._factor)
        out.copy_(total)

    def _parts(self, rows: Rows, total: Tensor) -> list[_Part]:
        blocks = self._models.blocks(rows)
        return [_Part(block.copies, block.models.T, total[block.part]) for block in blocks]
