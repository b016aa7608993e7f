"""One look at a run from its root alone: no host is contacted, no clock of a host is believed.

Login nodes are slow and `status` is called in loops, so a look costs a fixed number of round trips
a host. Ages compare a heartbeat's time of change with that of a probe file written beside it: both
are the file server's. The states are those of `health`, so that `status` and `watch` agree; the
reasons and field names are those that scripts already match on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ctl import health, memory
from ctl.beats import EVERY, read_beat, server_clock
from ctl.memory import HostMemory
from ctl.roots import Run, unknown
from fsworker.protocol import layout
from fsworker.protocol.records.run import Heartbeat

RUNNING, DEGRADED, NOT_RUNNING, UNKNOWN = "running", "degraded", "not running", "unknown"
EXIT_CODES = {RUNNING: 0, DEGRADED: 1, NOT_RUNNING: 3, UNKNOWN: 4}


@dataclass(frozen=True)
class HostStatus:
    """What one look says about one host; times in seconds."""

    host: str
    shard: int
    reason: str
    state: str
    words: str = ""
    age: float | None = None
    skew: float | None = None
    beat: Heartbeat | None = None
    raw: dict[str, Any] | None = None
    pid: int | None = None
    wrap_pid: int | None = None

    @property
    def ok(self) -> bool:
        """Whether the worker beats, is ready, and is who it should be."""
        return self.reason == "ok"

    @property
    def gpus(self) -> list[str]:
        """The GPUs of each slot, as a mask each; none where slots share out none."""
        found = self.beat.inventory.get("slot_gpus") if self.beat else None
        return [str(mask) for mask in found] if isinstance(found, list) else []

    def fields(self) -> dict[str, Any]:
        """The host's JSON object."""
        beat = self.beat
        return {
            "host": self.host,
            "ok": self.ok,
            "reason": self.reason,
            "heartbeat_age_s": None if self.age is None else round(self.age, 3),
            "status_pid": beat.pid if beat else None,
            "ready": beat.ready if beat else False,
            "pidfile": self.pid,
            "wrap_pidfile": self.wrap_pid,
            "state": self.state,
            "words": self.words,
            "shard": self.shard,
            "gpus": self.gpus,
            "clock_skew_s": None if self.skew is None else round(self.skew, 3),
            "raw": self.raw,
        }


@dataclass(frozen=True)
class Backlog:
    """Batches by shard: waiting, and in somebody's hands."""

    pending: dict[int, int] = field(default_factory=dict)
    claimed: dict[int, int] = field(default_factory=dict)

    def rows(self, shard_count: int) -> list[dict[str, int]]:
        """One JSON object a shard, those without work included."""
        shards = sorted({*range(shard_count), *self.pending, *self.claimed})
        return [
            {"shard": s, "pending": self.pending.get(s, 0), "claimed": self.claimed.get(s, 0)}
            for s in shards
        ]


@dataclass(frozen=True)
class Look:
    """The state of a whole run at one moment. `refusal`: why its root takes no writes."""

    hosts: tuple[HostStatus, ...]
    backlog: Backlog
    strangers: tuple[str, ...] = ()
    refusal: str = ""

    @property
    def state(self) -> str:
        """The run's state, in the words that exit codes stand for."""
        if self.hosts and all(h.ok and h.state == health.State.READY for h in self.hosts):
            return RUNNING
        if any(_lives(h) for h in self.hosts):
            return DEGRADED
        bad = self.hosts and all(h.reason == "status_bad" for h in self.hosts)
        # Who beats cannot be told where no beat can be written.
        mute = self.refusal and any(h.reason == "heartbeat_stale" for h in self.hosts)
        return UNKNOWN if bad or mute else NOT_RUNNING

    def totals(self) -> dict[str, int]:
        """Sums over all hosts and shards."""
        beats = [h.beat for h in self.hosts if h.beat]
        return {
            "hosts": len(self.hosts),
            "ok": sum(h.ok for h in self.hosts),
            "slots": sum(b.slots_total for b in beats),
            "slots_busy": sum(b.slots_busy for b in beats),
            "job_slots": sum(b.jobs_total for b in beats),
            "jobs": sum(b.jobs_busy for b in beats),
            "pending": sum(self.backlog.pending.values()),
            "claimed": sum(self.backlog.claimed.values()),
            "done": sum(b.done for b in beats),
            "failed": sum(b.failed for b in beats),
            "timeouts": sum(b.timeouts for b in beats),
        }


def look(run: Run, stale: float) -> Look:
    """Everything about `run` now. UnknownState when its root does not answer."""
    try:
        now, refusal = server_clock(run.store)
        names = set(run.store.scan(layout.CTL))
        beats = set(run.store.scan(layout.STATUS))
        since = now - _launched_at(run, now)
        told = _told_by_watcher(run, names, now)
        hosts = tuple(
            _host(run, h, now, since, stale, names, beats, told.get(h, HostMemory()))
            for h in run.hosts
        )
        known = {layout.status_path(h).rpartition("/")[2] for h in run.hosts}
        strangers = sorted(n for n in beats - known if layout.parse_status_name(n) is not None)
        return Look(hosts, backlog(run), tuple(strangers), refusal)
    except OSError as error:
        raise unknown(error, run.root) from None


