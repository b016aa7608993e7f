"""What a merge will do, decided before a byte of it is read or written. Pure but for open files.

Everything that can be refused by looking at headers is refused here: weights, a rule that does not
fit, checkpoints that differ, types that nothing is known about, LoRA factors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedavg.agreement import Unmergeable, base_disagreement, disagreement
from fedavg.engine.inputs import Inputs
from fedavg.engine.statefile import check_state
from fedavg.formats.base import Checkpoint, Entry
from fedavg.formats.keys import LORA
from fedavg.growing import as_floats, spelt_hint
from fedavg.policy import FLOAT_DTYPES, INTEGER_DTYPES, Action, Policy, actions
from fedavg.rule import Rule
from fedavg.weighting import weights_of
from fsworker.errors import UsageError


@dataclass(frozen=True)
class Contribution:
    """One participant's part in a merge.

    `name` is the participant's id: it orders the contributions, and errors name it. `weight` is its
    sample count; None when nobody counted; with 0 it takes no part. `base` is the model that it
    started from, if that is not the round's: its change since then is what counts, so that it
    enters as x + (model − base). `staleness` is how many rounds older that base is (FedBuff).
    """

    name: str
    checkpoint: Checkpoint
    weight: float | None = None
    base: Checkpoint | None = None
    staleness: int = 0


def inputs_of(
    rule: Rule,
    contributions: Sequence[Contribution],
    base: Checkpoint | None,
    state: Checkpoint | None,
) -> Inputs:
    """Those who take part, in the order of their names.

    UsageError for weights, a rule that so few participants or the lack of a base does not allow,
    a name that occurs twice, a staleness that is none.
    """
    by_name = {c.name: c for c in contributions}
    if len(by_name) < len(contributions):
        name = next(n for n, k in Counter(c.name for c in contributions).items() if k > 1)
        raise UsageError(f"{name} contributes twice to one merge")
    weights = weights_of({name: c.weight for name, c in by_name.items()})
    rule.check(len(weights))
    taking_part = [by_name[name] for name in weights]
    for c in taking_part:
        if c.staleness < 0 or c.staleness != int(c.staleness):
            raise UsageError(f"{c.name}: a staleness of {c.staleness} rounds is none")
        if c.base is not None and base is None:
            raise UsageError(f"{c.name} has a base of its own; then the merge needs its base too")
    if rule.kind.needs_base and base is None:
        raise UsageError(f"{rule.name} moves the model that the round started from: give that base")
    return Inputs(
        tuple(weights),
        tuple(_like(base, c.checkpoint) for c in taking_part),
        tuple(weights.values()) if rule.kind.weighted else (1.0,) * len(weights),
        tuple(int(c.staleness) for c in taking_part),
        _own_bases(base, taking_part),
        base,
        state if rule.kind.state else None,
    )


def _like(base: Checkpoint | None, model: Checkpoint) -> Checkpoint:
    return model if base is None else as_floats(base, model)


def _own_bases(
    base: Checkpoint | None, some: Sequence[Contribution]
) -> tuple[Checkpoint | None, ...]:
    """Those that are not `base`; one that several have is one."""
    distinct = {id(c.base): c.base for c in some if c.base is not None and c.base is not base}
    found = {of: _like(base, own) for of, own in distinct.items()}
    return tuple(found.get(id(c.base)) for c in some)


def actions_of(rule: Rule, inputs: Inputs, policy: Policy) -> dict[str, Action]:
    """What is done with each tensor, by key in the order of the first model.

    Unmergeable where checkpoints disagree; UsageError where the policy asks what cannot be.
    """
    first = inputs.models[0].entries
    for name, model in zip(inputs.names[1:], inputs.models[1:], strict=True):
        if wrong := disagreement(first, model.entries, inputs.names[0]):
            hint = spelt_hint(wrong[0], inputs.models[0], model)
            raise Unmergeable(wrong[1] + hint, participant=name, key=wrong[0])
    found = actions_alone(rule, first, policy)
    _check_bases(rule, inputs, found)
    if inputs.state is not None:
        check_state(inputs.state, rule, first, [k for k, a in found.items() if a == "rule"])
    return found


def actions_alone(rule: Rule, entries: Mapping[str, Entry], policy: Policy) -> dict[str, Action]:
    """The same for one checkpoint by itself, whoever else takes part."""
    found = {k: _checked(entries[k], a) for k, a in actions(policy, entries).items()}
    _check_lora(entries, rule, policy)
    return found


def _checked(entry: Entry, action: Action | None) -> Action:
    if action is None:
        raise Unmergeable(
            f"nothing is known about merging {entry.dtype}, the type of {entry.key}: say what "
            "becomes of it (first or base)",
            key=entry.key,
        )
    if action == "max" and entry.dtype not in FLOAT_DTYPES | INTEGER_DTYPES:
        raise UsageError(f"{entry.key} is {entry.dtype}, which has no largest: say first or base")
    return action


def _check_lora(entries: Mapping[str, Entry], rule: Rule, policy: Policy) -> None:
    factor = next((key for key in entries if any(mark in f".{key}." for mark in LORA)), None)
    if factor is None:
        return
    if policy.lora is None:
        raise Unmergeable(
            f"{factor} is a factor of a low-rank adapter, and the mean of factors is not the mean "
            "of their products: say what to average (--lora product or --lora factors)",
            key=factor,
        )
    if policy.lora == "product" and rule.name != "fedavg":
        raise UsageError(
            f"the product of LoRA factors is merged by fedavg alone, not by {rule.name}"
        )


def _check_bases(rule: Rule, inputs: Inputs, found: Mapping[str, Action]) -> None:
    first = inputs.models[0].entries
    averaged = [key for key, action in found.items() if action == "rule"]
    for name, own in zip(inputs.names, inputs.own_bases, strict=True):
        if own is not None and (wrong := base_disagreement(first, own.entries, averaged)):
            raise Unmergeable(f"its base: {wrong[1]}", participant=name, key=wrong[0])
    kept = [key for key, action in found.items() if action == "base"]
    if inputs.base is None:
        if kept:
            raise UsageError(f"{kept[0]} is to stay as in the base: give that base")
        return
    moved = rule.kind.needs_base or any(inputs.own_bases)
    if not moved and not kept:
        return
    if wrong := base_disagreement(first, inputs.base.entries, kept + (averaged if moved else [])):
        raise Unmergeable(f"the base {inputs.base.path}: {wrong[1]}", key=wrong[0])
    for key in kept:
        if inputs.base.entries[key].dtype != first[key].dtype:
            raise Unmergeable(f"the base {inputs.base.path}: {key} has another type", key=key)
