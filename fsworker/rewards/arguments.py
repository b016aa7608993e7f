"""Which of the things that a trainer offers a reward function is given.

Trainers offer all they have (token ids, dataset columns, their own state) and expect functions to
ignore most of it. Over a fleet that would be sent for nothing, and a part of it cannot be sent at
all. So the function's signature decides here, where it can be had.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fsworker import functions
from fsworker.errors import Refused, UsageError

Fn = str | Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Signature:
    """What a function takes. `names` None: unknown. `open`: any other keyword as well.
    `required` are those without a default; `leading` those that can be given by position."""

    names: tuple[str, ...] | None = None
    open: bool = True
    required: frozenset[str] = frozenset()
    leading: tuple[str, ...] = ()


UNKNOWN = Signature()


def signature_of(fn: Fn, takes: tuple[str, ...] | None = None) -> Signature:
    """What `fn` takes: as told, or by its signature, or unknown where it cannot be imported."""
    if takes is not None:
        return Signature(takes, open=False)
    try:
        found = inspect.signature(functions.resolve(fn) if isinstance(fn, str) else fn)
    except (Refused, TypeError, ValueError):
        return UNKNOWN
    parameters = list(found.parameters.values())
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    leading = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    fixed = (*named, *(p for p in leading if p.kind is p.POSITIONAL_ONLY))
    return Signature(
        tuple(p.name for p in named),
        any(p.kind is p.VAR_KEYWORD for p in parameters),
        frozenset(p.name for p in fixed if p.default is p.empty),
        tuple(p.name for p in leading),
    )


def chosen(
    signature: Signature, offered: Mapping[str, Any], other_names: Mapping[str, str]
) -> dict[str, Any]:
    """Those of the offered arguments that the function takes.

    `other_names` are further names for what is offered, as {other name: offered name}: they are
    used by functions that ask for them, in place of the trainer's own.
    """
    if signature.names is None:
        return dict(offered)
    kept = {name: offered[name] for name in signature.names if name in offered}
    covered = set(kept)
    for other, name in other_names.items():
        if other in signature.names and other not in offered and name in offered:
            kept[other] = offered[name]
            covered.add(name)
    if signature.open:
        kept.update((n, value) for n, value in offered.items() if n not in covered)
    return kept


def missing(signature: Signature, kept: Mapping[str, Any]) -> list[str]:
    """What the function requires and was not offered."""
    return sorted(signature.required - kept.keys())


def refuse(fn: Fn, absent: list[str], offered: Mapping[str, Any]) -> UsageError:
    """The error for a function that requires what its trainer does not offer."""
    name = fn if isinstance(fn, str) else getattr(fn, "__qualname__", repr(fn))
    return UsageError(
        f"the reward function {name} requires {', '.join(absent)}, which the trainer does not "
        f"offer: it offers {', '.join(offered) or 'nothing'}; rename the parameter or the column "
        "of the dataset, or give it a default"
    )
