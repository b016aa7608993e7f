"""From raw looks to observations: what a watcher has seen of each host so far.

A look says what lies on the root now; a decision needs what it means: the last good beat when this
one cannot be read, its age on a clock that cannot jump, whether a stop intent covers the launch.
A process that keeps watching (`Continuous`) counts ages itself. One that looks once (`Single`) has
only the times of the files, which are one clock, the file server's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ctl.ages import Ages
from ctl.health import Beat, Limits, Observation
from ctl.memory import HostMemory, notice
from ctl.observe import Reading, Report
from fsworker.protocol import layout
from fsworker.protocol.records.run import LaunchMeta


@dataclass(frozen=True, slots=True)
class Sight:
    """One look as observations, the memory after it, and hosts that cannot be judged by it."""

    seen: tuple[Observation, ...]
    memory: dict[str, HostMemory]
    unclear: frozenset[str] = frozenset()


class Continuous:
    """The eyes of a process that keeps watching. `since`: from when on it has been watching."""

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self._since = now
        self._ages = Ages()
        self._last: dict[str, Beat] = {}

    def restart(self, now: float) -> None:
        """Count everything anew: nobody could be seen for a while."""
        self._since = now
        self._ages.restart(now)

    def see(
        self,
        report: Report,
        meta: LaunchMeta,
        memory: Mapping[str, HostMemory],
        allowed: frozenset[str],
        now: float,
    ) -> Sight:
        """What this look means."""
        seen, after = [], {}
        for host, reading in report.readings.items():
            if reading.beat:
                self._last[host] = reading.beat
            beat = self._last.get(host)
            # A file that is gone was removed by somebody; the beat that it held ages on.
            age = self._ages.age(host, (beat.incarnation, beat.seq), now) if beat else None
            fresh = age is not None and age <= self._limits.stale
            launch = _launch(meta, host)
            past = memory.get(host, HostMemory())
            new = notice(past, beat, launch, now, self._limits, fresh=fresh)
            after[host] = new
            told = _observation(report, meta, host, reading, new, allowed, beat, age)
            begun = self._since if new.launched_at is None else max(new.launched_at, self._since)
            born = None if new.born_at is None else now - max(new.born_at, self._since)
            seen.append(replace(told, since_launch=now - begun, since_birth=born))
        self._ages.keep(report.readings)
        self._last = {h: b for h, b in self._last.items() if h in report.readings}
        return Sight(tuple(seen), after)


class Single:
    """The eyes of a process that looks once."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def restart(self, now: float) -> None:
        """There is nothing that could be counted anew."""

    def see(
        self,
        report: Report,
        meta: LaunchMeta,
        memory: Mapping[str, HostMemory],
        allowed: frozenset[str],
        now: float,
    ) -> Sight:
        """What this look means. A host whose status has not been unreadable for long is unclear."""
        seen, after, unclear = [], {}, set()
        for host, reading in report.readings.items():
            age = None if reading.mtime is None else max(0.0, now - reading.mtime)
            fresh = age is not None and age <= self._limits.stale
            launch = _launch(meta, host)
            past = memory.get(host, HostMemory())
            new = notice(
                past,
                reading.beat,
                launch,
                now,
                self._limits,
                fresh=fresh,
                asked_at=report.meta_mtime,
            )
            bad_at = (new.bad_at or now) if reading.problem else None
            new = replace(new, bad_at=bad_at) if bad_at != new.bad_at else new
            if bad_at is not None and now - bad_at <= self._limits.stale:
                unclear.add(host)
            after[host] = new
            told = _observation(report, meta, host, reading, new, allowed, reading.beat, age)
            since = 0.0 if new.launched_at is None else now - new.launched_at
            born = None if new.born_at is None else now - new.born_at
            seen.append(replace(told, since_launch=since, since_birth=born))
        return Sight(tuple(seen), after, frozenset(unclear))


def _observation(
    report: Report,
    meta: LaunchMeta,
    host: str,
    reading: Reading,
    memory: HostMemory,
    allowed: frozenset[str],
    beat: Beat | None,
    age: float | None,
) -> Observation:
    launch = _launch(meta, host)
    stop = report.stops.get(host)
    return Observation(
        host,
        launch=launch,
        beat=beat,
        age=age,
        problem=reading.problem,
        blind=reading.blind,
        stop=stop is not None and layout.stop_covers(stop, launch),
        respawn=meta.respawn,
        allowed=host in allowed,
        owners=report.owners.get(host, ()),
        short_lives=memory.short_lives + memory.restarts,
        failed_starts=memory.failed_starts,
        start_failed=memory.start_failed,
    )


def _launch(meta: LaunchMeta, host: str) -> int:
    return meta.launches.get(host, 0)
