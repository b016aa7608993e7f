"""A training script with torch: a small net, SGD with momentum, the same to the bit each time.

tiny_torch_train.py --save FILE --first EPISODE --seed S [--load FILE --transfer] [--episodes N]
"""

from __future__ import annotations

import argparse
import os

import torch
from torch import Tensor, nn

State = dict[str, Tensor]


def train(before: State | None, seed: int, episode: int) -> State:
    """The weights after an episode on the data of `seed`, from `before` or from fresh ones."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.BatchNorm1d(16), nn.Linear(16, 2))
    if before is not None:
        net.load_state_dict(before)
    torch.manual_seed(1000 * seed + episode)
    inputs = torch.randn(64, 6)
    targets = torch.stack([inputs.sum(1), inputs.square().sum(1)], 1) * (1 + 0.1 * seed)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    for _ in range(20):
        optimiser.zero_grad()
        nn.functional.mse_loss(net(inputs), targets).backward()
        optimiser.step()
    return {name: value.detach().clone() for name, value in net.state_dict().items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--save", "--load"):
        parser.add_argument(name)
    for name in ("--first", "--seed", "--episodes"):
        parser.add_argument(name, type=int, default=1)
    parser.add_argument("--transfer", action="store_true")
    args = parser.parse_args()
    before = torch.load(args.load, weights_only=True)["net_state_dict"] if args.load else None
    state = train(before, args.seed, args.first)
    torch.save({"net_state_dict": state, "rewards": [float(args.first)]}, f"{args.save}.part")
    os.replace(f"{args.save}.part", args.save)


if __name__ == "__main__":
    main()
