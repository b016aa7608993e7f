"""The first pass of Krum: distances between models, streamed, and the choice that they make."""

from __future__ import annotations

import torch
from torch import Tensor

from fedavg.engine.crew import InOrder, work_off
from fedavg.engine.inputs import Inputs
from fedavg.engine.pieces import pieces
from fedavg.engine.piecework import Measurer
from fedavg.policy import Action
from fedavg.rule import Rule
from fedavg.selection import scores
from fsworker.protocol.records.rules import tolerated


def choose(
    rule: Rule, inputs: Inputs, actions: dict[str, Action], threads: int
) -> tuple[Inputs, dict[str, float]]:
    """The inputs that the rule chose, and the score of each. NotFinite.

    Distances are taken over what the rule merges, so neither counters nor buffers enter.
    """
    assert rule.kind.choose is not None
    distances = _distances(inputs, actions, threads)
    count = len(inputs.names)
    found = scores(distances, tolerated(count, rule.params))
    chosen = rule.kind.choose(distances, rule.params)
    return inputs.only(chosen), dict(zip(inputs.names, found, strict=True))


def _distances(inputs: Inputs, actions: dict[str, Action], threads: int) -> list[list[float]]:
    """Squared distances between all models; summed piece by piece in order, in float64."""
    measured = {key: action for key, action in actions.items() if action == "rule"}
    read = len(inputs.models) + len(inputs.bases) + (inputs.base is not None)
    work = pieces(inputs.models[0].entries, measured, read)
    total = torch.zeros(len(inputs.models), len(inputs.models), dtype=torch.float64)

    def add(part: Tensor) -> None:
        total.add_(part)

    ordered = InOrder(add)
    work_off(enumerate(work), lambda: Measurer(inputs, ordered.put), threads)
    found: list[list[float]] = total.tolist()
    return found
