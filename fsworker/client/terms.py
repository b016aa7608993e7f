"""What a caller asks for beside the call itself: how long, how urgent, how often again.

Terms travel in the meta of a batch, so tasks of other terms are sent in other batches, and terms
are made once and compared by identity: the common call costs nothing for them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from fsworker.errors import UsageError
from fsworker.protocol import turns

MAX_RETRIES = 100


@dataclass(frozen=True, slots=True)
class Options:
    """What a task may be given; None and 0 stand for nothing asked.

    `timeout` is for each try, `queue_limit` for the time from `submit` until a worker takes the
    task, both in seconds. A task with a higher `priority` (-4 to 4) goes first. What the function
    raises is tried again `retries` times, `retry_delay` seconds later, if its type is named in
    `retry_on` (`ValueError`, `package.module.Error` or `Error`; empty: whatever is raised).
    """

    timeout: float | None = None
    priority: int = 0
    queue_limit: float | None = None
    retries: int = 0
    retry_on: tuple[str, ...] = ()
    retry_delay: float = 0.0

    def checked(self) -> Options:
        """Itself. UsageError names the option that cannot be."""
        for name in ("timeout", "queue_limit"):
            value = getattr(self, name)
            if value is not None and not _seconds(value, above=0.0):
                raise UsageError(f"{name} must be a number of seconds above 0, not {value!r}")
        if not _seconds(self.retry_delay):
            raise UsageError(f"retry_delay must be seconds from 0 up, not {self.retry_delay!r}")
        _whole("priority", self.priority, -turns.PRIORITIES, turns.PRIORITIES)
        _whole("retries", self.retries, 0, MAX_RETRIES)
        if isinstance(self.retry_on, str) or not all(isinstance(n, str) for n in self.retry_on):
            raise UsageError(f"retry_on must be names of exceptions, not {self.retry_on!r:.80}")
        return self


def make_options(given: Mapping[str, Any]) -> Options:
    """Options by their names. UsageError for what is none, or cannot be."""
    known = {field.name for field in fields(Options)}
    if unknown := sorted(set(given) - known):
        raise UsageError(f"there is no option {unknown[0]!r}: there are {', '.join(sorted(known))}")
    names = given.get("retry_on", ())
    found = dict(given) if isinstance(names, str) else {**given, "retry_on": tuple(names)}
    return Options(**found).checked()


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """A function and the options of its tasks; equal only to itself."""

    fn: str
    options: Options = Options()

    @property
    def priority(self) -> int:
        """How urgent its tasks are."""
        return self.options.priority

    def meta(self, waited: float) -> dict[str, Any]:
        """Its part of a batch's meta, for tasks that have waited this long already (seconds)."""
        options = self.options
        meta: dict[str, Any] = {"fn": self.fn, "timeout": options.timeout}
        if options.queue_limit is not None:
            meta["queue_limit"] = max(0.0, options.queue_limit - waited)
        if options.retries:
            meta["retries"] = [options.retries, list(options.retry_on), options.retry_delay]
        return meta


def _seconds(value: Any, above: float | None = None) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return False
    return value >= 0 if above is None else value > above


def _whole(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UsageError(f"{name} must be a whole number from {low} to {high}, not {value!r}")
