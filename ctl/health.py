"""What state a host is in: the table of states as one pure function.

`watch` and `status` must never disagree about a host, and the rules (what silence proves, what it
does not) must be readable in one place and testable as a table. So everything that was seen comes
in as an `Observation`, what a probe over the launcher found comes in as a `Finding`, and `judge`
says the state. It reads no clock and no file.

Silence proves nothing by itself: it makes a host suspect, and only a finding makes it dead or
hung. A status that cannot be read, or that names another host, is silence too: the last good beat
ages on.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, NamedTuple


class State(enum.StrEnum):
    """A host's state, in the words that `status` and `watch` show."""

    READY = "ready"
    STARTING = "starting"
    DRAINING = "draining"
    STOPPED = "stopped"
    MISSING = "missing"
    STUCK_STARTING = "stuck starting"
    UNWRAPPED = "unwrapped"
    STALE = "stale"
    DEAD = "dead"
    HUNG = "hung"
    UNREACHABLE = "unreachable"
    DENIED = "denied"
    CRASH_LOOPING = "crash-looping"
    STORAGE_SUSPECT = "storage suspect"


HEALTHY = frozenset({State.READY, State.STARTING, State.DRAINING, State.STOPPED})
"""States in which nothing is done."""

SUSPECT = frozenset({State.MISSING, State.STUCK_STARTING, State.UNWRAPPED, State.STALE})
"""States that a look at the root alone can give and that a probe must confirm."""

SILENT = frozenset({State.MISSING, State.STALE})
"""Suspect because no beat comes; the others beat and are suspect for what they say."""

REASONS = {
    State.MISSING: "status_missing",
    State.STALE: "heartbeat_stale",
    State.STUCK_STARTING: "not_ready",
    State.STARTING: "not_ready",
    State.DRAINING: "draining",
    State.STOPPED: "stopped",
    State.UNWRAPPED: "wrapper_dead",
    State.READY: "ok",
}
"""The reasons that scripts match on; `status_bad` stands for a status that cannot be read."""

MAX_STARTS_WAIT = 32
"""How many times `ready_timeout` a host that never got ready is given at most."""


@dataclass(frozen=True, slots=True)
class Limits:
    """From when on something is too long, in seconds; `loop_deaths` is a count."""

    stale: float = 60.0
    ready: float = 60.0
    cooldown: float = 30.0
    fence: float = 60.0
    grace: float = 30.0
    healthy: float = 30.0
    loop_deaths: int = 3


class Beat(NamedTuple):
    """What a heartbeat says that a state depends on: small, for it comes from every host."""

    incarnation: str
    seq: int
    launch: int
    ready: bool
    draining: bool
    stopped: bool
    wrapped: bool
    refused: str | None
    heartbeat_at: float

    @classmethod
    def of(cls, beat: Any) -> Beat:
        """The part that counts here of a record that has these fields, as `Heartbeat` does."""
        return cls(*(getattr(beat, name) for name in cls._fields))


@dataclass(frozen=True, slots=True)
class Observation:
    """What was seen of one host.

    `age`: seconds since its beat changed; `since_launch`: since its latest launch was seen;
    `since_birth`: since the first beat of this life, where that is known: a wrapper starts many
    lives of one launch, and each needs its own time to get ready.
    `problem`: why the status could not be read this time, `blind`: because reading it failed here
    (I/O, permission), which says nothing about the host. `stop`: an intent covers the launch.
    `allowed`: it is one of the run's hosts. `owners`: its incarnations that hold claims.
    `short_lives`: how often in a row it died soon after it started; `failed_starts`: how often in
    a row it was restarted and did not get ready; `start_failed`: the latest launch never began.
    """

    host: str
    launch: int = 0
    since_launch: float = 0.0
    since_birth: float | None = None
    beat: Beat | None = None
    age: float | None = None
    problem: str | None = None
    blind: bool = False
    stop: bool = False
    respawn: bool = True
    allowed: bool = True
    owners: tuple[str, ...] = ()
    short_lives: int = 0
    failed_starts: int = 0
    start_failed: bool = False

    @property
    def key(self) -> tuple[str, int]:
        """Which beat this is."""
        return (self.beat.incarnation, self.beat.seq) if self.beat else ("", 0)


