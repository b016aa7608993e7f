"""The environment: a service that must have enough replicas, and not too many, at every step.

A replica serves `SERVES` requests a second and takes `WARM_UP` steps to start: whoever decides by
the load of now is late whenever it rises. An episode is a piece of the trace; which one is given by
the seed and the episode's number alone, so all agents meet the same ones.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgpack

REPLICAS = 8
"""The most; an action is a number of replicas less one."""

SERVES = 100
WARM_UP = 3
EARNS, LOSES, COSTS, STARTS = 0.2, 0.4, 0.1, 0.05
"""For 100 requests a second served, and lost; for a replica a step, and to start one."""

FEATURES = 9


@dataclass(frozen=True)
class Trace:
    """Load by step, in requests a second."""

    load: Sequence[int]
    day: int

    @classmethod
    def read(cls, path: str | Path) -> Trace:
        """A trace file. ValueError for what is none."""
        value = msgpack.unpackb(Path(path).read_bytes())
        if not isinstance(value, dict) or not value.get("load"):
            raise ValueError(f"{path} holds no load")
        return cls(value["load"], 86400 // int(value["seconds"]))


def dice_for(seed: int, episode: int, what: str) -> random.Random:
    """All chance of an episode, from its seed and number alone: nothing needs to be carried on."""
    return random.Random(f"{seed}/{episode}/{what}")


class Service:
    """One episode. `step` takes an action and gives (features, reward)."""

    def __init__(self, trace: Trace, seed: int, episode: int, steps: int) -> None:
        last = max(2, len(trace.load) - steps - 1)
        self.trace = trace
        self.at = dice_for(seed, episode, "place").randrange(2, last + 1)
        self.running = 2
        self.starting = [0] * WARM_UP

    @property
    def load(self) -> int:
        """Requests a second now."""
        return self.trace.load[self.at % len(self.trace.load)]

    def features(self) -> list[float]:
        """What an agent sees: load and its changes, replicas, the time of day."""
        one, two = (self.trace.load[(self.at - k) % len(self.trace.load)] for k in (1, 2))
        angle = 2 * math.pi * (self.at % self.trace.day) / self.trace.day
        return [
            self.load / (REPLICAS * SERVES),
            (self.load - one) / 200,
            (one - two) / 200,
            self.running / REPLICAS,
            sum(self.starting) / REPLICAS,
            math.sin(angle),
            math.cos(angle),
            math.sin(4 * angle),
            math.cos(4 * angle),
        ]

    def step(self, action: int) -> tuple[list[float], float]:
        """Ask for `action` + 1 replicas and let five minutes pass."""
        started = self._ask_for(action + 1)
        self.at += 1
        self.running += self.starting.pop(0)
        self.starting.append(0)
        served = min(self.load, self.running * SERVES)
        lost = self.load - served
        replicas = self.running + sum(self.starting)
        reward = EARNS * served / 100 - LOSES * lost / 100 - COSTS * replicas - STARTS * started
        return self.features(), reward

    def _ask_for(self, wanted: int) -> int:
        """Start what is missing, or stop what is too much, first of what has not begun to serve."""
        missing = wanted - self.running - sum(self.starting)
        if missing > 0:
            self.starting[-1] += missing
            return missing
        for i in reversed(range(WARM_UP)):
            less = min(self.starting[i], -missing)
            self.starting[i] -= less
            missing += less
        self.running += missing
        return 0
