"""A run on the cluster, driven from the head as its user would, and seen from there alone.

Everything costs seconds on emulated processors, so what is waited for is waited for on the head
itself, by a loop of its shell, and not by a connection for each look.
"""

from __future__ import annotations

import json
import re
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tests.cluster.calls import prepared
from tests.rigs.hosts import REPO
from tests.rigs.vm import Machine
from tests.rigs.vmcluster import Cluster

DEADLINE = 600.0
"""Seconds for what takes some: only something broken needs them."""

WATCH = {
    "FLEET_INTERVAL": "2",
    "FLEET_WATCH_STALE": "15",
    "FLEET_RESTART_COOLDOWN": "2",
    "FLEET_FENCE_AFTER": "10",
    "FLEET_CONNECT_TIMEOUT": "15",
}
"""A watcher that is quick to suspect, and slower than a machine whose processor is emulated."""


def restore(machine: Machine) -> None:
    """Put right whatever happened to a machine: it runs, it is connected, it lets us in."""
    if not machine.running:
        machine.power_on()
    machine.thaw()
    machine.link(True)
    machine.wait_ssh()


@dataclass
class Sending:
    """Tasks on their way; `out` is the sender's file on the head."""

    run: Run
    out: str
    count: int

    def answered(self) -> int:
        """How many tasks have an answer."""
        return int(self.run.sh(f"cat {self.out}.n 2>/dev/null || echo 0").stdout or 0)

    def wait(self, least: int, deadline: float = DEADLINE) -> None:
        """Until so many tasks are answered."""
        test = f'[ "$(cat {self.out}.n 2>/dev/null || echo 0)" -ge {least} ] || [ -e {self.out} ]'
        self.run.wait(test, deadline, f"{least} answers")

    def end(self, deadline: float = DEADLINE, *, refused: bool = False) -> dict[str, Any]:
        """The sender's summary, once every task is answered, each once.

        Each answer must be right; or, with `refused`, may be that the storage did not take it.
        """
        self.run.wait(f"[ -e {self.out} ]", deadline, f"the end of {self.out}")
        told: dict[str, Any] = json.loads(self.run.sh(f"cat {self.out}").stdout)
        assert (told["right"] + told["wrong"], told["twice"], told["missing"]) == (self.count, 0, 0)
        assert refused or told["wrong"] == 0, told
        return told


