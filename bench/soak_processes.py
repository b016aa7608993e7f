"""The processes of the soak: who is what, proven to be ours, and killed by a sure handle.

All of them inherit a token that no other process has. A process is opened first, then asked for
its token, then killed by that same handle, so that a pid that was used again is nobody's end.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace

from fsworker import procfs

TOKEN = "SOAK_TOKEN"
KINDS = ("slot", "zygote", "worker", "wrapper", "client")
ENDS_LIFE = ("worker", "wrapper")
BURST = 3
"""Deaths of a host's worker or wrapper in a row."""
HEALTHY = 40.0
"""Seconds of one life that reset the product's back-offs, and then some."""


@dataclass(frozen=True)
class Process:
    """One process of a host. `life` is the incarnation that it belongs to, where it has one."""

    kind: str
    host: str
    pid: int
    life: str = ""


def members(token: str) -> list[int]:
    """All living processes that inherited the token."""
    found = []
    for pid in procfs.pids():
        stat = procfs.read_stat(pid)
        if stat and stat.state not in "ZXx" and _is_ours(pid, token):
            found.append(pid)
    return found


def of_hosts(token: str) -> list[Process]:
    """What runs on the hosts, by kind."""
    found, commands = [], {pid: command(pid) for pid in members(token)}
    for pid, words in commands.items():
        entries = dict(e.split(b"=", 1) for e in procfs.environ(pid) if b"=" in e)
        stat = procfs.read_stat(pid)
        kind = _kind(words, commands.get(stat.ppid, "") if stat else "")
        host = entries.get(b"FLEET_HOST", b"").decode()
        if kind and not host:
            host = _word_after(pid, "--host")
        if kind and host:
            found.append(Process(kind, host, pid, entries.get(b"FLEET_INCARNATION", b"").decode()))
    lives = {p.host: p.life for p in found if p.kind == "worker"}
    found = [replace(p, life=p.life or lives.get(p.host, "")) for p in found]
    return sorted(found, key=lambda p: (p.host, p.kind, p.pid))


def _kind(command: str, parent: str) -> str:
    if "-m fsworker.respawn" in command:
        return "wrapper"
    if "-m fsworker run" in command:
        return "worker"
    if "-m fsworker.slots.zygote" in command:
        return "slot" if "-m fsworker.slots.zygote" in parent else "zygote"
    return ""


def choose(draw: random.Random, weights: dict[str, float], there: list[Process]) -> Process | None:
    """Whom to kill next: a kind by weight, then one of that kind; None when there is none.

    As many numbers are drawn whoever is there, so that a seed means the same sequence of kinds.
    """
    kind = draw.choices(list(weights), list(weights.values()))[0]
    at = draw.random()
    found = [p for p in there if p.kind == kind]
    return found[int(at * len(found))] if found else None


class Mercy:
    """Lets a host live for a healthy stretch after a burst of deaths.

    Without it the back-offs of wrapper and watcher grow to minutes, as they should for what dies
    and dies, and soon nobody is left to be killed.
    """

    def __init__(self) -> None:
        self._deaths: Counter[str] = Counter()
        self._lives: dict[str, tuple[str, float]] = {}

    def spare(self, there: list[Process], now: float) -> list[Process]:
        """Those who may be killed now."""
        for process in there:
            if process.kind == "worker":
                life, since = self._lives.get(process.host, ("", now))
                if life != process.life:
                    self._lives[process.host] = process.life, now
                elif now - since >= HEALTHY:
                    self._deaths[process.host] = 0
        return [p for p in there if p.kind not in ENDS_LIFE or self._deaths[p.host] < BURST]

    def killed(self, process: Process) -> None:
        """Count it."""
        self._deaths[process.host] += process.kind in ENDS_LIFE


def kill(process: Process, token: str) -> bool:
    """SIGKILL it if it is still ours."""
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(process.pid)
        try:
            if _is_ours(process.pid, token):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                return True
        finally:
            os.close(handle)
    return False


def mib(pid: int) -> float | None:
    """Resident memory; None when the process is gone."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20
    except OSError:
        return None


def _is_ours(pid: int, token: str) -> bool:
    return procfs.holds(procfs.environ(pid), {TOKEN: token})


def command(pid: int) -> str:
    """Its command line."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _word_after(pid: int, option: str) -> str:
    words = command(pid).split()
    return words[words.index(option) + 1] if option in words[:-1] else ""
