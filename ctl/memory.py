"""What a watcher remembers of each host from one look to the next.

Back-off, cool-down and the count of short lives must survive a watcher that is restarted, and a
cron job that is a new process every time; otherwise either would restart a broken host in a storm.
So the memory is a record of its own on the root, and pure functions carry it forward. Its times
are seconds on the file server's clock: the one clock that every watcher of a root shares. A time
that lies in the future was written before that clock was set back, and counts as now.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace

from ctl.health import SUSPECT, Beat, Limits, State, Verdict
from fsworker.protocol.layout import CTL

MEMORY = CTL + "/watch.memory.json"
BACKOFF_CAP = 900.0
FOUND_OUT = frozenset(
    {State.DEAD, State.HUNG, State.UNREACHABLE, State.DENIED, State.CRASH_LOOPING}
)
"""States that only a watcher can know."""

PROBE_FIRST, PROBE_CAP = 10.0, 300.0


@dataclass(frozen=True, slots=True)
class HostMemory:
    """What is remembered of one host. Times are None while there is nothing to remember.

    `ready_at`: since when this life has been ready. `restarts`: restarts by a watcher since the
    last healthy stretch. `misses`: probes and stops in a row that settled nothing.
    `trouble_at`: since when the host has been out of reach or could not be ended.
    `between_at`: since when `between` (an incarnation) has been dead with its wrapper alive.
    `replaced_at`: since when there have been claims of lives (`replaced`) that do not beat.
    `bad_at`: since when its status has not been readable, for one who looks once.
    `owed`: it was stopped to be started again, and why. `state` and `words`: what it was last said
    to be, if that was a reason to worry.
    """

    launch: int = 0
    launched_at: float | None = None
    incarnation: str = ""
    born_launch: int = 0
    born_at: float | None = None
    ready_at: float | None = None
    short_lives: int = 0
    failed_starts: int = 0
    start_failed: bool = False
    restarts: int = 0
    restarted_at: float | None = None
    misses: int = 0
    tried_at: float | None = None
    trouble_at: float | None = None
    between: str = ""
    between_at: float | None = None
    revoked_at: float | None = None
    replaced: str = ""
    replaced_at: float | None = None
    bad_at: float | None = None
    owed: str = ""
    state: str = ""
    words: str = ""


Memory = Mapping[str, HostMemory]


def notice(
    past: HostMemory,
    beat: Beat | None,
    launch: int,
    now: float,
    limits: Limits,
    *,
    fresh: bool,
    asked_at: float | None = None,
) -> HostMemory:
    """The memory after a look: lives, launches and healthy stretches are counted here.

    `asked_at`: when a launch that is new to us was asked for, if that is known; else now.
    """
    new = past
    if launch != new.launch or new.launched_at is None:
        # The first restart after a healthy stretch says nothing about how long a start takes.
        slow = new.restarts > 1 and new.ready_at is None and not new.start_failed
        new = replace(
            new,
            launch=launch,
            launched_at=now if asked_at is None else min(asked_at, now),
            start_failed=False,
            failed_starts=new.failed_starts + int(slow and launch != new.launch),
        )
    if beat is None:
        return new
    if beat.incarnation != new.incarnation:
        new = _born(new, beat, now, limits)
    if not fresh or not beat.ready:
        return replace(new, ready_at=None) if new.ready_at is not None and not fresh else new
    if new.ready_at is None:
        return replace(new, ready_at=now)
    if now - new.ready_at >= limits.healthy and (
        new.short_lives or new.restarts or new.failed_starts
    ):
        return replace(new, short_lives=0, restarts=0, failed_starts=0)
    return new


def _born(past: HostMemory, beat: Beat, now: float, limits: Limits) -> HostMemory:
    """A new life was seen. The one before counts as short only if nobody asked for the change."""
    lives = 0
    if past.incarnation and past.born_at is not None and beat.launch == past.born_launch:
        short = now - past.born_at < limits.healthy or past.ready_at is None
        lives = past.short_lives + 1 if short else 0
    elif beat.launch != past.born_launch:
        lives = past.short_lives  # a restart is no proof of health
    return replace(
        past,
        incarnation=beat.incarnation,
        born_launch=beat.launch,
        born_at=now,
        ready_at=None,
        short_lives=lives,
        between="",
        between_at=None,
    )


def restart_due(host: HostMemory, now: float, limits: Limits) -> bool:
    """Whether enough time has passed since the last restart: longer after each in a row."""
    if host.restarted_at is None:
        return True
    return now - host.restarted_at >= restart_pause(host, limits)


def restart_pause(host: HostMemory, limits: Limits) -> float:
    """Seconds that must lie between the last restart and the next."""
    cap = max(BACKOFF_CAP, limits.cooldown)
    return _doubled(limits.cooldown, host.restarts - 1, cap)


def try_due(host: HostMemory, now: float) -> bool:
    """Whether a probe or a stop may be tried again: later after each that settled nothing."""
    if host.tried_at is None or host.misses == 0:
        return True
    return now - host.tried_at >= _doubled(PROBE_FIRST, host.misses - 1, PROBE_CAP)


def _doubled(first: float, times: int, cap: float) -> float:
    """`first`, doubled so many times, but never above `cap`."""
    return min(first * float(1 << min(max(times, 0), 16)), cap)


def informed(verdict: Verdict, host: HostMemory) -> Verdict:
    """What a look at the root says, with what the watcher found out about the same silence.

    For `status`, which contacts nobody and would call stale what is known to be denied.
    """
    if verdict.base not in SUSPECT or host.state not in FOUND_OUT:
        return verdict
    return replace(verdict, state=State(host.state), words=host.words)


def encode(memory: Memory) -> bytes:
    """The memory as the bytes of its file: of each host what differs from the default."""
    plain = HostMemory()
    hosts = {
        name: {k: v for k, v in asdict(host).items() if v != getattr(plain, k)}
        for name, host in sorted(memory.items())
    }
    return json.dumps({"format": "1.0", "hosts": hosts}).encode() + b"\n"


def decode(data: bytes, now: float) -> dict[str, HostMemory]:
    """The memory in `data`; what is damaged is forgotten, for it is only ever an economy."""
    try:
        hosts = json.loads(data)["hosts"]
        return {str(name): _host(values, now) for name, values in hosts.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _host(values: Mapping[str, object], now: float) -> HostMemory:
    """One host's memory; a field of another type than ours, or unknown, is left out."""
    good: dict[str, object] = {}
    for f in fields(HostMemory):
        value = values.get(f.name)
        if f.type == "float | None":
            if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value:
                good[f.name] = min(float(value), now)
        elif type(value).__name__ == f.type:
            good[f.name] = value
    return HostMemory(**good)  # type: ignore[arg-type]


def forget(memory: Memory, hosts: Iterable[str]) -> dict[str, HostMemory]:
    """The memory of these hosts only: a watcher that runs for weeks must not grow."""
    keep = set(hosts)
    return {name: host for name, host in memory.items() if name in keep}
