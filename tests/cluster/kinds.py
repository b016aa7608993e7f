"""One run with members of all kinds, each of which is killed in its own way while tasks go through.

Two hosts over real SSH, one that attached with a label and a device mask, two jobs of a real Slurm,
one of them with a GPU that Slurm granted. Tasks need different things; each must be answered once,
by somebody who offers what it needs.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from fsworker import Client
from tests.rigs.hosts import REPO, HostRig
from tests.rigs.slurm import Slurm
from tests.support.ctlrun import json_lines
from tests.support.sshfleet import SshFleet
from tests.support.waiting import gone, wait_until

WORK = "kinds_work:work"
CODE = """
import os, time
def work(number, seconds):
    time.sleep(seconds)
    return [number, os.environ["FLEET_HOST"], os.environ.get("CUDA_VISIBLE_DEVICES", "")]
"""
WATCH = ("--heartbeat-stale", "5", "--interval", "0.5", "--fence-after", "1")
NEEDS: dict[str, dict[str, Any] | None] = {
    "anything": None,
    "label": {"labels": ["viz"]},
    "device": {"gpus": 1},
    "cpus": {"cpus": 2},
    "slurm": {"labels": ["slurm"]},
}
SSH, GUEST, MASK = ("k1", "k2"), "guest", "5,7"
GRANT = ("--gres=gpu:1",)
Say = Callable[[str], None]


class Kinds:
    """The run, and what happens to it. Use within contexts of the site and the rig."""

    def __init__(self, folder: Path, site: Slurm, rig: HostRig, say: Say = lambda _: None) -> None:
        self.site, self._say, self._folder = site, say, folder
        (folder / "kinds_work.py").write_text(CODE)
        self.fleet = SshFleet(folder, rig, FLEET_REPO=str(folder), **site.env)
        self.fleet.env["PYTHONPATH"] = f"{REPO}:{folder}"
        self.root = self.fleet.root
        self.jobs: list[str] = []
        self.answers: Counter[int] = Counter()
        self.by: dict[str, Counter[str]] = {kind: Counter() for kind in NEEDS}
        self.backs: dict[str, float] = {}
        self.masks: set[tuple[str, str]] = set()

    def up(self) -> None:
        """Start everything, and wait until all are ready."""
        self.fleet.add_hosts(*SSH)
        args = ("--attach", GUEST, "--concurrency", "2", "--shard-count", "4")
        self.fleet.up(*args, fn=WORK)
        self._watcher = self.fleet.popen("watch", "--root", str(self.root), *WATCH)
        self._guest = self.attach()
        self.jobs = [self.submit("slurm-a"), self.submit("slurm-b", *GRANT)]
        wait_until(lambda: len(self._ready()) == len(SSH) + 3, 120, "all members")

    def _ready(self) -> list[str]:
        hosts = self.fleet.status(self.root)["hosts"]
        return [host["host"] for host in hosts if host["state"] == "ready"]

    def attach(self) -> subprocess.Popen[bytes]:
        """The guest, with two of a machine's devices."""
        argv = [sys.executable, "-m", "fsworker", "attach", "--root", str(self.root)]
        argv += ["--name", GUEST, "--labels", "viz", "--parallel", "2"]
        env = {**self.fleet.env, "CUDA_VISIBLE_DEVICES": MASK}
        # A session of its own, so that nothing but what is meant ends it.
        return self.fleet.spawned.start(argv, env=env, start_new_session=True)

    def submit(self, name: str, *args: str) -> str:
        """A job of Slurm that attaches under a name; its id."""
        made = self.fleet("token", "create", "--root", str(self.root), "--labels", "slurm")
        script = ["#!/bin/sh", f"export FLEET_WORKER_TOKEN={made.stdout.strip()}"]
        script.append(f"export PYTHONPATH={shlex.quote(self.fleet.env['PYTHONPATH'])}")
        argv = [sys.executable, "-m", "fsworker", "attach", "--root", str(self.root)]
        argv += ["--parallel", "1", "--grace", "20", "--term-grace", "2"]
        script.append(f"exec {shlex.join([*argv, '--name', name])}")
        sbatch = ["sbatch", "--parsable", "--requeue", "--cpus-per-task=2", "--mem=900"]
        sbatch += ["--signal=B:USR1@60", f"--output={self.root}/ctl/slurm-%j.out", *args]
        env = {**self.fleet.env, **self.site.env}
        done = subprocess.run(
            sbatch, input="\n".join(script), env=env, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    # -- tasks

    def send(self, client: Client, count: int, seconds: float) -> list[Future[Any]]:
        """Send tasks, each of some kind in turn."""
        senders = [(kind, client.with_options(needs=needs)) for kind, needs in NEEDS.items()]
        futures = []
        for number in range(count):
            kind, sender = senders[number % len(senders)]
            future = sender.submit(WORK, number, seconds)
            future.add_done_callback(partial(self._note, kind))
            futures.append(future)
        return futures

    def _note(self, kind: str, future: Future[Any]) -> None:
        if future.exception() is None:
            number, host, mask = future.result()
            self.answers[number] += 1
            self.by[kind][host] += 1
            self.masks.add((host, mask))

    # -- what happens

    def kill_in_turn(self, due: Callable[[int], bool]) -> None:
        """Kill each kind in its own way, one after the other as `due(0)`, `due(1)`, … hold."""
        for number, deed in enumerate(self._deeds()):
            wait_until(partial(due, number), 600, f"the time for {deed.__name__}")
            self._do(deed)

    def kill_at_once(self) -> None:
        """The same, all of them together."""
        deeds = self._deeds()
        with ThreadPoolExecutor(len(deeds)) as pool:
            list(pool.map(self._do, deeds))

    def _deeds(self) -> list[Callable[[], None]]:
        hosts = [self._kill_worker, self._kill_wrapper, self._kill_guest]
        return [*hosts, self._node_down, self._kill_job]

    def _do(self, deed: Callable[[], None]) -> None:
        begun = time.monotonic()
        deed()
        self.backs[deed.__name__[1:]] = took = time.monotonic() - begun
        self._say(f"{deed.__name__[1:]}: back after {took:.1f} s")

    def _kill_worker(self) -> None:
        before = self.fleet.beat("k1")
        self.fleet.kill(self.fleet.pid("k1"))
        self._again("k1", before)

    def _kill_wrapper(self) -> None:
        before = self.fleet.beat("k2")
        self.fleet.kill(self.fleet.pid("k2", "wrap.pid"))
        self._again("k2", before)

    def _kill_guest(self) -> None:
        before = self.fleet.beat(GUEST)
        self.fleet.kill(self._guest.pid)
        self._guest.wait()
        self._guest = self.attach()
        self._again(GUEST, before)

    def _node_down(self) -> None:
        job, site = self.jobs[0], self.site
        before = self.fleet.beat("slurm-a")
        node = site.run("squeue", "-h", "-j", job, "-o", "%N").strip()
        site.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
        wait_until(lambda: self._state(job) == "PENDING", 60, "the job in the queue")
        # Slurm starts it at once, and drains the node where the job is still ending.
        wait_until(lambda: gone(before["pid"]), 60, "the end of its worker")
        wait_until(lambda: site.run("squeue", "-h", "-w", node) == "", 60, "an empty node")
        wait_until(lambda: self._resumed(node, job), 240, "the job on its node again")
        self._again("slurm-a", before)

    def _resumed(self, node: str, job: str) -> bool:
        """Have a node back, which may have come by itself when it was heard of, and its job."""
        for what in ((f"NodeName={node}", "State=RESUME"), (f"JobId={job}", "StartTime=now")):
            self.site.run("scontrol", "update", *what, check=False)
        # It is held where its launch failed because the node was not quite there yet.
        self.site.run("scontrol", "release", job, check=False)
        time.sleep(1.0)
        return self._state(job) == "RUNNING"

    def _kill_job(self) -> None:
        job, before = self.jobs[1], self.fleet.beat("slurm-b")
        self.site.run("scancel", "--full", "--signal=KILL", job)
        wait_until(lambda: self._state(job) not in ("RUNNING", "COMPLETING"), 60, "its end")
        self.jobs[1] = self.submit("slurm-b", *GRANT)
        self._again("slurm-b", before)

    def _again(self, host: str, before: dict[str, Any]) -> None:
        """Wait until a later life of a host is ready; between the two there may be no member."""

        def there() -> bool:
            beat = self.fleet.beat(host)
            return bool(beat.get("ready")) and beat["incarnation"] != before["incarnation"]

        wait_until(there, 180, f"{host} again")

    def _state(self, job: str) -> str:
        told = self.site.run("squeue", "-h", "--states=all", "-j", job, "-o", "%T", check=False)
        return told.strip()

    # -- the verdict

    def wrong(self, count: int) -> list[str]:
        """What is not as it should be, a sentence each."""
        found = [f"task {n} has {self.answers[n]} answers" for n in range(count)
                 if self.answers[n] != 1]  # fmt: skip
        offers = {"label": {GUEST}, "device": {GUEST, "slurm-b"}, "slurm": {"slurm-a", "slurm-b"}}
        masks = {(GUEST, one) for one in MASK.split(",")} | {("slurm-b", "0")}
        seen = {(host, mask) for host, mask in self.masks if mask}
        found += [f"devices {seen ^ masks} are not those of the masks"] if seen != masks else []
        for kind, hosts in offers.items():
            strangers = set(self.by[kind]) - hosts
            found += [f"{kind}: executed by {strangers}, who do not offer it"] if strangers else []
        found += self._wrong_inventories()
        for folder in ("dead", "quarantine"):
            found += [f"{folder}/{name}" for name in os.listdir(self.root / folder)]
        audit = self.fleet("fsck", "--root", str(self.root))
        found += [] if audit.returncode == 0 else [audit.stdout[-500:]]
        return found

    def _wrong_inventories(self) -> list[str]:
        cpus = len(os.sched_getaffinity(0))
        plain = {"cpus": cpus, "granted_by": "machine", "gpu_count": 0}
        wanted: dict[str, dict[str, Any]] = dict.fromkeys(SSH, plain)
        wanted[GUEST] = {"cpus": cpus, "gpu_count": 2, "gpus": MASK.split(",")}
        slurm = {"cpus": 2, "memory_mb": 900, "granted_by": "slurm"}
        wanted["slurm-a"] = {**slurm, "gpu_count": 0}
        wanted["slurm-b"] = {**slurm, "gpu_count": 1}
        found = []
        for host, fields in wanted.items():
            told = self.fleet.beat(host).get("inventory", {})
            unlike = {k: told.get(k) for k, v in fields.items() if told.get(k) != v}
            found += [f"inventory of {host}: {unlike} are not {fields}"] if unlike else []
        return found

    def down(self) -> list[dict[str, Any]]:
        """Stop everything; the events of the run."""
        self._watcher.terminate()
        self._watcher.wait(60)
        events = json_lines((self.root / "ctl" / "events.jsonl").read_text())
        done = self.fleet("stop", "--root", str(self.root), "--grace", "10")
        assert done.returncode == 0, done.stderr
        return events

    def close(self) -> None:
        """End what is left."""
        for job in self.jobs:
            self.site.run("scancel", job, check=False)
        self.fleet.__exit__()
