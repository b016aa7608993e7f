"""A watcher that sweeps fast over hosts of which a third is broken, each in a way of its own.

What real sites do to it in weeks, in minutes: whatever it leaves behind at a sweep adds up.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ctl import memory
from ctl.health import Limits
from ctl.journal import Journal
from ctl.rootio import RootIO
from ctl.watch import Options, Watcher
from tests.rigs import hosts
from tests.rigs.hosts import HostRig, make_key
from tests.support import mute_ports
from tests.support.synthetic import Synthetic

BROKEN = ("refused", "hole", "deaf", "mute", "rude", "unwanted", "changed", "dying")
"""No port; no answer at all; no banner; nothing after it; hangs up; takes no key of ours; shows
another key than is known; dies amid a command."""

_ANSWER = r"""#!/bin/sh
# The host side, without a Python: it sees processes of another boot, which settles nothing.
m=${3#*\"marker\": \"}; m=${m%%\"*}
s='{"pid": 1, "state": "unknown"}'
printf '\n<BEGIN %s>{"ok": true, "boot_id": "b", "wrapper": %s, "worker": %s}<END %s>\n' $m "$s" "$s" $m
"""  # noqa: E501  # one line that a shell prints


@dataclass
class Figures:
    """One value a sweep: seconds and CPU seconds it took, threads, descriptors, resident KiB."""

    took: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)

    def note(self, took: float, cpu: float) -> None:
        """Take down what is seen of this process now."""
        self.took.append(took)
        self.cpu.append(cpu)
        self.threads.append(threading.active_count())
        self.files.append(len(os.listdir("/proc/self/fd")))
        resident = int(Path("/proc/self/statm").read_text().split()[1])
        self.memory.append(resident * os.sysconf("SC_PAGE_SIZE") // 1024)

    def growth(self, values: list[int]) -> float:
        """By how much the middle of the last third lies above that of the third before."""
        third = len(values) // 3
        return statistics.median(values[-third:]) - statistics.median(values[third : 2 * third])


class Sweeper:
    """The hosts, the run and its watcher. `beating` hosts are never contacted, those of `reached`
    answer at every sweep and are not settled by it, the others are broken."""

    def __init__(self, folder: Path, rig: HostRig, ports: dict[str, int], address: str) -> None:
        self._rig = rig
        self.reached = [f"reached{i}" for i in range(4)]
        self.broken = [*BROKEN, "refused2", "mute2"]
        self.beating = [f"beats{i}" for i in range(16)]
        self._lay(folder, ports, address)
        names = [*self.beating, *self.reached, *self.broken]
        python = folder / "answers"
        python.write_text(_ANSWER)
        python.chmod(0o755)
        options = {"ssh_config": str(rig.config), "retry_timeout": 0.05}
        self.run = Synthetic(
            folder / "run", names, launcher="ssh", launcher_options=options, python=str(python)
        )
        limits = Limits(stale=0.5, fence=1e9, cooldown=0.0)
        self.watcher = Watcher(
            RootIO(str(folder / "run")),
            Options(limits, interval=1.0, late=60.0, renew=False),
            lambda meta: frozenset(names),
            Journal(echo=False),
        )
        self.figures = Figures()

    def sweep(self, times: int, pause: float) -> None:
        """So many sweeps; some of what each began may go on during the next."""
        if not self.run.seq:
            self.watcher._enter()
        for _ in range(times):
            self.run.beat(*self.reached, *self.broken)
            begun, cpu = time.monotonic(), time.process_time()
            decision = self.watcher._turn()
            took = time.monotonic() - begun
            time.sleep(pause)
            self.figures.note(took, time.process_time() - cpu)
            assert decision is not None, "the root answers"
            ill = {v.host for v in decision.verdicts if not v.healthy}
            assert ill.isdisjoint(self.beating), ill

    def probes(self) -> dict[str, int]:
        """How often each silent host was asked, and what was said of it last."""
        return {h: self.watcher._memory[h].misses for h in (*self.reached, *self.broken)}

    def words(self) -> dict[str, str]:
        """What was found of each silent host the last time."""
        found = self.watcher._effects.findings
        return {h: found[h].words if h in found else "" for h in (*self.reached, *self.broken)}

    def logins(self, host: str) -> int:
        """How many connections the host has accepted."""
        return self._rig.hosts[host].log.read_text().count("Accepted publickey")

    def _lay(self, folder: Path, ports: dict[str, int], address: str) -> None:
        rig, reach = self._rig, self._reach
        for name in self.reached:
            rig.add(name)
        stranger = make_key(folder / "stranger")
        rig.add("unwanted", sshd=[f"AuthorizedKeysFile={stranger}.pub"])
        changed = rig.add("changed", known=False)
        public = Path(f"{stranger}.pub").read_text().split()[:2]
        with rig.known_hosts.open("a") as known:
            known.write(f"[{changed.address}]:{changed.port} {' '.join(public)}\n")
        rig.add("dying", login="kill -9 $PPID")
        for kind, port in ports.items():
            reach(kind, address, port)
        reach("mute2", address, ports["mute"])
        for name in ("refused", "refused2"):
            reach(name, address, hosts.free_port(address))

    def _reach(self, name: str, address: str, port: int) -> None:
        # A second is short, and yet all that these will ever take.
        block = [f"Host {name}", f"HostName {address}", f"Port {port}", "ConnectTimeout 1"]
        self._rig._blocks.append("\n  ".join(block))
        self._rig._write_config()


@contextmanager
def sweeper(folder: Path, rig: HostRig) -> Iterator[Sweeper]:
    """A watcher that asks silent hosts at every sweep, and its hosts."""
    address = hosts.free_address()
    argv = [sys.executable, str(mute_ports.__file__), address]
    before = memory.PROBE_FIRST, memory.PROBE_CAP
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as ports:
        assert ports.stdin and ports.stdout
        made = None
        memory.PROBE_FIRST = memory.PROBE_CAP = 0.05
        try:
            made = Sweeper(folder, rig, json.loads(ports.stdout.readline()), address)
            yield made
        finally:
            memory.PROBE_FIRST, memory.PROBE_CAP = before
            if made:
                made.watcher.close()
            ports.stdin.close()
