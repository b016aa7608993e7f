"""Whose value is not finite: the search that is only made once a merge or an upload has one."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fedavg.agreement import Unmergeable
from fedavg.engine.inputs import Inputs
from fedavg.engine.pieces import Piece
from fedavg.engine.reading import Reader
from fedavg.engine.statefile import state_key
from fedavg.formats.base import Checkpoint
from fedavg.rule import Rule


def culprit(piece: Piece, inputs: Inputs, rule: Rule) -> Unmergeable:
    """The error for a piece that had a value that is not finite, naming participant and key."""
    reader = Reader()
    for participant, checkpoint, key in _read_for(piece, inputs, rule):
        values = reader.rows("any", [checkpoint], key, piece.start, piece.stop)[0]
        if fault := first_fault(values, participant, checkpoint, key, piece.start):
            return fault
    return Unmergeable(
        f"{rule.name} takes {piece.key} out of the range of its type, though all inputs are "
        "finite: a smaller lr may help",
        key=piece.key,
    )


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
