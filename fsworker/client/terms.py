"""What a caller asks for beside the call itself: how long, how urgent, how often again.

Terms travel in the meta of a batch, so tasks of other terms are sent in other batches, and terms
are made once and compared by identity: the common call costs nothing for them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from fsworker.errors import UsageError
from fsworker.protocol import turns
from fsworker.protocol.records.needs import Needs, read_needs
from fsworker.protocol.records.slots import size

MAX_RETRIES = 100
RESERVED = "FLEET_"
"""How the names of variables begin that say what fleet a process is of, and whose task it runs."""
WAITS = "~"
"""How the needs in a lane end that may wait for workers."""


class Lane(NamedTuple):
    """What tasks have in common that queue up behind each other: how urgent they are, and what they
    need (a digest, empty for nothing, with WAITS behind it where they wait for workers)."""

    priority: int = 0
    needs: str = ""


USUAL = Lane()


@dataclass(frozen=True, slots=True)
class Options:
    """What a task may be given; None and 0 stand for nothing asked.

    `timeout` is for each try, `queue_limit` for the time from `submit` until a worker takes the
    task, both in seconds. A task with a higher `priority` (-4 to 4) goes first. What the function
    raises is tried again `retries` times, `retry_delay` seconds later, if its type is named in
    `retry_on` (`ValueError`, `package.module.Error` or `Error`; empty: whatever is raised). `env`
    is set for the call and undone after it. `memory` is the limit of what it may use, in bytes.
    `needs` is what its worker must offer; `wait_for_workers`: where nobody does, it waits for one.
    """

    timeout: float | None = None
    priority: int = 0
    queue_limit: float | None = None
    retries: int = 0
    retry_on: tuple[str, ...] = ()
    retry_delay: float = 0.0
    env: tuple[tuple[str, str], ...] = ()
    memory: int | None = None
    needs: Needs | None = None
    wait_for_workers: bool = False

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
        for name, value in self.env:
            _variable(name, value)
        if not isinstance(self.wait_for_workers, bool):
            raise UsageError(
                f"wait_for_workers must be true or false, not {self.wait_for_workers!r}"
            )
        return self


def make_options(given: Mapping[str, Any]) -> Options:
    """Options by their names. UsageError for what is none, or cannot be."""
    known = {field.name for field in fields(Options)}
    if unknown := sorted(set(given) - known):
        raise UsageError(f"there is no option {unknown[0]!r}: there are {', '.join(sorted(known))}")
    found = dict(given)
    if not isinstance(names := given.get("retry_on", ()), str):
        found["retry_on"] = tuple(names)
    env = given.get("env") or {}
    if not isinstance(env, Mapping):
        raise UsageError(f"env must be a map of names to texts, not {env!r:.80}")
    found["env"] = tuple(env.items())
    if (memory := given.get("memory")) is not None:
        try:
            found["memory"] = size(memory)
        except ValueError as error:
            raise UsageError(f"memory: {error}") from None
    if (needs := given.get("needs")) is not None:
        try:
            found["needs"] = read_needs(needs)
        except ValueError as error:
            raise UsageError(f"needs: {error}") from None
    return Options(**found).checked()


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """A function and the options of its tasks; equal only to itself."""

    fn: str
    options: Options = Options()

    common: bool = field(init=False)
    """Whether its tasks are as urgent as most, may wait as long as it takes, and need nothing."""
    lane: Lane = field(init=False)

    def __post_init__(self) -> None:
        options = self.options
        needs = options.needs.digest if options.needs else ""
        waits = WAITS if needs and options.wait_for_workers else ""
        lane = Lane(options.priority, needs + waits)
        object.__setattr__(self, "lane", lane)
        object.__setattr__(self, "common", lane == USUAL and options.queue_limit is None)

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
        if options.env:
            meta["env"] = dict(options.env)
        if options.memory is not None:
            meta["memory"] = options.memory
        if options.needs:
            meta["needs"] = options.needs.fields()
        return meta


def _seconds(value: Any, above: float | None = None) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return False
    return value >= 0 if above is None else value > above


def _variable(name: Any, value: Any) -> None:
    """UsageError for what no environment can hold, and for names that are the fleet's own."""
    if not isinstance(name, str) or not name or "=" in name or "\0" in name:
        raise UsageError(f"env: {name!r:.80} is no name of a variable")
    if name.startswith(RESERVED):
        raise UsageError(f"env: {name} is set by the fleet: choose a name without {RESERVED}")
    if not isinstance(value, str) or "\0" in value or not _encodes(name + value):
        raise UsageError(f"env: the value of {name} must be a text, not {value!r:.80}")


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _whole(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UsageError(f"{name} must be a whole number from {low} to {high}, not {value!r}")
