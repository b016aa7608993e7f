"""What a user may choose about rewards, checked when it is said rather than amid a training run."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from fsworker import outcomes
from fsworker.errors import UsageError

RAISE, DEFAULT = "raise", "default"

RETRIED = (outcomes.TIMEOUT, outcomes.CRASHED)
"""What is tried again unless told otherwise.

A function that raises would raise again; a call of which three workers died would kill three more.
"""


@dataclass(frozen=True, slots=True)
class Options:
    """How samples are scored.

    root: the run root.
    timeout: seconds that one call may take on its worker (waiting for a slot is not counted).
    max_retries: how often a failed call is sent again, if its status is in `retry_on`: `timeout`,
        `crashed`; `error` is a function that raised, worth it where it asks others; `worker died`
        costs up to three workers' lives each time.
    on_error: what follows when it fails for good: `raise` the TaskError, or `default` in its place.
        That nobody serves the run (NoWorkers), or not this function, is raised always.
    takes: the names that `fn` takes, where it cannot be imported or has `**kwargs`.
    no_worker_timeout: seconds without any living worker before NoWorkers; None waits for ever.
    """

    root: str
    timeout: float | None = 15.0
    max_retries: int = 3
    on_error: str = RAISE
    default: Any = 0.0
    retry_on: frozenset[str] = frozenset(RETRIED)
    takes: tuple[str, ...] | None = None
    no_worker_timeout: float | None = 60.0


class Given(TypedDict, total=False):
    """The options as users write them."""

    timeout: float | None
    max_retries: int
    on_error: str
    default: Any
    retry_on: Collection[str]
    takes: Sequence[str] | None
    no_worker_timeout: float | None


def checked(root: str | os.PathLike[str], given: Given) -> Options:
    """The options of an adapter. Raises UsageError."""
    known = dict(given)
    unknown = known.keys() - Given.__annotations__.keys()
    if unknown:
        raise UsageError(
            f"rewards have no option {min(unknown)!r}: there are {', '.join(Given.__annotations__)}"
        )
    retry_on, takes = given.get("retry_on", RETRIED), given.get("takes")
    known["retry_on"] = frozenset(_names("retry_on", retry_on))
    known["takes"] = None if takes is None else tuple(_names("takes", takes))
    options = Options(os.path.abspath(root), **known)  # type: ignore[arg-type]  # checked below
    _check(options)
    return options


def _names(name: str, value: Collection[str]) -> Collection[str]:
    if isinstance(value, str):
        raise UsageError(f"{name} must be a list of names, not the text {value!r}")
    return value


def _check(options: Options) -> None:
    for name in ("timeout", "no_worker_timeout"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            raise UsageError(f"{name} must be a number of seconds above 0, not {value!r}")
    if not isinstance(options.max_retries, int) or options.max_retries < 0:
        raise UsageError(f"max_retries must be a whole number, not {options.max_retries!r}")
    if options.on_error not in (RAISE, DEFAULT):
        raise UsageError(f"on_error must be 'raise' or 'default', not {options.on_error!r}")
    failures = set(outcomes.STATUSES) - {outcomes.OK}
    if not options.retry_on <= failures:
        wrong = min(options.retry_on - failures)
        raise UsageError(f"retry_on names {wrong!r}; it may hold {', '.join(sorted(failures))}")
