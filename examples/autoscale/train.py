"""Trains one of three agents to choose replica counts, episode by episode.

    python train.py --trace trace.msgpack --agent dqn --episodes 20 --save checkpoint.pt

With `--load` it goes on from a checkpoint as if it had never stopped; with `--transfer` it takes
the weights alone, and replay buffer, optimizer and exploration begin anew. A job of a fleet needs
none of the paths: FLEET_TRACE, FLEET_EPISODE (of the first episode), FLEET_WEIGHTS (to transfer
from) and FLEET_CHECKPOINT say them.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import checkpoints
import fsworker
import simple
from checkpoints import Unusable
from service import Trace

HERE = Path(__file__).resolve().parent
AGENTS = ("dqn", "greedy", "random")


@dataclass(frozen=True)
class Plan:
    """What to train: episodes from `first` on, `steps` each, from `load` (None: fresh)."""

    agent: str
    trace: Trace
    episodes: int
    steps: int
    seed: int
    save: Path
    first: int | None = None
    load: str | None = None
    transfer: bool = False
    stop: Callable[[], bool] = field(default=lambda: False)


def train(plan: Plan) -> list[float]:
    """Train and save after each episode; the rewards of the checkpoint. Raises Unusable."""
    state = checkpoints.load(plan.load, plan.agent) if plan.load else None
    done = 0 if state is None or plan.transfer else len(state["rewards"])
    first = done + 1 if plan.first is None else plan.first
    numbers = range(first, first + plan.episodes)
    if plan.agent == "dqn":
        return _train_dqn(plan, state, numbers)
    rewards = state["rewards"] if state and not plan.transfer else []
    for number in numbers:
        reward = simple.play(plan.agent, plan.trace, plan.seed, number, plan.steps)
        rewards.append(reward)
        _finished(plan, number, {"rewards": rewards})
    return rewards


def _train_dqn(plan: Plan, state: dict[str, object] | None, numbers: range) -> list[float]:
    from dqn import Dqn

    agent = Dqn(plan.seed)
    if state is not None:
        try:
            agent.load(state, transfer=plan.transfer)
        except (KeyError, RuntimeError, ValueError, TypeError) as error:
            reason = str(error).splitlines()[0]
            raise Unusable(f"{plan.load} does not fit this agent: {reason}") from None
    for number in numbers:
        agent.play(plan.trace, number, plan.steps, plan.stop)
        _finished(plan, number, {**agent.state(), "rewards": list(agent.rewards)})
    return agent.rewards


def _finished(plan: Plan, number: int, state: dict[str, object]) -> None:
    rewards = state["rewards"]
    assert isinstance(rewards, list)
    checkpoints.save(plan.save, plan.agent, plan.seed, plan.steps, state)
    fsworker.report(number, reward=rewards[-1])
    print(f"episode {number} agent={plan.agent} reward={rewards[-1]:.2f}", flush=True)


def options(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    """The command line; what the fleet says in the environment are the defaults."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trace", default=environ.get("FLEET_TRACE", str(HERE / "trace.msgpack")))
    parser.add_argument("--agent", choices=AGENTS, default="dqn")
    parser.add_argument("--episodes", type=int, default=1)
    parser.add_argument("--steps", type=int, default=288, help="of five minutes, an episode")
    parser.add_argument("--load", metavar="WEIGHTS", help="a checkpoint to start from")
    parser.add_argument("--transfer", action="store_true", help="take its weights alone")
    parser.add_argument("--save", default=environ.get("FLEET_CHECKPOINT", "checkpoint.pt"))
    parser.add_argument("--seed", type=int, default=1)
    return parser


def plan_of(args: argparse.Namespace, environ: Mapping[str, str]) -> Plan:
    """What a command line asks for. Raises OSError and ValueError for a trace that is none."""
    weights = args.load or environ.get("FLEET_WEIGHTS")
    number = environ.get("FLEET_EPISODE", "")
    return Plan(
        agent=args.agent,
        trace=Trace.read(args.trace),
        episodes=args.episodes,
        steps=args.steps,
        seed=args.seed,
        save=checkpoints.path_for(args.agent, args.save),
        first=int(number) if number.isdecimal() else None,
        load=weights,
        transfer=args.transfer or (weights is not None and args.load is None),
    )


def main() -> int:
    args = options(os.environ).parse_args()
    try:
        train(plan_of(args, os.environ))
    except (Unusable, OSError, ValueError) as error:
        print(f"train.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
