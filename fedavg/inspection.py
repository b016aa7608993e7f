"""Looking at one upload when it arrives, so that the round's end has only good ones to merge.

One streaming pass over what would be averaged: a value that is not finite is found here, named, and
refused, before anybody waits for it. The merge looks again, since files can change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedavg.agreement import Unmergeable
from fedavg.engine.crew import work_off
from fedavg.engine.faults import first_fault
from fedavg.engine.pieces import Piece, pieces
from fedavg.engine.piecework import is_finite
from fedavg.engine.reading import Reader
from fedavg.formats.base import Checkpoint
from fedavg.policy import FLOAT_DTYPES, Policy, actions


@dataclass(frozen=True)
class Inspected:
    """What was looked at: tensors with bytes of their own, and how many bytes of them were read."""

    tensors: int
    read: int


def inspect(
    checkpoint: Checkpoint,
    *,
    policy: Policy | None = None,
    largest: float = math.inf,
    largest_double: float = math.inf,
    threads: int = 1,
) -> Inspected:
    """Unmergeable, naming file and key, for a checkpoint whose numbers cannot be merged.

    That is one with a value that is NaN or infinite where the policy averages, or beyond `largest`
    (`Kind.largest`; in float64 `largest_double`) where the rule is applied. Whether it fits to
    others is not looked at here.
    """
    entries = checkpoint.entries
    averaged = {
        key: action
        for key, action in actions(policy or Policy(), entries).items()
        if action in ("rule", "mean", "max") and entries[key].dtype in FLOAT_DTYPES
    }

    def looker() -> _Looker:
        return _Looker(checkpoint, largest, largest_double)

    work_off(pieces(entries, averaged, 8), looker, threads)
    return Inspected(
        sum(1 for key, entry in entries.items() if entry.owner == key),
        sum(entries[key].nbytes for key in averaged),
    )


class _Looker:
    """Looks at pieces; one a thread."""

    def __init__(self, checkpoint: Checkpoint, largest: float, double: float) -> None:
        self._checkpoint, self._largest, self._double = checkpoint, largest, double
        self._reader = Reader()

    def __call__(self, piece: Piece) -> None:
        at = (piece.key, piece.start, piece.stop)
        values = self._reader.rows("any", [self._checkpoint], *at)[0]
        if not is_finite(values):
            fault = first_fault(values, None, self._checkpoint, piece.key, piece.start)
            assert fault is not None
            raise fault
        limit = self._double if values.dtype == torch.float64 else self._largest
        if piece.action == "rule" and limit < math.inf:
            self._refuse_large(piece, values, limit)

    def _refuse_large(self, piece: Piece, values: Tensor, limit: float) -> None:
        low, high = map(float, torch.aminmax(values))
        if max(-low, high) > limit:
            worst = high if high >= -low else low
            raise Unmergeable(
                f"{piece.key} in {self._checkpoint.path} is not finite once it is squared, as the "
                f"rule does (its largest element is {worst:g})",
                key=piece.key,
            )
