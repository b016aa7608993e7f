"""The two agents that learn nothing: one asks for what the load of now needs, one throws dice."""

from __future__ import annotations

from service import REPLICAS, SERVES, Service, Trace, dice_for


def greedy(service: Service) -> int:
    """As many replicas as serve the load of now."""
    return min(REPLICAS, max(1, -(-service.load // SERVES))) - 1


def play(agent: str, trace: Trace, seed: int, episode: int, steps: int) -> float:
    """The reward of an episode with `greedy` or `random`."""
    service = Service(trace, seed, episode, steps)
    dice = dice_for(seed, episode, "actions")
    total = 0.0
    for _ in range(steps):
        action = greedy(service) if agent == "greedy" else dice.randrange(REPLICAS)
        total += service.step(action)[1]
    return total
