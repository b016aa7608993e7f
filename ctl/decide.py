"""What a watcher does about what it sees: a pure function, so that it is tested as a table.

Three rules keep it from doing harm. Nobody is ended or replaced on silence alone: a probe must have
found it dead, or alive and silent. Nothing is done twice in a hurry: every host has a cool-down,
doubled with each restart that did not help. And when most hosts fall silent together, it is the
storage that is accused, not the hosts.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ctl.health import SUSPECT, Finding, Found, Limits, Observation, State, Verdict, judge
from ctl.memory import HostMemory, restart_due, restart_pause, try_due

BETWEEN_LIMIT = 150.0
"""Seconds a wrapper may need to start its worker again: twice its own longest pause and more."""

REPLACED_AFTER = 30.0
"""Seconds that claims of a life that is over may wait for the host's new life to return them."""

REVOKE_AGAIN = 30.0
ASK_AGAIN = 60.0
"""Seconds after which a host is asked again that was found well and still looks suspect."""

MASS = 3
"""How many hosts must fall silent together before the storage is suspected."""


class Do(enum.StrEnum):
    """What can be done about a host."""

    PROBE = "probe"
    REVOKE = "revoke"
    RESTART = "restart"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do about one host, and why.

    REVOKE: the claims of `owners`, `died` when their death is proven. STOP: TERM, then KILL; the
    host is started again once nothing is left. PROBE: `silent` says what it is suspected of.
    """

    do: Do
    host: str
    reason: str
    owners: tuple[str, ...] = ()
    died: bool = False
    silent: bool = True


@dataclass(frozen=True, slots=True)
class Decision:
    """What follows from one look: states, actions, what to remember, and the suspicion if any."""

    verdicts: tuple[Verdict, ...]
    actions: tuple[Action, ...]
    memory: dict[str, HostMemory]
    suspicion: str = ""
    suspects: frozenset[str] = field(default_factory=frozenset)


def decide(
    seen: Sequence[Observation],
    findings: Mapping[str, Finding],
    memory: Mapping[str, HostMemory],
    busy: Collection[str],
    now: float,
    limits: Limits,
) -> Decision:
    """What to do about every host. `busy`: hosts for which something is still being done."""
    verdicts = tuple(judge(o, findings.get(o.host), limits) for o in seen)
    suspects = silent_together(seen, verdicts, limits)
    actions: list[Action] = []
    after: dict[str, HostMemory] = {}
    for o, verdict in zip(seen, verdicts, strict=True):
        past = memory.get(o.host, HostMemory())
        if o.host in busy:
            after[o.host] = past
            continue
        after[o.host], todo = _one(o, verdict, past, now, limits)
        if suspects and verdict.base is not State.DEAD:
            after[o.host], todo = _only_probe(past, todo, now)
        actions += todo
    why = ""
    if suspects:
        why = f"{len(suspects)} of {len(seen)} hosts fell silent together: the storage is suspected"
        verdicts = tuple(
            replace(v, state=State.STORAGE_SUSPECT) if v.host in suspects else v for v in verdicts
        )
    return Decision(verdicts, tuple(actions), after, why, suspects)


def silent_together(
    seen: Sequence[Observation], verdicts: Sequence[Verdict], limits: Limits
) -> frozenset[str]:
    """The hosts whose common silence accuses the storage; none if it is explained otherwise.

    A host that is proven dead is explained. So is one that has been silent for ten times the limit:
    nobody may be kept from being helped for ever by a suspicion.
    """
    silent, beating = [], 0
    for o, verdict in zip(seen, verdicts, strict=True):
        if not o.allowed or o.stop or o.beat is None or o.age is None or o.beat.stopped:
            continue
        if o.age <= limits.stale:
            beating += 1
        elif verdict.base is not State.DEAD and o.age <= 10 * limits.stale:
            silent.append(o)
    if len(silent) < MASS or len(silent) <= beating:
        return frozenset()
    youngest = min(o.age or 0.0 for o in silent)
    together = [o.host for o in silent if (o.age or 0.0) - youngest <= limits.stale / 2]
    return frozenset(together) if len(together) >= max(MASS, beating + 1) else frozenset()


def learn(past: HostMemory, finding: Finding, now: float) -> HostMemory:
    """The memory after something was found: misses, trouble, and a wrapper between two lives."""
    if finding.found in (Found.DEAD, Found.ALIVE, Found.BARE):
        return replace(past, misses=0, tried_at=now, trouble_at=None)
    if finding.found is Found.BETWEEN:
        return _learn_between(past, finding, now)
    since = now if past.trouble_at is None else past.trouble_at
    return replace(past, misses=past.misses + 1, tried_at=now, trouble_at=since)


def _learn_between(past: HostMemory, finding: Finding, now: float) -> HostMemory:
    """The worker is dead and its wrapper is not. Each life that is found so counts as a death."""
    new = replace(past, misses=past.misses + 1, tried_at=now, trouble_at=None)
    life = finding.incarnation or finding.key[0]
    if life == past.between and past.between_at is not None:
        return new
    deaths = past.short_lives + int(past.between_at is not None)
    return replace(new, between=life, between_at=now, short_lives=deaths)


def _one(
    o: Observation, verdict: Verdict, past: HostMemory, now: float, limits: Limits
) -> tuple[HostMemory, list[Action]]:
    """What to remember of one host, and what to do about it."""
    if o.stop or not o.allowed:
        return _leave_alone(o, replace(past, owed="") if past.owed else past, now, limits)
    if past.owed:
        return _pay(o, past, now)
    base = verdict.base
    if base is State.DEAD:
        return _dead(o, verdict, past, now, limits)
    if base is State.HUNG or (base is State.UNWRAPPED and verdict.found is Found.BARE):
        return _hung(o, verdict, past, now, limits)
    if base in (State.UNREACHABLE, State.DENIED):
        return _out_of_reach(o, verdict, past, now, limits)
    if base in SUSPECT:
        return _suspect(o, verdict, past, now)
    return _healthy(o, base, past, now)


def _only_probe(
    past: HostMemory, todo: Sequence[Action], now: float
) -> tuple[HostMemory, list[Action]]:
    """While the storage is suspected: find out, and act on nobody."""
    probes = [a for a in todo if a.do is Do.PROBE]
    return (replace(past, tried_at=now) if probes else past), probes


def _leave_alone(
    o: Observation, past: HostMemory, now: float, limits: Limits
) -> tuple[HostMemory, list[Action]]:
    """Stopped on purpose, or no host of the run: never contacted, but its claims must not rot."""
    silence = o.since_launch if o.age is None else o.age
    if o.owners and silence > limits.stale + limits.fence and _revoke_due(past, now):
        why = f"silent for {silence:.0f} s and not to be started"
        return replace(past, revoked_at=now), [Action(Do.REVOKE, o.host, why, o.owners)]
    return past, []


def _pay(o: Observation, past: HostMemory, now: float) -> tuple[HostMemory, list[Action]]:
    """It was stopped by us and nothing is left of it: start it again."""
    actions = [Action(Do.REVOKE, o.host, past.owed, o.owners, died=True)] if o.owners else []
    actions.append(Action(Do.RESTART, o.host, past.owed))
    return _restarted(replace(past, owed=""), now), actions


def _dead(
    o: Observation, verdict: Verdict, past: HostMemory, now: float, limits: Limits
) -> tuple[HostMemory, list[Action]]:
    """Return its claims; start it again, unless its wrapper is about to."""
    actions, new = [], past
    if verdict.found is Found.BETWEEN:
        owners = tuple(x for x in o.owners if o.beat and x == o.beat.incarnation)
    else:
        owners = o.owners
    if owners and _revoke_due(past, now):
        actions.append(Action(Do.REVOKE, o.host, "dead", owners, died=True))
        new = replace(new, revoked_at=now)
    if verdict.found is not Found.BETWEEN:
        if restart_due(past, now, limits):
            new = _restarted(new, now)
            actions.append(Action(Do.RESTART, o.host, _why(verdict) + _how_often(new, limits)))
    elif past.between_at is not None and now - past.between_at > BETWEEN_LIMIT:
        if restart_due(past, now, limits):
            actions.append(Action(Do.STOP, o.host, "its wrapper does not start it again"))
            new = replace(new, restarted_at=now)
    elif try_due(past, now):
        actions.append(Action(Do.PROBE, o.host, "between two lives"))
        new = replace(new, tried_at=now)
    return new, actions


def _hung(
    o: Observation, verdict: Verdict, past: HostMemory, now: float, limits: Limits
) -> tuple[HostMemory, list[Action]]:
    """End it and start it again. What cannot be ended is fenced, and never doubled."""
    if verdict.found is Found.STUCK:
        return _out_of_reach(o, verdict, past, now, limits)
    if not restart_due(past, now, limits):
        return past, []
    return replace(past, restarted_at=now), [
        Action(Do.STOP, o.host, _why(verdict), silent=verdict.silent)
    ]


def _out_of_reach(
    o: Observation, verdict: Verdict, past: HostMemory, now: float, limits: Limits
) -> tuple[HostMemory, list[Action]]:
    """Ask again, ever less often. After a while others get its work; it may still be alive."""
    actions, new = [], past
    fenced = past.trouble_at is not None and now - past.trouble_at >= limits.fence
    if o.owners and fenced and _revoke_due(past, now):
        actions.append(Action(Do.REVOKE, o.host, f"{verdict.base} for too long", o.owners))
        new = replace(new, revoked_at=now)
    if try_due(past, now):
        actions.append(Action(Do.PROBE, o.host, str(verdict.base), silent=verdict.silent))
        new = replace(new, tried_at=now)
    return new, actions


def _suspect(
    o: Observation, verdict: Verdict, past: HostMemory, now: float
) -> tuple[HostMemory, list[Action]]:
    """Find out. One that says why it does not run is believed: its wrapper tries again."""
    refused = o.beat is not None and o.beat.refused and verdict.base is State.STUCK_STARTING
    tried = past.tried_at if verdict.found is not None else None
    soon = tried is not None and now - tried < ASK_AGAIN
    if refused or soon or not try_due(past, now):
        return past, []
    probe = Action(Do.PROBE, o.host, verdict.reason, silent=verdict.silent)
    return replace(past, tried_at=now), [probe]


def _healthy(
    o: Observation, base: State, past: HostMemory, now: float
) -> tuple[HostMemory, list[Action]]:
    """Nothing, but for claims that an earlier life of the host left behind."""
    new = past
    if past.trouble_at is not None or past.misses or past.between_at is not None:
        new = replace(past, trouble_at=None, misses=0, between="", between_at=None)
    if base is not State.READY or o.beat is None or past.ready_at is None:
        return new, []
    old = tuple(x for x in o.owners if x != o.beat.incarnation)
    names = " ".join(old)
    if names != past.replaced:
        # Not at first sight: a life has its folder before its first beat, and until then what
        # is seen to beat is its predecessor.
        return replace(new, replaced=names, replaced_at=now if old else None), []
    since = max(past.ready_at, now if past.replaced_at is None else past.replaced_at)
    if old and now - since >= REPLACED_AFTER and _revoke_due(past, now):
        return replace(new, revoked_at=now), [Action(Do.REVOKE, o.host, "replaced", old)]
    return new, []


def _restarted(past: HostMemory, now: float) -> HostMemory:
    return replace(past, restarts=past.restarts + 1, restarted_at=now, misses=0, trouble_at=None)


def _how_often(host: HostMemory, limits: Limits) -> str:
    """What to add about a restart that follows others which did not help."""
    if host.restarts < 2:
        return ""
    pause = restart_pause(host, limits)
    return f"; restart {host.restarts} in a row, the next not within {pause:.0f} s"


def _revoke_due(past: HostMemory, now: float) -> bool:
    return past.revoked_at is None or now - past.revoked_at >= REVOKE_AGAIN


def _why(verdict: Verdict) -> str:
    return f"{verdict.base}: {verdict.words}" if verdict.words else str(verdict.base)
