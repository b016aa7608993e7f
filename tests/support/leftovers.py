"""Finds processes that outlived a test, and ends them so that they spoil no other test.

They are recognised by what only they can carry: a token in their environment, or the test's own
folder in their environment or command line. A process that is just ending gets a moment. One that
has no more than the folder in its command line may be a person's `tail -f`: it is only named.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from tests.support.waiting import Spawned, gone

SESSION = "SHARDFLEET_TEST_SESSION"
"""The variable that every process of one test session inherits."""

GRACE = 10.0
"""Seconds in which a process that is ending may end."""


def _read(pid: str, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # gone, or another user's
        return b""


def _relatives() -> set[int]:
    """This process and all it descends from: whoever started the tests is no leftover."""
    found, pid = set(), os.getpid()
    while pid > 0 and pid not in found:
        found.add(pid)
        fields = _read(str(pid), "stat").rpartition(b")")[2].split()
        pid = int(fields[1]) if len(fields) > 1 else 0
    return found


def _matching(pattern: re.Pattern[bytes], names: tuple[str, ...]) -> list[int]:
    mine = _relatives()
    pids = (int(n) for n in os.listdir("/proc") if n.isdigit() and int(n) not in mine)
    return [p for p in pids if any(pattern.search(_read(str(p), n)) for n in names)]


def _ours(pid: int, folder: bytes) -> bool:
    environ = _read(str(pid), "environ")
    return folder in environ or SESSION.encode() in environ or b"FLEET_RUN=" in environ


def with_environ(entry: str) -> list[int]:
    """The processes that inherited `KEY=VALUE`."""
    return _matching(
        re.compile(rb"(?:^|\0)" + re.escape(entry.encode()) + rb"(?:\0|$)"), ("environ",)
    )


def that_name(folder: str) -> list[int]:
    """The processes whose command line or environment names `folder` or something in it."""
    exact = re.escape(os.fsencode(folder)) + rb"(?![A-Za-z0-9_.-])"
    return _matching(re.compile(exact), ("cmdline", "environ"))


def end(pids: list[int], folder: str = "") -> list[str]:
    """Kill those of `pids` that do not end by themselves; what they were, in words."""
    end_at = time.monotonic() + GRACE
    while (pids := [p for p in pids if not gone(p)]) and time.monotonic() < end_at:
        time.sleep(0.02)
    told = []
    with Spawned() as spawned:
        for pid in pids:
            words = _read(str(pid), "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
            told.append(f"pid {pid} ({words or 'no command line'})")
            if _ours(pid, os.fsencode(folder or SESSION)):
                spawned.track(pid)
    return told
