"""FedProx for the training side: keep a participant near the global model while it trains.

Li et al. 2020, "Federated Optimization in Heterogeneous Networks" (arXiv 1812.06127) add
μ/2 ‖w − w_global‖² to each participant's loss. Its gradient is μ (w − w_global), and adding that
after `loss.backward()` needs neither a second graph nor a change of the loss:

    anchor = snapshot(model)          # the global model, before the round's first step
    loss.backward()
    add_proximal_gradient(model, anchor, mu=0.01)
    optimizer.step()
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fsworker.errors import UsageError


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the parameters that are trained, by name: what the round started from."""
    return {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}


@torch.no_grad()
def add_proximal_gradient(model: nn.Module, anchor: Mapping[str, Tensor], mu: float) -> None:
    """Add μ (w − w_global) to the gradient of every parameter that has one.

    Parameters without a gradient (unused in this step) stay without. UsageError for a μ that is
    negative or not finite, and for a parameter that `anchor` lacks or has in another shape.
    """
    if not 0 <= mu < math.inf:
        raise UsageError(f"mu = {mu} must be at least 0")
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            continue
        start = anchor.get(name)
        if start is None or start.shape != parameter.shape:
            raise UsageError(f"the global model has no parameter {name} of that shape")
        start = start.to(parameter.device, parameter.dtype)
        parameter.grad.add_((parameter - start).to(parameter.grad.dtype), alpha=mu)


def proximal_term(model: nn.Module, anchor: Mapping[str, Tensor], mu: float) -> Tensor:
    """μ/2 ‖w − w_global‖² over the trained parameters, for who wants it in the loss itself."""
    total = torch.zeros(())
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            start = anchor[name].to(parameter.device, parameter.dtype)
            total = total.to(parameter.device) + (parameter - start).square().sum()
    return total * (mu / 2)
