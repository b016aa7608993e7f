"""What can happen to a cluster of machines, one thing at a time, chosen by a seed.

Each thing is undone by who let it happen, and noted with the moment at which it had happened, by
the clock of the head that nobody sets (the seconds since it booted).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.cluster.ground import Run, restore
from tests.rigs.vm import Machine

JUMP = (60.0, 2 * 86400.0)
"""Seconds by which a clock jumps, forwards or backwards."""
ENDS_LIFE = ("kill", "reset")
"""After these, and only after these, a host has to be started again."""


@dataclass(frozen=True)
class Event:
    """What happened, to whom (a machine, or the server), and when."""

    what: str
    host: str
    at: float


@dataclass(frozen=True)
class Pace:
    """Seconds that a freeze, a cut, a pause or a wrong clock lasts, and until the next event."""

    hold: tuple[float, float]
    rest: tuple[float, float]


class Events:
    """All kinds take their turns in an order that the seed shuffles anew each time.

    A machine that was reset boots while other things happen, to others, until all kinds had their
    turn: to boot takes it as long as all else takes together.
    """

    def __init__(self, run: Run, rng: random.Random, pace: Pace) -> None:
        self.run, self.rng, self.pace = run, rng, pace
        self.past: list[Event] = []
        self.ways: dict[str, Callable[[str], None]] = {
            "kill": self._kill,
            "freeze": self._freeze,
            "hang": self._hang,
            "cut": self._cut,
            "reset": self._reset,
            "pause": self._pause,
            "clock": self._clock,
        }
        self._turns: list[str] = []
        self._boots = ""

    def once(self) -> Event:
        """Let one thing happen, and undo it."""
        if not self._turns:
            self.wait_booted()
            self._turns = self.rng.sample(sorted(self.ways), len(self.ways))
        what = self._turns.pop()
        host = self.rng.choice(sorted(self.run.cluster.workers.keys() - {self._boots}))
        if what == "clock":
            names = [machine.name for machine in self.run.cluster.machines]
            host = self.rng.choice([name for name in names if name != self._boots])
        self.ways[what]("server" if what == "pause" else host)
        return self.past[-1]

    def rest(self) -> None:
        """Give them a moment."""
        time.sleep(self.rng.uniform(*self.pace.rest))

    def wait_booted(self) -> None:
        """Until the machine that was reset last is up."""
        if self._boots:
            self._machine(self._boots).wait_ssh()
            self._boots = ""

    def put_right(self) -> None:
        """Whatever was interrupted half-way."""
        self.run.cluster.server.resume()
        for machine in self.run.cluster.machines:
            if machine.running:
                machine.unhang()
            restore(machine)

    def _machine(self, host: str) -> Machine:
        return next(m for m in self.run.cluster.machines if m.name == host)

    def _note(self, what: str, host: str) -> None:
        at = float(self.run.sh("cat /proc/uptime").stdout.split()[0])
        self.past.append(Event(what, host, at))

    def _hold(self) -> None:
        time.sleep(self.rng.uniform(*self.pace.hold))

    def _kill(self, host: str) -> None:
        files = [f"{self.run.root}/ctl/{host}.{name}" for name in ("wrap.pid", "pid")]
        pids = self.run.sh(f"cat {' '.join(files)} 2>/dev/null || true").stdout.split()
        # A machine that has just booted may have given these numbers to others.
        ours = f"grep -qaF {self.run.root} /proc/$pid/cmdline && kill -9 $pid"
        loop = f"for pid in {' '.join(pids)}; do {ours}; done"
        self.run.sh(loop, on=self._machine(host), check=False)
        self._note("kill", host)

    def _freeze(self, host: str) -> None:
        self._machine(host).freeze()
        self._note("freeze", host)
        self._hold()
        self._machine(host).thaw()

    def _hang(self, host: str) -> None:
        self._machine(host).hang()
        self._note("hang", host)
        self._hold()
        self._machine(host).unhang()

    def _cut(self, host: str) -> None:
        self._machine(host).link(False)
        self._note("cut", host)
        self._hold()
        self._machine(host).link(True)

    def _reset(self, host: str) -> None:
        self._machine(host).reset()
        self._note("reset", host)
        self._boots = host

    def _pause(self, server: str) -> None:
        self.wait_booted()  # a machine mounts when it boots, and does not try for long
        self.run.cluster.server.pause()
        self._note("pause", server)
        self._hold()
        self.run.cluster.server.resume()

    def _clock(self, host: str) -> None:
        jump = int(self.rng.choice((-1, 1)) * self.rng.uniform(*JUMP))
        self._set_clock(host, jump)
        self._note("clock", host)
        self._hold()
        self._set_clock(host, -jump)

    def _set_clock(self, host: str, jump: int) -> None:
        command = f'date -s "@$(( $(date +%s) + {jump} ))"'
        self.run.sh(command, on=self._machine(host))
