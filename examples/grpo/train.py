"""A GRPO-style loop whose rewards come from a fleet: two workers on this machine.

    python examples/grpo/train.py

The policy is small enough to read (a table of logits, no torch); the rest is what a real one does.
For each prompt a group of completions is sampled, the fleet scores all of them in one call, each
reward is compared with its group's mean, and the policy moves towards what was better. The reward
is the adapter for TRL, called as GRPOTrainer calls it: prompts, completions, and one list a column.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from fsworker import rewards
from fsworker.rewards.for_trl import TrlReward

HERE = Path(__file__).resolve().parent
CTL = [sys.executable, "-m", "ctl"]
GROUP = 16
"""Completions for each prompt."""

LEARNING_RATE = 1.0


@dataclass(frozen=True)
class Problem:
    """A row of the dataset."""

    prompt: str
    answer: int


DATASET = [Problem(f"{a} + {b} =", a + b) for a in range(4) for b in range(4)]
NUMBERS = range(7)
COMPLETIONS = [f"It is #### {n}" for n in NUMBERS] + [f"It is {n}, I think" for n in NUMBERS]


class Policy:
    """For each prompt a softmax over the completions."""

    def __init__(self) -> None:
        self.logits = {problem.prompt: [0.0] * len(COMPLETIONS) for problem in DATASET}

    def probabilities(self, prompt: str) -> list[float]:
        """How likely each completion is."""
        weights = [math.exp(logit) for logit in self.logits[prompt]]
        total = sum(weights)
        return [weight / total for weight in weights]

    def sample(self, prompt: str, count: int, source: random.Random) -> list[int]:
        """Completions, by their index."""
        return source.choices(range(len(COMPLETIONS)), self.probabilities(prompt), k=count)

    def update(self, prompt: str, chosen: list[int], advantages: list[float]) -> None:
        """One step of the policy gradient: the gradient of log p is (1 if chosen else 0) - p."""
        before = self.probabilities(prompt)
        logits = self.logits[prompt]
        for index, advantage in zip(chosen, advantages, strict=True):
            step = LEARNING_RATE * advantage / len(chosen)
            for other, probability in enumerate(before):
                logits[other] += step * ((other == index) - probability)


def advantages(group: list[float]) -> list[float]:
    """Each reward against its group: by how many standard deviations it is better than the mean."""
    mean, spread = statistics.fmean(group), statistics.pstdev(group)
    return [(reward - mean) / (spread + 1e-4) for reward in group]


def step(policy: Policy, reward: TrlReward, source: random.Random) -> float:
    """Sample, score, learn; the mean reward."""
    groups = [policy.sample(problem.prompt, GROUP, source) for problem in DATASET]
    scored = reward(
        prompts=[problem.prompt for problem in DATASET for _ in range(GROUP)],
        completions=[COMPLETIONS[index] for group in groups for index in group],
        answer=[problem.answer for problem in DATASET for _ in range(GROUP)],
    )
    # None would mean that the reward does not apply to a sample.
    values = [0.0 if value is None else value for value in scored]
    for number, (problem, chosen) in enumerate(zip(DATASET, groups, strict=True)):
        group = values[number * GROUP : (number + 1) * GROUP]
        policy.update(problem.prompt, chosen, advantages(group))
    return statistics.fmean(values)


def ctl(place: Path, *words: str) -> str:
    """Run a command of ctl, without settings that mean another fleet."""
    own = {k: v for k, v in os.environ.items() if not k.startswith(("FLEET_", "SAO_", "REWARD_"))}
    env = {**own, "XDG_CONFIG_HOME": str(place / "config"), "FLEET_WORKSPACE": str(place / "ws")}
    done = subprocess.run([*CTL, *words], stdout=subprocess.PIPE, text=True, env=env, check=True)
    return done.stdout


def train(root: str, steps: int) -> float:
    """The loop; the last step's mean reward."""
    policy, source, mean = Policy(), random.Random(0), 0.0
    began = time.monotonic()
    with rewards.trl("sums:score", root, on_error="default", default=None) as reward:
        for number in range(1, steps + 1):
            mean = step(policy, reward, source)
            if number in (1, steps) or number % 5 == 0:
                print(f"step {number:3d}  reward {mean:.3f}  {reward.stats.ok} scored", flush=True)
        seconds = time.monotonic() - began
        print(f"{reward.stats.ok / seconds:.0f} rewards a second; {reward.stats.as_dict()}")
    return mean


def main() -> int:
    """Start a fleet, train, stop the fleet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument(
        "--place", type=Path, help="a folder for the run (default: a temporary one)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="grpo-") as temporary:
        place = (options.place or Path(temporary)).resolve()
        root = str(place / "run")
        started = ctl(
            place,
            *("start", "--launcher", "local", "--hosts", "grpo[1-2]", "--concurrency", "1"),
            *("--fn", "sums:score", "--repo", str(HERE), "--root", root, "--run-id", "run"),
        )
        root = json.loads([x for x in started.splitlines() if x.startswith("{")][-1])["root"]
        try:
            train(root, options.steps)
        finally:
            ctl(place, "stop", "--root", root, "--grace", "10")
    return 0


if __name__ == "__main__":
    sys.exit(main())
