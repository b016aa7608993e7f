"""Trains a small classifier of handwritten digits for one episode, on one half of the data.

    python train.py --half 1 --save checkpoint.pt

Half 1 holds the digits 0 to 4 and half 2 the digits 5 to 9, so that whoever trains on one of them
cannot know the others: what the merged model knows of all ten came through the group. With `--load`
it starts from the weights of a checkpoint, its own or a global model. All chance comes from the
seed, the half and FLEET_EPISODE, so the same call gives the same weights.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import nn

import fsworker

PIXELS, HIDDEN, DIGITS = 64, 32, 10
HALVES = {1: range(5), 2: range(5, DIGITS)}
HELD_OUT = 5
"""Every fifth image is never trained on."""

BATCH, RATE, PASSES = 16, 0.2, 3
"""Plain gradient descent; an episode goes over its half three times."""


class Unusable(Exception):
    """Weights that cannot be started from; the text says which and why."""


class Data(NamedTuple):
    """Images as rows of 64 numbers from 0 to 1, and the digits that they show."""

    images: torch.Tensor
    labels: torch.Tensor


def network() -> nn.Sequential:
    """From pixels to a score for each digit: 2,410 parameters."""
    return nn.Sequential(nn.Linear(PIXELS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, DIGITS))


def data() -> tuple[Data, Data]:
    """What may be trained on, and what is held out: 1,438 and 359 images."""
    bunch = load_digits()
    images = torch.tensor(bunch.data, dtype=torch.float32) / 16
    labels = torch.tensor(bunch.target, dtype=torch.int64)
    held = torch.arange(len(labels)) % HELD_OUT == HELD_OUT - 1
    return Data(images[~held], labels[~held]), Data(images[held], labels[held])


def half_of(whole: Data, half: int) -> Data:
    """The images of one half of the digits."""
    digits = HALVES[half]
    mine = (whole.labels >= digits.start) & (whole.labels < digits.stop)
    return Data(whole.images[mine], whole.labels[mine])


def accuracy(state: Mapping[str, torch.Tensor], held: Data) -> float:
    """The share of held-out images that a model names rightly."""
    net = network()
    net.load_state_dict(state)
    with torch.no_grad():
        right = net(held.images).argmax(1) == held.labels
    return float(right.float().mean())


def train(
    start: Mapping[str, torch.Tensor] | None, mine: Data, seed: int, half: int, episode: int
) -> dict[str, torch.Tensor]:
    """The weights after one episode from `start` (None: fresh ones, alike for both halves)."""
    torch.manual_seed(seed)
    net = network()
    if start is not None:
        net.load_state_dict(start)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    dice = torch.Generator().manual_seed(seed * 10_000 + episode * 10 + half)
    for _ in range(PASSES):
        for rows in torch.split(torch.randperm(len(mine.labels), generator=dice), BATCH):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(mine.images[rows]), mine.labels[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return dict(net.state_dict())


def load(path: str | Path) -> dict[str, torch.Tensor]:
    """The weights in a checkpoint. Unusable."""
    try:
        state = torch.load(path, weights_only=True)
        network().load_state_dict(state["model"])
    except OSError as error:
        raise Unusable(f"cannot read {path}: {error.strerror}") from None
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise Unusable(f"{path} holds no weights of this model: {reason}") from None
    model: dict[str, torch.Tensor] = state["model"]
    return model


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint, all of it or nothing."""
    buffer = io.BytesIO()  # written to a path, the bytes would depend on its name
    torch.save(state, buffer)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(buffer.getvalue())
    temporary.replace(path)


def options(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    """The command line; what the fleet says in the environment are the defaults."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--half", type=int, choices=HALVES, required=True)
    parser.add_argument("--load", metavar="WEIGHTS", default=environ.get("FLEET_WEIGHTS"))
    parser.add_argument("--transfer", action="store_true", help="the weights are all it has")
    parser.add_argument("--save", type=Path, default=environ.get("FLEET_CHECKPOINT"))
    parser.add_argument("--episode", type=int, default=int(environ.get("FLEET_EPISODE") or 1))
    parser.add_argument("--seed", type=int, default=1)
    return parser


def main() -> int:
    args = options(os.environ).parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    whole, held = data()
    mine = half_of(whole, args.half)
    try:
        start = load(args.load) if args.load else None
        model = train(start, mine, args.seed, args.half, args.episode)
        reward = accuracy(model, held)
        told = {"episodes": 1, "rewards": [reward], "samples": len(mine.labels)}
        save(args.save or Path("checkpoint.pt"), {"model": model, **told})
    except (Unusable, OSError) as error:
        print(f"train.py: {error}", file=sys.stderr)
        return 2
    fsworker.report(args.episode, reward=reward)
    print(f"episode {args.episode} half={args.half} accuracy={reward:.3f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