def alive_hosts(run: Run, stale: float) -> list[str]:
    """The hosts whose heartbeat is fresh and does not say that they stopped."""
    return [h.host for h in look(run, stale).hosts if _lives(h)]


def backlog(run: Run) -> Backlog:
    """How many batches wait and are claimed, by shard."""
    pending: dict[int, int] = {}
    for name in _scan(run, layout.INBOX):
        if name.isascii() and name.isdigit():
            shard = int(name)
            found = _scan(run, layout.inbox_dir(shard))
            pending[shard] = sum(layout.parse_inbox_name(shard, n) is not None for n in found)
    claimed: dict[int, int] = {}
    for owner in filter(None, map(layout.parse_owner, _scan(run, layout.CLAIMS))):
        for token in filter(None, map(layout.parse_claim_name, _scan(run, owner.folder))):
            claimed[token.shard] = claimed.get(token.shard, 0) + 1
    return Backlog(pending, claimed)


def read_pid(run: Run, host: str, suffix: str) -> int | None:
    """The bare number in a pid file; None for anything else. For showing, never for signalling."""
    try:
        text = run.store.read(layout.host_file(host, suffix), limit=64).strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and int(text) > 1 else None


def stop_intent(run: Run, host: str, launch: int, names: Iterable[str]) -> bool:
    """Whether a stop intent covers a host's launch; `names` is a listing of `ctl/`."""
    path = layout.host_file(host, "stop")
    if path.rpartition("/")[2] not in names:
        return False
    try:
        content = run.store.read(path, limit=4096).decode("utf-8", "replace")
    except OSError:
        return False
    return layout.stop_covers(content, launch)


def _lives(host: HostStatus) -> bool:
    fresh = host.reason in ("ok", "not_ready") and host.beat is not None
    return fresh and not (host.beat and host.beat.stopped)


def _host(
    run: Run,
    host: str,
    now: float,
    since_launch: float,
    stale: float,
    names: set[str],
    beats: set[str],
    told: HostMemory,
) -> HostStatus:
    shard = next(w.shard for w in run.workers if w.host == host)
    everybody = run.everybody
    launch = everybody.launches.get(host, 0) if everybody else 0
    beat, raw, mtime, problem = read_beat(run.store, host, beats)
    age = None if mtime is None else max(0.0, now - mtime)
    seen = health.Observation(
        host,
        launch=launch,
        since_launch=since_launch,
        since_birth=beat.seq * EVERY if beat else None,
        beat=health.Beat.of(beat) if beat else None,
        age=age,
        problem=problem,
        stop=stop_intent(run, host, launch, names),
        respawn=run.meta.respawn if run.meta else True,
    )
    limits = health.Limits(stale=stale, ready=run.meta.ready_timeout if run.meta else 60.0)
    verdict = memory.informed(health.judge(seen, None, limits), told)
    return HostStatus(
        host,
        shard,
        _reason(beat, age, problem, stale),
        str(verdict.state),
        verdict.words,
        age,
        health.skew(beat.heartbeat_at, mtime) if beat and mtime is not None else None,
        beat,
        raw,
        read_pid(run, host, "pid") if _named(host, "pid", names) else None,
        read_pid(run, host, "wrap.pid") if _named(host, "wrap.pid", names) else None,
    )


def _reason(beat: Heartbeat | None, age: float | None, problem: str | None, stale: float) -> str:
    if problem:
        return "status_bad"
    if beat is None or age is None:
        return "status_missing"
    if age > stale:
        return "heartbeat_stale"
    usable = beat.ready and not (beat.stopped or beat.draining or beat.refused)
    return "ok" if usable else "not_ready"


def _told_by_watcher(run: Run, names: set[str], now: float) -> dict[str, HostMemory]:
    """What a watcher found out by asking hosts, which a look at the root cannot know."""
    if memory.MEMORY.rpartition("/")[2] not in names:
        return {}
    try:
        return memory.decode(run.store.read(memory.MEMORY), now)
    except OSError:
        return {}


def _named(host: str, suffix: str, names: set[str]) -> bool:
    return layout.host_file(host, suffix).rpartition("/")[2] in names


def _launched_at(run: Run, now: float) -> float:
    try:
        return run.store.read_with_mtime(layout.LAUNCH_META)[1]
    except FileNotFoundError:
        return now


def _scan(run: Run, folder: str) -> list[str]:
    """The names in a folder; none when it was removed meanwhile or is a file."""
    try:
        return run.store.scan(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