class Found(enum.StrEnum):
    """What a probe (or a stop) found on the host."""

    DEAD = "dead"
    BETWEEN = "between two lives"
    ALIVE = "alive"
    BARE = "alive without its wrapper"
    STUCK = "cannot die"
    UNREACHABLE = "unreachable"
    DENIED = "denied"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found, and about what: the beat and the launch that were known when it was asked.

    It loses its meaning when the host beats again, is launched again, or becomes suspect for
    another kind of reason. `words` are for people: the stage that failed, what the host said.
    `incarnation` is the life that the host's own record names.
    """

    found: Found
    key: tuple[str, int]
    launch: int
    silent: bool
    words: str = ""
    incarnation: str = ""

    def holds(self, seen: Observation, state: State) -> bool:
        """Whether it still says something about what is seen now."""
        if self.launch != seen.launch or self.silent != (state in SILENT):
            return False
        return self.key == seen.key if self.silent else self.key[0] == seen.key[0]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A host's state. `base` is what decisions rest on, `state` is what is shown.

    They differ only for a host that dies again and again: shown as crash-looping, whatever it is
    doing at the moment. `silent`: the suspicion was that no beat comes.
    """

    host: str
    state: State
    base: State
    reason: str
    age: float | None = None
    words: str = ""
    found: Found | None = None
    silent: bool = False

    @property
    def healthy(self) -> bool:
        """Whether nobody needs to look at it."""
        return self.state in HEALTHY


def judge(seen: Observation, finding: Finding | None, limits: Limits) -> Verdict:
    """The state of a host by what was seen and what a probe found."""
    base, words = _by_beat(seen, limits)
    reason = "status_bad" if seen.problem and base in SILENT else REASONS[base]
    words = words or seen.problem or ""
    found, silent = None, base in SILENT
    if finding and base in SUSPECT and finding.holds(seen, base):
        found = finding.found
        base, words = _confirmed(base, finding, seen)
    state = base
    if seen.short_lives >= limits.loop_deaths and _may_loop(base):
        state, said = State.CRASH_LOOPING, f"died {seen.short_lives} times soon after it started"
        words = f"{said}; {words}" if words else said
    return Verdict(seen.host, state, base, reason, _age(seen), words, found, silent)


def still_beats(seen: Observation, limits: Limits) -> bool:
    """Whether the last beat is young enough to be believed."""
    return seen.beat is not None and seen.age is not None and seen.age <= limits.stale


def ready_deadline(seen: Observation, limits: Limits) -> float:
    """How long a launch, or a later life of it, may take to be ready: longer after each too slow.

    A function that takes two minutes to import would otherwise be restarted for ever.
    """
    return float(limits.ready * min(2**seen.failed_starts, MAX_STARTS_WAIT))


def _by_beat(seen: Observation, limits: Limits) -> tuple[State, str]:
    """The state by a look at the root alone."""
    beat, fresh = seen.beat, still_beats(seen, limits)
    if seen.stop:
        ending = fresh and beat is not None and not beat.stopped
        return (State.DRAINING if ending else State.STOPPED), ""
    if beat is None or beat.launch < seen.launch:
        if not seen.start_failed and seen.since_launch <= ready_deadline(seen, limits):
            return State.STARTING, ""
        if beat is None or not fresh:
            return State.MISSING, f"no heartbeat of launch {seen.launch}"
    if not fresh:
        return State.STALE, ""
    return _by_word(beat, seen, limits)


def _by_word(beat: Beat, seen: Observation, limits: Limits) -> tuple[State, str]:
    """The state of a host that beats, by what it says."""
    if beat.refused:
        return State.STUCK_STARTING, f"it refuses to run: {beat.refused}"
    if beat.stopped:
        return State.STOPPED, ""
    if beat.draining:
        return State.DRAINING, ""
    if seen.respawn and not beat.wrapped:
        return State.UNWRAPPED, ""
    if beat.ready:
        return State.READY, ""
    born = seen.since_launch if seen.since_birth is None else seen.since_birth
    lived = min(born, seen.since_launch)
    if lived <= ready_deadline(seen, limits):
        return State.STARTING, ""
    return State.STUCK_STARTING, f"not ready after {lived:.0f} s"


def _confirmed(base: State, finding: Finding, seen: Observation) -> tuple[State, str]:
    """The state of a suspect host by what was found there."""
    found, words = finding.found, finding.words
    if found is Found.DENIED:
        return State.DENIED, words
    if found is Found.UNREACHABLE:
        return State.UNREACHABLE, words
    if found is Found.DEAD:
        return State.DEAD, words
    if found is Found.BETWEEN:
        return State.DEAD, words or "its wrapper is about to start it again"
    if base is State.UNWRAPPED:
        # The worker is there and works; only a wrapper that is really gone is a reason to act.
        return (State.UNWRAPPED if found is Found.BARE else State.READY), words
    if seen.blind:
        return State.STALE, f"the process is there; its status cannot be read: {seen.problem}"
    return State.HUNG, words


def _may_loop(base: State) -> bool:
    """Whether a host in this state can be shown as crash-looping: not when it is known better."""
    return base not in (
        State.STOPPED,
        State.DRAINING,
        State.HUNG,
        State.UNREACHABLE,
        State.DENIED,
    )


def _age(seen: Observation) -> float | None:
    return seen.since_launch if seen.age is None else seen.age


def skew(heartbeat_at: float, written_at: float) -> float:
    """How far the host's clock is ahead of the file server's; only ever shown."""
    return heartbeat_at - written_at
