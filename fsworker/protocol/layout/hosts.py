"""What lies in the root for a host, and the requests to cancel."""

from __future__ import annotations

import re
from typing import NamedTuple

from fsworker.protocol.layout.names import (
    CANCEL,
    CTL,
    DOTTED,
    NAME,
    NUM,
    STATUS,
    decode,
    dotted,
    is_foreign,
)

_LAUNCH_NAME = re.compile(
    rf"(?P<host>{DOTTED})\.launch-(?P<number>{NUM})-(?P<unique>[0-9a-f]{{8}})"
)
_CANCEL_NAME = re.compile(rf"(?P<target>{NAME})~[0-9a-f]{{8}}")


def status_path(host: str) -> str:
    """A host's heartbeat."""
    return f"{STATUS}/{dotted(host)}.json"


def parse_status_name(name: str) -> str | None:
    """The host whose heartbeat has this name."""
    stem, dot, suffix = name.rpartition(".")
    if not dot or suffix != "json" or is_foreign(name):
        return None
    try:
        return decode(stem, dotted)
    except ValueError:
        return None


def host_file(host: str, suffix: str) -> str:
    """A host's file under `ctl/`: suffix pid, wrap.pid, identity.json, code.json, stop, log, …"""
    return f"{CTL}/{spelled_in_ctl(host)}.{suffix}"


def spelled_in_ctl(host: str) -> str:
    """A host's name as the names of its files under `ctl/` begin.

    A host called `watch` or `x.wrap` is spelled so that its files are neither the watcher's nor
    those of the wrapper of `x`.
    """
    part = dotted(host)
    if part == "watch":
        return "%77atch"
    if part.endswith(".wrap"):
        return part.removesuffix(".wrap") + "%2Ewrap"
    return part


class LaunchToken(NamedTuple):
    """The one file that says how far the launches of a host are numbered, and by whose hand."""

    host: str
    number: int
    unique: str

    @property
    def path(self) -> str:
        """Where it lies."""
        return host_file(self.host, f"launch-{self.number}-{self.unique}")


def parse_launch_token(name: str) -> LaunchToken | None:
    """The token that a file in `ctl/` is."""
    m = _LAUNCH_NAME.fullmatch(name) if ".launch-" in name else None
    if m is None or is_foreign(name):
        return None
    try:
        host = decode(m["host"], spelled_in_ctl)
        return LaunchToken(host, int(m["number"]), m["unique"])
    except ValueError:
        return None


def stop_covers(content: str, launch: int) -> bool:
    """Whether a stop intent means this launch: it names the highest it covers, empty means all.

    What is neither empty nor a number was written by hand, to stop something: it covers all.
    """
    text = content.strip()
    return not (text.isascii() and text.isdigit()) or launch <= int(text)


def cancel_path(target: str, unique: str) -> str:
    """A request to cancel. `target`, a batch or an encoded stream, says to whom it matters."""
    return f"{CANCEL}/{target}~{unique}"


def parse_cancel_name(name: str) -> str | None:
    """The target of the request that a file in `ctl/cancel/` is."""
    m = _CANCEL_NAME.fullmatch(name)
    return m["target"] if m else None
