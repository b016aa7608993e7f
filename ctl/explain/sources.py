"""Where a story comes from: the run's events, the ends of its logs, and its watcher.

What cannot be read is left out: an explanation with a gap is better than none.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

from ctl import watcher
from ctl.explain.prospects import Watching
from ctl.explain.story import Event
from ctl.roots import Run
from fsworker.identity import RUNNING, Place, state_of
from fsworker.protocol import layout

EVENTS_READ, LOG_READ = 4 << 20, 256 << 10
"""Bytes of the events and of each worker's log that are searched, from the end."""
_PLAIN = ("at", "by", "event", "host", "hosts", "names")


def events(
    run: Run, wanted: Callable[[dict[str, Any]], bool], most: int, *, hosts: bool = False
) -> list[Event]:
    """The last `most` events that are `wanted`, oldest first; with `hosts`, of which each was."""
    found = []
    for event in filter(wanted, _events(run)):
        whose = f"{_text(event['host'])}: " if hosts and "host" in event else ""
        found.append(Event(_text(event.get("at")), whose + _words(event)))
    return found[-most:]


def about_host(host: str) -> Callable[[dict[str, Any]], bool]:
    """Whether an event concerns this host."""

    def wanted(event: dict[str, Any]) -> bool:
        hosts = event.get("hosts")
        return event.get("host") == host or (isinstance(hosts, list) and host in hosts)

    return wanted


def about_batch(batch: str) -> Callable[[dict[str, Any]], bool]:
    """Whether an event concerns this batch: somebody's claims were returned, and it was there."""

    def wanted(event: dict[str, Any]) -> bool:
        names = event.get("names")
        return isinstance(names, list) and batch in names

    return wanted


def logged(run: Run, batch: str, most: int) -> list[Event]:
    """What the workers of the run's hosts logged last about a batch, oldest first."""
    whole = re.compile(rf"(?<![\w.-]){re.escape(batch)}(?![\w-])")
    found = []
    for host in run.hosts:
        text = _tail(run, layout.host_file(host, "log"), LOG_READ).decode("utf-8", "replace")
        found += [(line, host) for line in filter(whole.search, text.splitlines())]
    # By their own clocks and zones: where these differ, so does the order.
    return [Event(None, f"{host} logged: {line}") for line, host in sorted(found)[-most:]]


def last_lines(run: Run, path: str, most: int) -> list[str]:
    """The last lines of a log under the root."""
    text = _tail(run, path, 64 << 10).decode("utf-8", "replace")
    return [line for line in text.splitlines() if line.strip()][-most:]


def watching(run: Run) -> Watching:
    """The run's watcher, as its identity file and this machine's processes tell."""
    try:
        who = watcher.read_identity(run.store)
    except OSError:
        return Watching()
    if who is None:
        return Watching()
    where = f"pid {who.pid} on {who.host}"
    state = state_of(who, Place.here(who.host))
    if state == "unknown":
        return Watching(where)
    return Watching(where, True) if state in RUNNING else Watching()


def _events(run: Run) -> Iterator[dict[str, Any]]:
    for line in _tail(run, layout.EVENTS, EVENTS_READ).splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # cut by the bound, or damaged
        if isinstance(event, dict):
            yield event


def _words(event: dict[str, Any]) -> str:
    extra = ", ".join(f"{k} {_text(v)}" for k, v in event.items() if k not in _PLAIN)
    what = f"{event.get('event', '?')} (by {event.get('by', '?')})"
    return f"{what}: {extra}" if extra else what


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _tail(run: Run, path: str, size: int) -> bytes:
    """The end of a file, from a fresh open: logs may be larger than what is read at once."""
    try:
        fd = os.open(run.store.path(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.pread(fd, size, max(0, os.fstat(fd).st_size - size))
    except OSError:
        return b""
    finally:
        os.close(fd)