class Run:
    """One run root below `mount`, with the environment of its user on the head."""

    def __init__(self, cluster: Cluster, name: str, mount: str = "/nfs", **env: str) -> None:
        self.cluster = cluster
        self.head = cluster.head
        self.mount = mount
        self.base = f"{mount}/{name}-{secrets.token_hex(3)}"
        self.root = f"{self.base}/run"
        self.env = {
            "PYTHONPATH": str(REPO),
            "FLEET_HOSTS": " ".join(cluster.workers),
            "FLEET_ROOT": self.base,
            "FLEET_WORKSPACE": f"{self.base}/ws",
            "FLEET_CONCURRENCY": "2",
            "FLEET_READY_TIMEOUT": "200",
            "FLEET_START_TIMEOUT": "200",
            **env,
        }
        self.sh(f"mkdir -m 700 {self.base}")
        self.begun = False

    def sh(
        self,
        command: str,
        *,
        on: Machine | None = None,
        timeout: float = DEADLINE,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """A shell command on the head, or another machine."""
        return (on or self.head).run(command, timeout=timeout, check=check)

    def python(self, words: Sequence[str], **env: str) -> str:
        """The shell words that run the project's Python as the run's user."""
        pairs = [f"{name}={shlex.quote(value)}" for name, value in {**self.env, **env}.items()]
        return " ".join(["env", *pairs, sys.executable, *map(shlex.quote, words)])

    def ctl(self, *args: str, code: int | None = 0, **env: str) -> subprocess.CompletedProcess[str]:
        """Run `ctl ARGS` on the head; `code` is what it must end with."""
        words, ready = ["-m", "ctl", *args], prepared(self.head)
        if ready:
            done = ready.begin(words, {**self.env, **env}).result(600)
        else:
            done = self.sh(self.python(words, **env), check=False, timeout=600)
        told = f"ctl {' '.join(args)}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert code is None or done.returncode == code, told
        return done

    def start(self, *args: str, **env: str) -> None:
        """`ctl start` on all workers."""
        hosts = ",".join(self.cluster.workers)
        named = ("--hosts", hosts, "--fn", "tests.cluster.functions:double")
        self.begun = True
        self.ctl("start", "--root", self.root, *named, *args, **env)
        if "--watch" in args:
            self.wait_said("watching")

    def watch(self, count: int = 1, **env: str) -> None:
        """Begin some more watchers, in the background, and see them at it."""
        said = f"$(grep -c watching {self.root}/ctl/watch.log 2>/dev/null || true)"
        before = int(self.sh(f"echo 0{said}").stdout)
        words = ["-m", "ctl", "watch", "--root", self.root]
        for _ in range(count):
            self.sh(f"setsid {self.python(words, **WATCH, **env)} >/dev/null 2>&1 </dev/null &")
        self.wait(f'[ "0{said}" -ge {before + count} ]', what=f"{count} more watchers")

    def unwatch(self) -> None:
        """End whoever watches, as an operator would, and see them gone."""
        ours = f"grep -alE 'ctl.watch.--roo[t].{self.root}' /proc/[0-9]*/cmdline 2>/dev/null"
        each = f"for file in $({ours}); do pid=${{file#/proc/}}; kill ${{pid%%/*}}; done"
        self.sh(each, check=False)
        self.wait(f'[ -z "$({ours})" ]', what="the end of the watchers")

    def stop(self, *args: str) -> None:
        """`ctl stop`, after which no process of the run may be left anywhere."""
        assert self.end(*args) == {}

    def end(self, *args: str) -> dict[str, str]:
        """`ctl stop`; the machines with processes of the run that are left after it."""
        self.ctl("stop", "--root", self.root, *args)
        left = self.processes()
        self.begun = bool(left)
        return left

    def processes(self) -> dict[str, str]:
        """The machines on which processes speak of the root, with their command lines."""
        look = (
            f"for file in $(grep -alF -- {self.root} /proc/[0-9]*/cmdline); "
            "do tr '\\0\\n' '  ' <$file; echo; done 2>/dev/null; true"
        )

        def shown(machine: Machine) -> tuple[str, str]:
            lines = self.sh(look, on=machine).stdout.splitlines()
            ours = [line for line in lines if line and "grep -alF" not in line]
            return machine.name, "\n".join(ours)

        with ThreadPoolExecutor() as pool:
            found = list(pool.map(shown, self.cluster.machines))
        return {name: lines for name, lines in found if lines}

    def send(self, count: int, seconds: float = 0.0) -> Sending:
        """Send tasks in the background, of `seconds` each."""
        out = f"/run/sender-{secrets.token_hex(4)}"
        asked = {"root": self.root, "out": out, "count": count, "seconds": seconds}
        words = ["-m", "tests.cluster.sender", json.dumps(asked)]
        ready = prepared(self.head)
        if ready:
            ready.begin(words, self.env, f"{out}.err")
        else:
            self.sh(f"setsid {self.python(words)} >{out}.err 2>&1 </dev/null &")
        return Sending(self, out, count)

    def wait(
        self, test: str, deadline: float = DEADLINE, what: str = "", on: Machine | None = None
    ) -> float:
        """Until a shell test on the head, or another machine, holds; the seconds that took.

        Seconds are always this machine's: an emulated clock may be behind, or set by chaos.
        """
        begun = time.monotonic()
        loop = f"until {test}; do sleep 0.5; done"
        argv = (on or self.head).ssh_argv(f"timeout {int(deadline)} sh -c {shlex.quote(loop)}")
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            raise AssertionError(f"{what or test}: not within {deadline} s; {self.told()}")
        return time.monotonic() - begun

    def wait_said(self, pattern: str, deadline: float = DEADLINE, file: str = "watch.log") -> float:
        """Until a file in `ctl/` has a line that matches the extended regular expression."""
        test = f"grep -qE -- {shlex.quote(pattern)} {self.root}/ctl/{file} 2>/dev/null"
        return self.wait(test, deadline, f"{file} says {pattern}")

    def wait_ready(self, deadline: float = DEADLINE) -> dict[str, dict[str, Any]]:
        """The workers as `ctl status` shows them, once all are ready."""
        limit = time.monotonic() + deadline
        while True:
            hosts = self.hosts()
            if hosts and all(host["state"] == "ready" for host in hosts.values()):
                return hosts
            left = limit - time.monotonic()
            assert left > 0, f"not all ready: {hosts}; {self.told()}"
            self.wait_beats(left)

    def wait_beats(self, deadline: float = DEADLINE) -> None:
        """Until every worker beats and is ready: a look that costs little, unlike `ctl status`.

        By the times of files, which are the server's: nobody's clock is asked.
        """
        probe = f"{self.base}/probe"
        beats = f"find {self.root}/status -name '*.json' -newer {probe}"
        ready = f"{beats} -exec grep -l '\"ready\": true' {{}} + 2>/dev/null"
        count = f'[ "$({ready} | wc -l)" = {len(self.cluster.workers)} ]'
        looks = f"date >{probe}; for i in $(seq 10); do sleep 1; {count} && exit; done; exit 1"
        self.wait(f"( {looks} )", max(1.0, deadline), "a beat of every worker")

    def hosts(self) -> dict[str, dict[str, Any]]:
        """What `ctl status --json` says of each worker."""
        done = self.ctl("status", "--root", self.root, "--json", code=None)
        return {host["host"]: host for host in json.loads(done.stdout).get("hosts", [])}

    def beat(self, host: str) -> dict[str, Any]:
        """The host's heartbeat."""
        value: dict[str, Any] = json.loads(self.sh(f"cat {self.root}/status/{host}.json").stdout)
        return value

    def text(self, name: str) -> str:
        """A file in `ctl/`."""
        return self.sh(f"cat {self.root}/ctl/{name} 2>/dev/null || true").stdout

    def holds(self, host: str) -> list[str]:
        """The batches that the host's owners hold now."""
        return self.sh(f"ls {self.root}/claims/{host}~* 2>/dev/null || true").stdout.split()

    def restarts(self, *, well: bool = False) -> list[str]:
        """The hosts that the watcher restarted, as often as it did; `well`: where that worked."""
        return re.findall(rf" restart (\S+) rc={'0' if well else ''}", self.text("watch.log"))

    def check_clean(self) -> None:
        """No batch waits, is held, or is unread; and `ctl fsck` finds no fault."""
        left = self.sh(
            f"cd {self.root}; find inbox claims dead quarantine -type f; find outbox -name '*.done'"
        ).stdout.split()
        assert left == []
        self.ctl("fsck", "--root", self.root)

    def listed(self, folder: str, name: str) -> str:
        """The shell test whether a folder of the root has a name like this regular expression.

        A listing, since a name that was looked for too early stays absent for a while.
        """
        return f"ls {shlex.quote(f'{self.root}/{folder}')} 2>/dev/null | grep -qE -- '{name}'"

    def told(self) -> str:
        """What the watcher and the workers last said, for the message of a failure."""
        tails = f"tail -n 12 {self.root}/ctl/*.log {self.root}/ctl/watch.err /run/sender-*.err 2>&1"
        return self.sh(tails, check=False).stdout

    def close(self) -> None:
        """Stop what still runs, and remove the folder."""
        if self.begun:
            self.ctl("stop", "--root", self.root, "--grace", "10", code=None)
        self.sh(f"rm -rf {self.base}", check=False)
