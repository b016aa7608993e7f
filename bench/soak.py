"""A million tasks while something is killed every second: one answer each, nobody innocent dead.

    python bench/soak.py --quick --check       two minutes
    python bench/soak.py --check --seed 7      a million tasks

Two hosts on this machine, a watcher, and a client in a process of its own. Every second a slot, a
zygote, a worker, a wrapper or the client gets a SIGKILL. At the end nothing is believed that can be
counted from outside: answers by the client's record, executions by the traces of the tasks, commits
by the kernel, the root by `ctl fsck`, processes by a token that all of them carry.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

import report
import soak_processes
import soak_task
import soak_verdict
from fleet import HERE, Fleet
from fsworker.protocol import layout
from report import Report, eventually
from soak_client import FUNCTION, STREAM
from soak_commits import Commits
from soak_processes import Mercy, Process
from soak_record import Kind, Progress, Reader, short

WEIGHTS = {"slot": 10.0, "zygote": 4.0, "worker": 2.0, "wrapper": 1.0, "client": 1.5}
FLEET_TOML = """\
max_deaths = 1000000
watch_stale = 6
interval = 1
restart_cooldown = 1
fence_after = 2
"""
"""Death limits and pauses set so that kills alone never make a task, or a host, be given up."""
SAMPLE_EVERY = 2.0


def options(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = report.parser(__doc__ or "")
    parser.add_argument("--tasks", type=int, help="tasks at most; 1,000,000 without --seconds")
    parser.add_argument("--seconds", type=float, help="send no more after that; 90 with --quick")
    parser.add_argument("--seed", type=int, default=1, help="of the sequence of kills")
    parser.add_argument("--every", type=float, default=1.0, help="seconds from kill to kill")
    parser.add_argument("--hosts", default="soak[1-2]", help="set of hosts")
    parser.add_argument("--concurrency", type=int, default=2, help="slots of a host")
    parser.add_argument("--audit-every", type=float, default=30.0, help="seconds; ctl fsck")
    parser.add_argument("--patience", type=float, default=240.0, help="seconds without an answer")
    parser.add_argument("--keep", action="store_true", help="leave all files, also if all is well")
    args = parser.parse_args(argv)
    if args.quick and args.seconds is None:
        args.seconds = 90.0
    args.tasks = args.tasks or (1_000_000 if args.seconds is None else 100_000_000)
    return args


class Client:
    """The client's process: killed, reaped, started again, until it has all answers."""

    def __init__(self, folder: str, root: str, args: argparse.Namespace) -> None:
        self.record, self._log = f"{folder}/record", f"{folder}/client.log"
        until = time.time() + args.seconds if args.seconds else float("inf")
        self._argv = [sys.executable, f"{HERE}/soak_client.py", root, self.record]
        self._argv.append(f"{folder}/traces")
        self._rest = [str(args.seed), str(args.tasks), str(until)]
        self.life = self.failures = 0
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Its pid; 0 while it is not there."""
        return self._child.pid if self._child and self._child.poll() is None else 0

    def tend(self) -> None:
        """Start it if it is not there and has something left to do."""
        if self.pid:
            return
        code = self._child.returncode if self._child else -signal.SIGKILL
        if code == 0:
            return
        self.failures += code != -signal.SIGKILL
        self.life += 1
        with open(self._log, "ab") as log:
            self._child = subprocess.Popen(
                [*self._argv, str(self.life), *self._rest],
                stdout=log,
                stderr=log,
                cwd=HERE,
                env={**os.environ, "PYTHONPATH": os.path.dirname(HERE)},
            )

    def end(self) -> None:
        """End it for good."""
        if self._child:
            self._child.kill()
            self._child.wait()


class Soak:
    """One soak, from the first task to the last answer."""

    def __init__(self, run: Fleet, token: str, args: argparse.Namespace, out: Report) -> None:
        self.run, self.token, self.args, self.out = run, token, args, out
        self.traces = f"{run.folder}/traces"
        self.client = Client(run.folder, run.root, args)
        self.commits = Commits(run.root, layout.encode(STREAM))
        self.progress = Progress()
        self.found = soak_verdict.Found()
        self.samples: list[dict[str, Any]] = []
        self._reader = Reader(self.client.record)
        self._draw = random.Random(args.seed)
        self._mercy = Mercy()
        self._began = self._heard = time.monotonic()
        self._waits: list[tuple[int, float]] = []
        self._watcher = int(eventually(lambda: _text(f"{run.root}/ctl/watch.pid"), 60, "a watcher"))

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began

    def go(self) -> None:
        """Kill until the client has everything."""
        due = {"kill": 2.0, "sample": 0.0, "audit": self.args.audit_every}
        acts = {"kill": self._kill, "sample": self._sample, "audit": self._audit}
        every = {"kill": self.args.every, "sample": SAMPLE_EVERY, "audit": self.args.audit_every}
        with self.commits:
            try:
                while not self._over():
                    self.client.tend()
                    for what, act in acts.items():
                        if self.seconds >= due[what]:
                            due[what] = max(due[what] + every[what], self.seconds)
                            act()
                    time.sleep(0.05)
            finally:
                self.client.end()
        self._sample()

    def _over(self) -> bool:
        for row in self._reader.news():
            self._take(row)
        if time.monotonic() - self._heard > self.args.patience:
            self.found.hung = True
            self.out.say(f"no answer for {self.args.patience:g} s: given up")
        return self.found.hung or (self.progress.complete and not self.client.pid)

    def _take(self, row: Any) -> None:
        found, before = self.found, self.progress.life_of(row.number)
        self.found.rows[row.kind] += 1
        first = self.progress.take(row)
        if row.kind in found.numbers:
            found.numbers[row.kind].append(row.number)
        if row.kind not in (Kind.FUTURE, Kind.RECOVERED):
            return
        self._heard = time.monotonic()
        for life, at in self._waits:
            if row.life > life:
                found.client_waits.append(self._heard - at)
        self._waits = [(life, at) for life, at in self._waits if row.life <= life]
        found.wrong += row.check != soak_task.check(row.number, self.args.seed)
        if not first:
            # Kept by a life that died before the product could forget it: it is given again.
            innocent = row.kind is Kind.RECOVERED and before != short(row.life)
            found.again += innocent
            found.twice += not innocent

    # -- what is done now and then

    def _kill(self) -> None:
        there = self._mercy.spare(soak_processes.of_hosts(self.token), time.monotonic())
        if self.client.pid:
            there.append(Process("client", "", self.client.pid))
        target = soak_processes.choose(self._draw, WEIGHTS, there)
        if target is None:
            self.found.idle_kills += 1
            return
        if target.kind == "client":
            self._waits.append((self.client.life, time.monotonic()))
        if soak_processes.kill(target, self.token):
            self.found.kills[target.kind] += 1
            self._mercy.killed(target)
            if target.kind == "slot":
                self.found.slots.append((target.pid, time.time_ns()))
            if target.kind != "client":
                self.commits.killed(target)
            with open(f"{self.run.folder}/kills.log", "a") as file:
                file.write(f"{time.time():.3f} {target}\n")

    def _sample(self) -> None:
        there = soak_processes.of_hosts(self.token)
        pids = {"client": [self.client.pid], "watcher": [self._watcher]}
        for kind in ("worker", "zygote", "wrapper"):
            pids[kind] = [p.pid for p in there if p.kind == kind]
        memory = {kind: [soak_processes.mib(p) or 0.0 for p in them] for kind, them in pids.items()}
        most = {kind: max(values, default=0.0) for kind, values in memory.items()}
        self.samples.append({"at": self.seconds, "done": self.progress.done, **most})
        if len(self.samples) % 5 == 1:
            done, kills = self.progress, sum(self.found.kills.values())
            self.out.say(f"{done.done:,} of {done.mark:,} answered; {kills} kills")

    def _audit(self) -> None:
        """The root, while all of that goes on: what lives must not be accused either."""
        self.found.note_audit(self.run.ctl("fsck", "--json"), f"after {self.seconds:.0f} s")


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except FileNotFoundError:
        return ""


class SoakFleet(Fleet):
    """A run whose folder is left for whoever has to find out what went wrong."""

    removed = False


def soak(folder: str, args: argparse.Namespace, out: Report) -> int:
    """All of it below an empty folder; the exit code."""
    token = secrets.token_hex(8)
    os.environ[soak_processes.TOKEN] = token
    os.environ[soak_task.TRACES] = f"{folder}/traces"
    for name in ("traces", "config/shardfleet"):
        os.makedirs(f"{folder}/{name}")
    with open(f"{folder}/config/shardfleet/fleet.toml", "w") as file:
        file.write(FLEET_TOML)
    out.say(f"seed {args.seed}, files in {folder}")
    with SoakFleet(
        folder,
        hosts=args.hosts,
        concurrency=args.concurrency,
        functions=(FUNCTION,),
        more=("--watch",),
        grace="5",
        kill_after="5",
    ) as run:
        made = Soak(run, token, args, out)
        made.go()
        out.say("all is answered; looking at what is left")
        soak_verdict.settle(made)
        soak_verdict.tables(made)
        soak_verdict.targets(made)
        code = out.finish()
        run.removed = not args.keep and all(t.met is not False for t in out.targets)
        if not run.removed:
            out.say(f"everything is kept in {folder}")
    return code


def main() -> int:
    """Run it in a folder of its own."""
    args = options()
    folder = tempfile.mkdtemp(prefix="soak-")
    try:
        return soak(folder, args, Report("soak", args))
    finally:
        if not os.path.exists(f"{folder}/runs"):
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
