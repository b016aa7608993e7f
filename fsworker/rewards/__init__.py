"""Reward functions on a fleet, in the form that each trainer calls.

    reward = fsworker.rewards.trl("graders:grade", root="/shared/runs/run-7")
    GRPOTrainer(…, reward_funcs=reward)

`fn` is a function that the run serves, by name or as a callable, and scores one sample a call. What
a trainer offers and `fn` does not take is dropped; what it returns arrives unchanged, as far as the
trainer can use it. All four share their options (`Options`), `.stats`, and `.close()`; they can be
pickled and forked, since each process opens a client of its own when it first needs one.

How to plug each one in: docs/trainers.md.
"""

from __future__ import annotations

from fsworker.rewards.for_areal import areal
from fsworker.rewards.for_openrlhf import openrlhf
from fsworker.rewards.for_trl import trl
from fsworker.rewards.for_verl import verl
from fsworker.rewards.options import Options
from fsworker.rewards.pursuit import Stats

__all__ = ["Options", "Stats", "areal", "openrlhf", "trl", "verl"]
