"""Checkpoints of the example: `.pt` for the DQN, JSON for agents that have no weights.

Both say `episodes`, `rewards` (one an episode), `total_reward` and `samples` (steps). A checkpoint
is replaced as a whole, so that whoever kills the process finds the last finished episode. Torch is
imported where it is needed: the two simple agents do without.
"""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any


class Unusable(Exception):
    """A checkpoint that is none, or is another agent's; the text says which and why."""


def path_for(agent: str, path: str | Path) -> Path:
    """The same path with the ending that the agent's checkpoints have."""
    return Path(path).with_suffix(".pt" if agent == "dqn" else ".json")


def save(path: Path, agent: str, seed: int, steps: int, state: dict[str, Any]) -> None:
    """Write what `state` holds (with its `rewards`), and what there is to say about it."""
    rewards = state["rewards"]
    told = {
        "agent": agent,
        "seed": seed,
        "episodes": len(rewards),
        "samples": len(rewards) * steps,
        "total_reward": sum(rewards),
    }
    if agent == "dqn":
        import torch

        buffer = io.BytesIO()  # written to a path, the bytes would depend on its name
        torch.save({**state, **told}, buffer)
        data = buffer.getvalue()
    else:
        data = json.dumps({**told, **state}).encode() + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(data)
    temporary.replace(path)


def load(path: str | Path, agent: str) -> dict[str, Any]:
    """A checkpoint of this agent. Unusable."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise Unusable(f"cannot read {path}: {error.strerror}") from None
    try:
        if agent == "dqn":
            import torch

            state = torch.load(io.BytesIO(data), weights_only=True)
        else:
            state = json.loads(data)
    except Exception as error:
        raise Unusable(f"{path} is no checkpoint: {type(error).__name__}") from None
    needed = "q_net_state_dict" if agent == "dqn" else "rewards"
    if not isinstance(state, dict) or needed not in state:
        raise Unusable(f"{path} is no checkpoint of the agent {agent}: it has no {needed}")
    state.setdefault("rewards", [])
    return dict(state)
