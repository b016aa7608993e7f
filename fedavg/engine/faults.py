"""Whose value is not finite: the search that is only made once a merge or an upload has one.

Where all are finite and the rule leaves the range of the type, whoever is farthest from the others
is named: one participant can bring that about, and the round may go on without it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fedavg.agreement import Unmergeable
from fedavg.engine.inputs import Block, Inputs, Models
from fedavg.engine.pieces import Piece
from fedavg.engine.reading import Reader
from fedavg.engine.statefile import state_key
from fedavg.formats.base import Checkpoint
from fedavg.rule import Rule
from fedavg.strategies import applied

QUARTER = 0.25
"""What values are multiplied with before their difference is taken, so that it stays finite."""
LEAST = 3
"""Models of which the median tells who is odd."""


class OutOfRange(Unmergeable):
    """A rule leaves the range of the type with values that are finite, each by itself.

    `farthest` is the participant that moves the result the most within that piece of a tensor.
    """

    def __init__(self, why: str, *, farthest: str, key: str | None = None) -> None:
        super().__init__(why, key=key)
        self.farthest = farthest

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuilt, (str(self), self.farthest, self.key))


def _rebuilt(sentence: str, farthest: str, key: str | None) -> OutOfRange:
    return OutOfRange(sentence, farthest=farthest, key=key)


def culprit(piece: Piece, inputs: Inputs, rule: Rule) -> Unmergeable:
    """The error for a piece that had a value that is not finite, naming participant and key."""
    reader = Reader()
    for participant, checkpoint, key in _read_for(piece, inputs, rule):
        values = reader.rows("any", [checkpoint], key, piece.start, piece.stop)[0]
        if fault := first_fault(values, participant, checkpoint, key, piece.start):
            return fault
    who, of = _farthest(piece, inputs, rule)
    hint = "; a smaller lr may help" if "lr" in rule.params else ""
    return OutOfRange(
        f"{rule.name} takes {piece.key} out of the range of its type, though all inputs are "
        f"finite: {who} is the farthest from {of}{hint}",
        farthest=who,
        key=piece.key,
    )


def _farthest(piece: Piece, inputs: Inputs, rule: Rule) -> tuple[str, str]:
    """Who has the largest weighted difference within a piece, and from what that is taken.

    From the base, where the rule starts from it; else from the median of all, per coordinate; of
    two models, which have none, the one with the larger value. Of equal ones the first by name.
    """
    by_base = applied(rule.kind, piece.action).needs_base
    models = Models(inputs, Reader())
    rows = models.read(piece, by_base)
    most = torch.zeros(len(inputs.models), dtype=torch.float64)
    for block in models.blocks(rows):
        block.widen()
        apart = (block.models * QUARTER - _middle(block, by_base)).abs()
        apart = torch.nan_to_num(apart, nan=float("inf"), posinf=float("inf"))
        most = torch.maximum(most, apart.amax(1))
    weighted = most * torch.tensor(inputs.weights, dtype=torch.float64)
    of = "the model that the round started from" if by_base else "the others"
    return inputs.names[int(weighted.argmax())], of


def _middle(block: Block, by_base: bool) -> torch.Tensor:
    if by_base and block.base is not None:
        return block.base * QUARTER
    if len(block.models) < LEAST:
        return torch.zeros(1, dtype=torch.float64)
    return block.models.median(0).values * QUARTER


def first_fault(
    values: torch.Tensor, participant: str | None, checkpoint: Checkpoint, key: str, start: int
) -> Unmergeable | None:
    """The error for the first of `values` that is not finite, or None.

    They are the elements of `key` in `checkpoint` from element `start` on, counted row by row.
    """
    finite = torch.isfinite(values)
    if bool(finite.all()):
        return None
    place = int((~finite).nonzero()[0])
    return Unmergeable(
        f"{key} in {checkpoint.path} is not finite (element {start + place} is "
        f"{float(values[place])})",
        participant=participant,
        key=key,
    )


def _read_for(
    piece: Piece, inputs: Inputs, rule: Rule
) -> Iterator[tuple[str | None, Checkpoint, str]]:
    """(participant, file, key) of everything that was read for a piece."""
    for name, model in zip(inputs.names, inputs.models, strict=True):
        yield name, model, piece.key
    for name, own in zip(inputs.names, inputs.own_bases, strict=True):
        if own is not None:
            yield name, own, piece.key
    if inputs.base is not None and piece.key in inputs.base.entries:
        yield None, inputs.base, piece.key
    if inputs.state is not None and piece.action == "rule":
        for value in rule.kind.state:
            yield None, inputs.state, state_key(value, piece.key)
