"""Whose form an output has, where part of it is copied and not merged.

A file of stable-baselines3 has members that run when it is loaded. No participant may put there
what the others load: they come from the model that the round started from, and where there is none
from what most participants have.
"""

from __future__ import annotations

import logging

from fedavg.engine.inputs import Inputs
from fedavg.formats.agreed import DATA, MAX_DATA, Agreed, agreed
from fedavg.formats.base import Checkpoint
from fedavg.formats.stablebaselines import BaselinesZip, Members

log = logging.getLogger(__name__)


def copied_members(inputs: Inputs) -> Members | None:
    """What stands beside the tensors in a file of stable-baselines3; None for other formats."""
    if isinstance(inputs.base, BaselinesZip):
        return inputs.base.unread()
    named = zip(inputs.names, inputs.models, strict=True)
    zips = {name: model for name, model in named if isinstance(model, BaselinesZip)}
    if not zips:
        return None
    members = zips[min(zips)].unread()
    if len(zips) == 1:
        return members
    found = agreed({name: model.small(DATA, MAX_DATA) for name, model in zips.items()})
    _tell(found, {name for name, model in zips.items() if model.has(DATA)})
    if found.document is None:
        members.pop(DATA, None)
        return members
    return {DATA: found.document, **{k: v for k, v in members.items() if k != DATA}}


def _tell(found: Agreed, having: set[str]) -> None:
    """Warn of what the output lacks of the `data` of those who have one, and what helps."""
    unheard = ", ".join(ascii(name) for name in found.unheard if name in having)
    if unheard:
        log.warning(
            "the `data` of %s %s: it is more than %d MiB, or no JSON that can be read; save less "
            "with it, as by model.save(path, exclude=['_last_obs'])",
            unheard,
            "has no say in the output" if found.document else "is left out, the output has none",
            MAX_DATA >> 20,
        )
    if found.left_out:
        log.warning(
            "%s is left out of the output: no value is that of more than half of the participants, "
            "and loading one may run something; whoever needs it says it to load(path, NAME=…)",
            ", ".join(map(ascii, found.left_out)),
        )


def template(first: Checkpoint, members: Members | None) -> Checkpoint:
    """What a merge is written like: the first participant's file, with those members."""
    if members is None or not isinstance(first, BaselinesZip):
        return first
    return first.keeping(members)
