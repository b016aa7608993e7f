"""A host explained: its state and why, its launches and what was done to it, its last words."""

from __future__ import annotations

from ctl import beats, memory, statusview
from ctl.explain import prospects, sources
from ctl.explain.story import Story
from ctl.health import Limits, State
from ctl.memory import HostMemory
from ctl.roots import Run, unknown
from ctl.statusview import HostStatus, Look
from ctl.units import human
from fsworker.protocol import layout

EVENTS, WORDS = 12, 8


def explain(run: Run, look: Look, host: str) -> Story:
    """The story of one host of `look`."""
    status = next(h for h in look.hosts if h.host == host)
    story = Story("host", host, status.state)
    story.now = _now(run, look, status)
    story.history = sources.events(run, sources.about_host(host), EVENTS)
    story.last_words = _last_words(run, status)
    told, now = _memory(run, host)
    limits = Limits(stale=run.meta.heartbeat_stale if run.meta else 15.0)
    by_hand = f"ctl restart-host {host}"
    watching = sources.watching(run)
    if run.everybody and host in run.everybody.attached:
        story.next = prospects.of_member(status.state, watching, host, run.root)
    else:
        story.next = prospects.of_host(status.state, told, limits, now, watching, by_hand)
    story.facts = {"host": status.fields(), "watcher": watching.where or None}
    return story


def _now(run: Run, look: Look, status: HostStatus) -> list[str]:
    everybody = run.everybody
    launch = everybody.launches.get(status.host, 0) if everybody else 0
    lines = [f"{status.state} (reason {status.reason}), launch {launch}, home shard {status.shard}"]
    if status.words:
        lines.append(status.words)
    beat = status.beat
    if beat is None:
        lines.append("it has written no heartbeat that can be read")
    else:
        lines.append(f"last heartbeat {human(status.age)} ago, number {beat.seq} of this life")
        if beat.refused:
            lines.append(f"it refuses to work: {beat.refused}")
        busy = f"{beat.slots_busy} of {beat.slots_total} slots busy"
        lines.append(f"{busy}; {beat.done} tasks done, {beat.failed} failed in this life")
        if beat.last_progress is not None and look.backlog.pending.get(status.shard):
            lines.append(f"last progress {human(beat.last_progress)} before that heartbeat")
    held = look.backlog.claimed.get(status.shard, 0)
    waiting = look.backlog.pending.get(status.shard, 0)
    lines.append(f"shard {status.shard}: {waiting} batches wait, {held} are in somebody's hands")
    return lines


def _last_words(run: Run, status: HostStatus) -> list[str]:
    """The end of the worker's log, and of its wrapper's unless all is well."""
    worker = sources.last_lines(run, layout.host_file(status.host, "log"), WORDS)
    if status.state == State.READY:
        return worker
    wrapper = sources.last_lines(run, layout.host_file(status.host, "wrap.log"), WORDS)
    return [*(f"worker: {w}" for w in worker), *(f"wrapper: {w}" for w in wrapper)]


def _memory(run: Run, host: str) -> tuple[HostMemory, float]:
    """What the watcher remembers of the host, and the time now by the clock that it uses."""
    try:
        now = beats.server_now(run.store)
        known = memory.decode(run.store.read(memory.MEMORY), now)
    except FileNotFoundError:
        return HostMemory(), 0.0
    except OSError as error:
        raise unknown(error, run.root) from None
    return known.get(host, HostMemory()), now


def view(run: Run) -> Look:
    """One look at the whole run, with the run's own limit of staleness."""
    return statusview.look(run, run.meta.heartbeat_stale if run.meta else 15.0)
