"""The merge rules: pure functions from chunks of K models to a chunk of one, and their registry.

To add a rule: write one function here, give it one line in RULES, one for its parameters in
`records.rules` (where `count_problem` says how many participants it needs), and one row in the
property test (`tests/unit/test_strategies.py`). A rule sees one chunk at a time, all of it in
float64, and knows neither files nor keys, so it is right for every key if it is right for one
coordinate. It may use the models' rows for its own ends.

Notation as in the papers: x is the global model that the round started from, w_k a participant's
model, n_k its sample count, Δ = Σ n_k w_k / Σ n_k − x.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedavg import selection
from fedavg.arithmetic import ordered, weighted_mean
from fedavg.policy import Action
from fedavg.rule import Chunk, Kind, Params, Rule, State, bind
from fsworker.errors import UsageError
from fsworker.protocol.records.rules import RULES as PARAMS
from fsworker.protocol.records.rules import trimmed


def fedavg(chunk: Chunk, p: Params) -> tuple[Tensor, State]:
    """Σ n_k w_k / Σ n_k (McMahan et al. 2017, arXiv 1602.05629)."""
    return weighted_mean(chunk.models, chunk.weights, chunk.room), {}


def fedavgm(chunk: Chunk, p: Params) -> tuple[Tensor, State]:
    """v ← βv + Δ; x ← x + ηv (Hsu, Qi and Brown 2019, arXiv 1909.06335)."""
    x, delta = _progress(chunk)
    v = chunk.state["v"] * p["beta"] + delta
    return x + p["lr"] * v, {"v": v}


def fedadagrad(chunk: Chunk, p: Params) -> tuple[Tensor, State]:
    """v ← v + Δ² (Reddi et al. 2021, arXiv 2003.00295, algorithm 2)."""
    x, delta = _progress(chunk)
    return _adaptive(chunk, p, x, delta, chunk.state["v"] + delta * delta)


def fedadam(chunk: Chunk, p: Params) -> tuple[Tensor, State]:
    """v ← β₂v + (1−β₂)Δ², without bias correction (Reddi et al. 2021, algorithm 2)."""
    x, delta = _progress(chunk)
    v = p["beta2"] * chunk.state["v"] + (1 - p["beta2"]) * delta * delta
    return _adaptive(chunk, p, x, delta, v)


def fedyogi(chunk: Chunk, p: Params) -> tuple[Tensor, State]:
    """v ← v − (1−β₂)Δ² sign(v − Δ²) (Reddi et al. 2021, algorithm 2)."""
    x, delta = _progress(chunk)
    v, square = chunk.state["v"], delta * delta
    v = v - (1 - p["beta2"]) * square * torch.sign(v - square)
    return _adaptive(chunk, p, x, delta, v)


def diloco(chunk: Chunk, p: Params) -> tuple[Tensor, State]:
    """g = −Δ; b ← μb + g; x ← x − η(g + μb): Nesterov as torch has it (arXiv 2311.08105)."""
    x, delta = _progress(chunk)
    b = p["momentum"] * chunk.state["b"] - delta
    return x - p["lr"] * (p["momentum"] * b - delta), {"b": b}


def fedbuff(chunk: Chunk, p: Params) -> tuple[Tensor, State]:
    """x ← x + η/K Σ Δ_k/√(1+τ_k), Δ_k against its own base (Nguyen et al. 2022, arXiv 2106.06639).

    The engine has moved each model onto x by then: row k is x + (w_k − its base). Sample counts
    do not enter.
    """
    x = _base(chunk)
    total = torch.zeros_like(x)
    for row, staleness in zip(chunk.models, chunk.staleness, strict=True):
        total.add_(row.sub_(x), alpha=1 / math.sqrt(1 + staleness))
    return x + total.mul_(p["lr"] / len(chunk.models)), {}


def median(chunk: Chunk, p: Params) -> tuple[Tensor, State]:
    """Per coordinate; of an even number half-way between the middle two.

    Yin et al. 2018, arXiv 1803.01498.
    """
    rows = ordered(chunk.models)
    middle = len(rows) // 2
    if len(rows) % 2:
        return rows[middle], {}
    # Halves first: their sum cannot overflow.
    return rows[middle - 1].mul_(0.5).add_(rows[middle], alpha=0.5), {}


def trimmed_mean(chunk: Chunk, p: Params) -> tuple[Tensor, State]:
    """Per coordinate, without the ⌊βK⌋ smallest and largest (Yin et al. 2018)."""
    rows = ordered(chunk.models)
    cut = trimmed(len(rows), p["beta"])
    kept = rows[cut : len(rows) - cut]
    return weighted_mean(kept, (1.0,) * len(kept), chunk.room), {}


def _base(chunk: Chunk) -> Tensor:
    assert chunk.base is not None, "the engine gives a base to rules that need one"
    return chunk.base


def _progress(chunk: Chunk) -> tuple[Tensor, Tensor]:
    """x, and Δ."""
    x = _base(chunk)
    return x, weighted_mean(chunk.models, chunk.weights, chunk.room).sub_(x)


def _adaptive(chunk: Chunk, p: Params, x: Tensor, delta: Tensor, v: Tensor) -> tuple[Tensor, State]:
    """m ← β₁m + (1−β₁)Δ; x ← x + ηm/(√v + τ)."""
    m = p["beta1"] * chunk.state["m"] + (1 - p["beta1"]) * delta
    return x + p["lr"] * m / (v.sqrt() + p["tau"]), {"m": m, "v": v}


def _zero(p: Params) -> float:
    return 0.0


_LARGEST_DOUBLE = 2.0**480
"""Sums of squares of differences of such values are finite in float64, for 2**60 of them."""
_CHOSEN: dict[str, Any] = {
    "weighted": False, "robust": True, "mean": True,
    "largest_double": _LARGEST_DOUBLE,
}  # fmt: skip
_ADAPTIVE: dict[str, Any] = {
    "state": {"m": _zero, "v": lambda p: p["tau"] ** 2}, "needs_base": True, "squares": ("v",),
    # No model has such values, and sums of millions of their squares are finite in float32.
    "largest": 2.0**50, "largest_double": _LARGEST_DOUBLE,
}  # fmt: skip

RULES: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("fedavg", fedavg, mean=True),
        Kind("fedavgm", fedavgm, PARAMS["fedavgm"], {"v": _zero}, True),
        Kind("fedadagrad", fedadagrad, PARAMS["fedadagrad"], **_ADAPTIVE),
        Kind("fedadam", fedadam, PARAMS["fedadam"], **_ADAPTIVE),
        Kind("fedyogi", fedyogi, PARAMS["fedyogi"], **_ADAPTIVE),
        Kind("diloco", diloco, PARAMS["diloco"], {"b": _zero}, True),
        Kind("fedbuff", fedbuff, PARAMS["fedbuff"], needs_base=True, weighted=False),
        Kind("median", median, weighted=False, robust=True),
        Kind("trimmed-mean", trimmed_mean, PARAMS["trimmed-mean"], weighted=False, robust=True),
        Kind("krum", fedavg, PARAMS["krum"], choose=selection.krum, **_CHOSEN),
        Kind("multi-krum", fedavg, PARAMS["multi-krum"], choose=selection.multi_krum, **_CHOSEN),
    )
}  # fmt: skip


def applied(kind: Kind, action: Action) -> Kind:
    """The rule for a tensor of that action ("rule" or "mean"): no server's step moves a mean."""
    return RULES["fedavg"] if action == "mean" and kind.needs_base else kind


def rule(name: str, params: Mapping[str, float | None] | None = None) -> Rule:
    """The rule of that name. UsageError when there is none, or a parameter is wrong."""
    if name not in RULES:
        raise UsageError(f"there is no merge rule {name!r} (there are: {', '.join(RULES)})")
    return bind(RULES[name], params or {})
