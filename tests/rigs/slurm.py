"""A real Slurm on this machine: one controller and some nodes that are all this machine.

Debian's packages, nothing faked. Each instance has ports, spool folders and a munge daemon of its
own, so that several can run beside each other and beside a site's.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any, Self

import pytest

from tests.rigs.hosts import free_port
from tests.support.waiting import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol")


PARTITIONS = (
    "PartitionName=all Default=YES PriorityTier=1 PreemptMode=OFF",
    "PartitionName=requeued PriorityTier=1 PreemptMode=REQUEUE GraceTime=0",
    "PartitionName=cancelled PriorityTier=1 PreemptMode=CANCEL GraceTime=0",
    "PartitionName=urgent PriorityTier=9 PreemptMode=OFF",
)
"""Of the same nodes. A job of `urgent` takes the place of those in `requeued` and `cancelled`."""


def missing() -> str | None:
    """What this machine lacks for the rig, in a sentence; None when nothing."""
    if os.geteuid() != 0:
        return "slurmd needs root to start jobs as their user"
    lacking = [name for name in PROGRAMS if _which(name) is None]
    if lacking:
        return f"{', '.join(lacking)} are not installed (Debian: apt install slurm-wlm munge)"
    return None


def require() -> None:
    """Skip the test when this machine cannot run the rig."""
    why = missing()
    if why:
        pytest.skip(f"no Slurm here: {why}")


class Slurm:
    """A Slurm with nodes n1 to nN; `env` is what its commands need. Use as a context."""

    def __init__(self, folder: Path, nodes: int = 3, cpus: int = 2) -> None:
        self.folder, self.nodes, self._cpus = folder, nodes, cpus
        self.conf = folder / "slurm.conf"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._tag = secrets.token_hex(4)

    @property
    def env(self) -> dict[str, str]:
        """What must be set for `sbatch` and the others to mean this one."""
        return {"SLURM_CONF": str(self.conf)}

    def __enter__(self) -> Self:
        try:
            self._start_munge()
            self._configure()
            self._start("slurmctld", "slurmctld", "-D", "-f", str(self.conf))
            for number in range(1, self.nodes + 1):
                self.start_node(f"n{number}")
            wait_until(lambda: self._idle() == self.nodes, 60, "all nodes idle")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for job in self.jobs():
            self.run("scancel", "--full", str(job["id"]), check=False)
        for name in list(self._processes):
            self._end(name)

    def run(self, *argv: str, check: bool = True) -> str:
        """One of Slurm's commands; what it prints."""
        env = {**os.environ, **self.env}
        done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=60)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    def jobs(self) -> list[dict[str, Any]]:
        """What waits and runs: id, state, node."""
        lines = self.run("squeue", "-h", "-o", "%i|%T|%N|%r", check=False).splitlines()
        keys = ("id", "state", "node", "reason")
        return [dict(zip(keys, line.split("|"), strict=True)) for line in lines]

    def start_node(self, name: str) -> None:
        """Start a node's daemon."""
        self._start(name, "slurmd", "-D", "-N", name, "-f", str(self.conf))

    def kill_node(self, name: str) -> None:
        """A power cut of one node: its daemon and all that it started, none of which may report."""
        self._processes[name].send_signal(signal.SIGSTOP)
        tokens = {f"SLURMD_NODENAME={name}".encode(), self._conf_entry()}
        pids = map(int, filter(str.isdigit, os.listdir("/proc")))
        ours = [pid for pid in pids if tokens <= _environ(pid)]
        # The steps' daemons first, which have left their parent: they would tell how a job ended.
        steps = {parent for parent in map(_parent, ours) if _name(parent) == "slurmstepd"}
        for pid in (*steps, *ours):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._end(name, signal.SIGKILL)

    def _conf_entry(self) -> bytes:
        return f"SLURM_CONF={self.conf}".encode()

    def _idle(self) -> int:
        return (
            self.run("sinfo", "-h", "-N", "-p", "all", "-o", "%T", check=False)
            .split()
            .count("idle")
        )

    def _start_munge(self) -> None:
        user = pwd.getpwnam("munge")
        place = self.folder / "munge"
        place.mkdir(mode=0o755)
        for above in (place, *place.parents):
            if above != Path("/") and above.stat().st_uid == os.getuid():
                above.chmod(above.stat().st_mode | 0o011)  # munged must get there
        key = place / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        for path in (place, key):
            os.chown(path, user.pw_uid, user.pw_gid)
        self._munge_socket = place / "socket"
        files = {"key": key, "log": place / "log", "pid": place / "pid", "seed": place / "seed"}
        argv = ["munged", "--foreground", "--force", f"--socket={self._munge_socket}"]
        argv += [f"--key-file={files['key']}", f"--log-file={files['log']}"]
        argv += [f"--pid-file={files['pid']}", f"--seed-file={files['seed']}"]
        self._start("munged", *argv, user="munge")
        wait_until(self._munge_socket.exists, 30, "munge")

    def _configure(self) -> None:
        ports = [free_port("127.0.0.1") for _ in range(self.nodes + 1)]
        here, spool = socket.gethostname(), self.folder / "spool"
        spool.mkdir()
        lines = [
            f"ClusterName=test{self._tag}",
            "SlurmctldHost=localhost(127.0.0.1)",
            f"SlurmctldPort={ports[0]}",
            "SlurmUser=root",
            "SlurmdUser=root",
            "AuthType=auth/munge",
            f"AuthInfo=socket={self._munge_socket}",
            "CredType=cred/munge",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core",
            "ReturnToService=2",
            "SlurmdTimeout=10",
            "SlurmctldTimeout=10",
            "InactiveLimit=0",
            "KillWait=5",
            "PreemptType=preempt/partition_prio",
            "PreemptMode=REQUEUE",
            "GresTypes=gpu",
            "MinJobAge=300",
            "MpiDefault=none",
            "SwitchType=switch/none",
            f"StateSaveLocation={self.folder / 'state'}",
            f"SlurmdSpoolDir={spool}/%n",
            f"SlurmdPidFile={self.folder}/%n.pid",
            f"SlurmctldPidFile={self.folder}/ctld.pid",
            f"SlurmdLogFile={self.folder}/%n.log",
            f"SlurmctldLogFile={self.folder}/ctld.log",
        ]
        for number, port in enumerate(ports[1:], 1):
            lines.append(
                f"NodeName=n{number} NodeHostname={here} NodeAddr=127.0.0.1 Port={port} "
                f"CPUs={self._cpus} RealMemory=2000 Gres=gpu:2"
            )
        for partition in PARTITIONS:
            lines.append(f"{partition} Nodes=n[1-{self.nodes}] State=UP MaxTime=60")
        (self.folder / "state").mkdir()
        # Any device files will do: nobody opens them.
        (self.folder / "gres.conf").write_text("Name=gpu File=/dev/null,/dev/zero\n")
        self.conf.write_text("\n".join(lines) + "\n")

    def _start(self, name: str, *argv: str, user: str | None = None) -> None:
        program = _which(argv[0])
        assert program
        with (self.folder / f"{name}.out").open("ab") as out:
            self._processes[name] = subprocess.Popen(
                [program, *argv[1:]],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **self.env},
                user=user,
                start_new_session=True,
            )

    def _end(self, name: str, number: int = signal.SIGTERM) -> None:
        process = self._processes.pop(name)
        process.send_signal(number)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _which(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def _parent(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _environ(pid: int) -> set[bytes]:
    try:
        return set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return set()
