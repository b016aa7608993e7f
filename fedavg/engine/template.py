"""Whose form an output has, where part of it is copied and not merged.

A file of stable-baselines3 has members that run when it is loaded. No participant may put there
what the others load: they come from the model that the round started from, and where there is none
from what most participants have.
"""

from __future__ import annotations

import logging

from fedavg.engine.inputs import Inputs
from fedavg.formats.agreed import DATA, MAX_DATA, agreed
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
    documents = {name: model.small(DATA, MAX_DATA) for name, model in zips.items()}
    found = agreed({name: document for name, document in documents.items() if document})
    if found.left_out:
        log.warning(
            "%s is left out of the output: the participants differ in it, and loading it may run "
            "something", ", ".join(map(ascii, found.left_out)),
        )  # fmt: skip
    if found.document is None:
        members.pop(DATA, None)
        return members
    return {DATA: found.document, **{k: v for k, v in members.items() if k != DATA}}


def template(first: Checkpoint, members: Members | None) -> Checkpoint:
    """What a merge is written like: the first participant's file, with those members."""
    if members is None or not isinstance(first, BaselinesZip):
        return first
    return first.keeping(members)
