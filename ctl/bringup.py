"""Starting workers on hosts and seeing them become ready; or stopping whatever was started.

A start either ends with every worker ready or with nothing of it running: a half-started fleet is
what people find days later. Readiness is read from the root by listing, and belongs to a launch
number, so that the beat of an earlier life is never taken for the new one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ctl import launching, render, stopping
from ctl.fleet import fan_out
from ctl.launchers.base import Launcher, Started
from ctl.launchers.errors import LaunchError
from fsworker.errors import DeadlineExceeded, FleetError, FormatError, Refused
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.records.run import Heartbeat, LaunchMeta

log = logging.getLogger(__name__)

POLL = 0.2
UNDO_GRACE = 30.0
"""Seconds that workers get to end when the start that they belong to failed."""


@dataclass(frozen=True)
class Crew:
    """The hosts of one start, how they are reached, and where news of them goes.

    `say` takes lines for stdout, `complain` those for stderr.
    """

    store: Store
    meta: LaunchMeta
    hosts: Sequence[str]
    launcher: Launcher
    width: int
    say: Callable[[str], None]
    complain: Callable[[str], None]


def bring_up(crew: Crew, ready_timeout: float) -> dict[str, Started]:
    """Start all hosts and wait until they are ready; on any failure stop them all and raise.

    The time to be ready begins when the last host was launched: a long list takes its time.
    """
    spared = Spared()
    try:
        started = _launch(crew, spared)
        await_ready(crew, ready_timeout)
    except BaseException as error:
        log.info("the start failed: %s", error)
        _undo(crew, spared)
        raise
    return started


@dataclass
class Spared:
    """Hosts that need no undoing. `others`: somebody else's launch runs there, and must go on.

    `idle`: it is certain that nothing was started there.
    """

    others: set[str] = field(default_factory=set)
    idle: set[str] = field(default_factory=set)

    def note(self, host: str, error: FleetError) -> None:
        """Learn from why a host did not start."""
        if isinstance(error, LaunchError) and error.not_ours:
            self.others.add(host)
        elif isinstance(error, LaunchError) and error.nothing_ran:
            self.idle.add(host)


def _launch(crew: Crew, spared: Spared) -> dict[str, Started]:
    lock = threading.Lock()

    def start(host: str) -> Started:
        try:
            started = crew.launcher.start(host, launching.request_for(crew.meta, host))
        except FleetError as error:
            with lock:
                spared.note(host, error)
                why = stopping.reason_of(host, error)
                crew.complain(f"FAIL start {host} rc={error.exit_code} {why}")
            raise
        with lock:
            crew.say(started_line(host, started, crew.meta.respawn))
            for warning in started.warnings:
                crew.complain(f"warning: host {host}: {render.clean(warning)}")
        return started

    outcomes = fan_out(crew.hosts, start, width=crew.width)
    failed = [outcome for outcome in outcomes if outcome.error]
    if failed:
        raise _summary(len(crew.hosts), [(o.host, o.error) for o in failed if o.error])
    return {outcome.host: outcome.value for outcome in outcomes if outcome.value}


def started_line(host: str, started: Started, respawn: bool) -> str:
    """The line that scripts read the pids from."""
    wrap, worker = started.wrap_pid or "-", started.worker_pid or "-"
    return f"started host={host} wrap_pid={wrap} worker_pid={worker} respawn={int(respawn)}"


def _summary(count: int, failed: Sequence[tuple[str, BaseException]]) -> FleetError:
    """One error for all hosts that failed; of the kind that they have in common."""
    host, first = failed[0]
    if len(failed) == 1 and isinstance(first, FleetError):
        return first
    codes = {getattr(error, "exit_code", FleetError.exit_code) for _, error in failed}
    code = codes.pop() if len(codes) == 1 else FleetError.exit_code
    text = f"{len(failed)} of {count} hosts did not start, the first: {render.clean(first)}"
    kinds = (DeadlineExceeded, Refused)
    kind = next((kind for kind in kinds if kind.exit_code == code), FleetError)
    return kind(text, host=host)


def await_ready(crew: Crew, timeout: float) -> None:
    """Wait until every host's worker of this launch is ready.

    Raises Refused with the worker's own sentence, or DeadlineExceeded naming who is not ready.
    """
    end = time.monotonic() + timeout
    waiting = dict.fromkeys(crew.hosts, "no heartbeat yet")
    while waiting:
        waiting = _still_waiting(crew, waiting)
        if waiting and time.monotonic() >= end:
            raise _not_ready(crew, waiting)
        time.sleep(POLL if waiting else 0)


def _still_waiting(crew: Crew, waiting: dict[str, str]) -> dict[str, str]:
    """Those of the waiting hosts that are not ready, and what they lack."""
    try:
        names = set(crew.store.scan(layout.STATUS))
    except OSError as error:  # storage that is away for a moment is no host's failure
        return dict.fromkeys(waiting, f"cannot list {crew.store.path(layout.STATUS)}: {error}")
    states = {h: _readiness(crew.store, h, crew.meta.launches[h], names) for h in waiting}
    return {host: state for host, state in states.items() if state is not None}


def _not_ready(crew: Crew, waiting: dict[str, str]) -> DeadlineExceeded:
    crew.complain("FAIL: workers not ready in time")
    some = "; ".join(f"{host}: {why}" for host, why in list(waiting.items())[:4])
    path = crew.store.path(layout.host_file(next(iter(waiting)), "log"))
    text = f"{len(waiting)} of {len(crew.hosts)} workers not ready in time ({some}): see {path}"
    return DeadlineExceeded(text, path=path)


def _readiness(store: Store, host: str, launch: int, names: set[str]) -> str | None:
    """None when the worker of this launch is ready, else what it lacks. Refused if it declines."""
    rel = layout.status_path(host)
    if rel.rpartition("/")[2] not in names:
        return "no heartbeat yet"
    try:
        beat: Heartbeat = Heartbeat.from_json(store.read(rel), store.path(rel))
    except FileNotFoundError:
        return "no heartbeat yet"
    except (OSError, FormatError) as error:
        return str(error)
    if beat.host != host or beat.launch != launch:
        return f"no heartbeat of launch {launch} yet"
    if beat.refused:
        raise Refused(f"host {host}: {render.clean(beat.refused)}", host=host)
    if beat.stopped or beat.draining:
        return "it stopped again"
    return None if beat.ready else "it beats but is not ready"


def _undo(crew: Crew, spared: Spared) -> None:
    """Stop everything of this start, also what may come up only now; nothing of anybody else's.

    Where nothing was started only the intent is written: an earlier try whose answer was lost may
    have left a worker there after all, and ends by it.
    """
    ours = [host for host in crew.hosts if host not in spared.others]
    hosts = [host for host in ours if host not in spared.idle]
    try:
        unwritten = stopping.try_intents(crew.store, crew.meta, ours)
        for sentence in unwritten.values() if not hosts else ():
            crew.complain(f"warning: {sentence}")
        if not hosts:
            return
        crew.complain(f"stopping what was started (grace {UNDO_GRACE:g} s)")
        report = stopping.stop_hosts(
            crew.store, crew.meta, hosts, crew.launcher, UNDO_GRACE, None, crew.width
        )
    except (FleetError, OSError) as error:
        crew.complain(f"could not stop what was started: {render.clean(error)}")
        return
    for sentence in report.problems:
        crew.complain(sentence)
