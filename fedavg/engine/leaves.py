"""What becomes of leaves that are no tensors: numbers, texts and the like are never averaged.

They are the first participant's unless most others agree on something else, so that nobody decides
alone what learning rate the global model names. Those below a list belong to each other and go
together. The output has the first one's keys: where his list has other places than theirs (it is
longer, say) it stays his, since half of each would be nobody's. A name that he alone has in a dict
of the list changes nothing: else it would be enough to keep his learning rate.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from fedavg.engine.inputs import Inputs
from fedavg.policy import Policy

Leaves = Mapping[str, object]


def replaced_leaves(inputs: Inputs, policy: Policy) -> dict[str, object]:
    """The leaves in which the output differs from the first model, by key."""
    models = [model.rest for model in inputs.models]
    alike = len({model.format for model in inputs.models}) == 1  # else not all can hold all
    first, found = models[0], _common(models) if alike else {}
    for key, value in first.items():
        action = policy.leaf_action(key)
        if policy.takes_largest(key, value) and _is_whole(found.get(key, value)):
            found[key] = max(n for m in models if _is_whole(n := m.get(key)))  # type: ignore[type-var]
        elif action == "first":
            found[key] = value
        elif action == "base" and inputs.base is not None:
            found[key] = inputs.base.rest.get(key, value)
        elif not _is_finite(found.get(key, value)):
            others = (m[key] for m in models if type(m.get(key)) is float)
            found[key] = next(filter(_is_finite, others), value)
    return {key: value for key, value in found.items() if _told(value) != _told(first[key])}


def _common(models: Sequence[Leaves]) -> dict[str, object]:
    """Of leaves that the first model has, those that more than half of the models agree on."""
    if len(models) < 3:
        return {}
    found: dict[str, object] = {}
    grouped = [_groups(model) for model in models]
    for name in grouped[0]:
        keys = [sorted(group.get(name, ())) for group in grouped]
        told = [repr([(k, _told(m[k])) for k in ks]) for m, ks in zip(models, keys, strict=True)]
        most, votes = Counter(told).most_common(1)[0]
        like = told.index(most)
        if 2 * votes > len(models) and _places(keys[like]) == _places(keys[0]):
            agreed = (key for key in keys[like] if key in models[0])
            found.update({key: models[like][key] for key in agreed})
    return found


def _places(keys: Sequence[str]) -> set[tuple[str, bool]]:
    """Where leaves stand in their list: (key up to the last number, whether a dict is there)."""
    found = set()
    for key in keys:
        parts = key.split(".")
        end = 1 + max((i for i, part in enumerate(parts) if part.isdigit()), default=-1)
        found.add((".".join(parts[:end]), end < len(parts)))
    return found


def _groups(leaves: Leaves) -> dict[str, list[str]]:
    """The keys of leaves that go together: those below one list, or one by itself."""
    found: dict[str, list[str]] = defaultdict(list)
    for key in leaves:
        parts = key.split(".")
        end = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts))
        found[".".join(parts[:end])].append(key)
    return found


def _told(value: object) -> tuple[str, str]:
    """A value to compare: 1, 1.0 and True are three, and NaN is itself."""
    return type(value).__name__, repr(value)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: object) -> bool:
    return not isinstance(value, float) or math.isfinite(value)
