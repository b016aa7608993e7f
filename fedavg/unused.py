"""What was given to a merge and changes nothing of it. Pure.

An option that is silently passed over is a mistake that shows a round later: a staleness that no
rule weighs, a pattern with a typing error, a state that nobody wrote.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

from fedavg.formats.base import Checkpoint
from fedavg.formats.keys import LORA, lora_pairs
from fedavg.formats.stablebaselines import BaselinesZip
from fedavg.policy import Policy, actions
from fedavg.rule import Kind


def unused(kind: Kind, policy: Policy, model: Checkpoint, given: Iterable[str]) -> list[str]:
    """Why each of the options that were given (`--base`, …) is of no use; [] when all are of use.

    `model` is one of those that are merged, which have the same keys.
    """
    entries = model.entries
    found = []
    for option in given:
        if option in ("--state-in", "--state-out") and not kind.state:
            found.append(f"{option}: {kind.name} keeps no optimiser state")
        elif option == "--staleness" and kind.name != "fedbuff":
            found.append(f"{option}: {kind.name} does not weigh by age, fedbuff alone does")
        elif option == "--base" and not _wants_base(kind, policy, model):
            found.append(f"{option}: {kind.name} does not look at the model before")
        elif option == "--lora" and not any(m in f".{k}." for k in entries for m in LORA):
            found.append(f"{option}: there are no factors of low-rank adapters")
    return found + _idle_patterns(policy, model)


def _idle_patterns(policy: Policy, model: Checkpoint) -> list[str]:
    """Why each of the patterns that decide about no key does not."""
    product = policy.lora == "product"
    pairs = lora_pairs(model.entries).values() if product else ()
    factors = {key for pair in pairs for key in pair}
    own = [e for k, e in model.entries.items() if e.owner == k and k not in factors]
    deciding = {policy.deciding(entry) for entry in own}
    deciding |= {policy.deciding_leaf(key) for key in model.rest}
    found = []
    for pattern, action in dict.fromkeys(policy.patterns):
        if (pattern, action) not in deciding:
            like = fnmatch.filter((*model.entries, *model.rest), pattern)
            found.append(f"--key {pattern}={action}: {_why_idle(like, factors)}")
    return found


def _why_idle(like: list[str], factors: set[str]) -> str:
    """Why a pattern decides about none of the keys that are like it."""
    if not like:
        return "no key is like that"
    if factors.issuperset(like):
        return "factors are merged by their product (--lora product), whatever is said of them"
    others = "a pattern before it, or a tensor that they are tied to, decides about them"
    return f"it changes no key that is like that: {others}, or they are no floats to be averaged"


def _wants_base(kind: Kind, policy: Policy, model: Checkpoint) -> bool:
    """Whether anything is taken from it: numbers, or what a zip has beside its tensors."""
    kept = "base" in actions(policy, model.entries).values()
    return kind.needs_base or kept or isinstance(model, BaselinesZip)
