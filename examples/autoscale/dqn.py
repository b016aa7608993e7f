"""A double DQN that is small enough for one core and gives the same weights each time.

All chance comes from the seed and the number of the episode, torch runs on one thread, and nothing
depends on time: so two runs agree to the bit, and a run that was cut in two with one that was not.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from service import FEATURES, REPLICAS, Service, Trace, dice_for

HIDDEN = 48
ROOM = 4000
"""Steps that are remembered."""

ENOUGH = 128
"""Steps before it learns."""

BATCH, DISCOUNT, RATE = 32, 0.9, 2e-3
TARGET_EVERY = 50
UPDATES = 2
"""For each step."""
FIRST_EPSILON, LEAST_EPSILON, DECAY = 0.9, 0.02, 0.97
STRIDES = (-1, 1, 2)
"""Exploring goes this far from what seems best, since a service must not be left to dice."""

State = dict[str, Any]


def network() -> nn.Sequential:
    """From features to the value of each number of replicas."""
    return nn.Sequential(
        nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(),
        nn.Linear(HIDDEN, REPLICAS),
    )  # fmt: skip


class Replay:
    """The last `ROOM` steps; `count` of all that ever were."""

    def __init__(self) -> None:
        self.rows = torch.zeros(ROOM, 2 * FEATURES + 2)
        self.count = 0

    def add(self, before: list[float], action: int, reward: float, after: list[float]) -> None:
        """One more step, in the place of the oldest."""
        row = torch.tensor([*before, *after, float(action), reward])
        self.rows[self.count % ROOM] = row
        self.count += 1

    def sample(self, dice: random.Random) -> torch.Tensor:
        """Some steps, as rows."""
        there = min(self.count, ROOM)
        return self.rows[[dice.randrange(there) for _ in range(BATCH)]]


class Stopped(Exception):
    """An episode was given up on request; the agent is in the midst of it and of no more use."""


class Dqn:
    """The agent. `rewards` has one number an episode."""

    def __init__(self, seed: int) -> None:
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        torch.manual_seed(seed)
        self.seed = seed
        self.net, self.target = network(), network()
        self.target.load_state_dict(self.net.state_dict())
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=RATE, fused=True)
        self.replay = Replay()
        self.epsilon = FIRST_EPSILON
        self.rewards: list[float] = []

    def play(
        self, trace: Trace, episode: int, steps: int, stop: Callable[[], bool] = lambda: False
    ) -> float:
        """Train for an episode; its reward. Stopped once `stop` says so."""
        service = Service(trace, self.seed, episode, steps)
        dice = dice_for(self.seed, episode, "actions")
        seen, total = service.features(), 0.0
        for _ in range(steps):
            if stop():
                raise Stopped
            action = self._choose(seen, dice)
            after, reward = service.step(action)
            self.replay.add(seen, action, reward, after)
            seen, total = after, total + reward
            if self.replay.count >= ENOUGH:
                for _ in range(UPDATES):
                    self._learn(dice)
        self.rewards.append(total)
        return total

    def state(self) -> State:
        """All that there is to go on from: tensors and plain values alone."""
        kept = min(self.replay.count, ROOM)
        return {
            "q_net_state_dict": self.net.state_dict(),
            "target_net_state_dict": self.target.state_dict(),
            "optimizer_state_dict": self.optimizer.state_dict(),
            "replay": self.replay.rows[:kept].clone(),
            "replay_count": self.replay.count,
            "epsilon": self.epsilon,
        }

    def load(self, state: State, *, transfer: bool) -> None:
        """Go on from a state; with `transfer` from its weights alone, all else begins anew."""
        self.net.load_state_dict(state["q_net_state_dict"])
        self.target.load_state_dict(state["target_net_state_dict"])
        if transfer:
            return
        self.optimizer.load_state_dict(state["optimizer_state_dict"])
        self.replay.rows[: len(state["replay"])] = state["replay"]
        self.replay.count = int(state["replay_count"])
        self.epsilon = float(state["epsilon"])
        self.rewards = [float(x) for x in state["rewards"]]

    def _choose(self, seen: list[float], dice: random.Random) -> int:
        with torch.no_grad():
            best = int(self.net(torch.tensor(seen)).argmax())
        explore = dice.random() < self.epsilon
        self.epsilon = max(LEAST_EPSILON, self.epsilon * DECAY)
        if not explore:
            return best
        return min(REPLICAS - 1, max(0, best + dice.choice(STRIDES)))

    def _learn(self, dice: random.Random) -> None:
        rows = self.replay.sample(dice)
        before, after = rows[:, :FEATURES], rows[:, FEATURES : 2 * FEATURES]
        action, reward = rows[:, -2].long().unsqueeze(1), rows[:, -1:]
        with torch.no_grad():
            best = self.net(after).argmax(1, keepdim=True)
            aim = reward + DISCOUNT * self.target(after).gather(1, best)
        loss = nn.functional.smooth_l1_loss(self.net(before).gather(1, action), aim)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        if self.replay.count % TARGET_EVERY == 0:
            self.target.load_state_dict(self.net.state_dict())
