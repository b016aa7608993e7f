"""One head and some workers, each a machine with a kernel of its own, all clients of one server.

    boot = Cluster.boot(folder)     about half a minute on idle cores
    boot.head.run("…")              a shell command on the head, as root
    boot.close()                    nothing is left

`/nfs` and `/small` are mounted hard; `/small` is a filesystem of some megabytes, and `/soft` is the
same one, mounted soft. The head reaches the workers by their names. What is known of a cluster is
written to `cluster.json`, so that another process can use it or end it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.rigs import nfs, vm, vmimage
from tests.rigs.hosts import REPO, SSHD, make_key
from tests.rigs.nfs import Server
from tests.rigs.vm import Machine, Wire

MOUNTS = {
    "/nfs": ("/fleet", "hard"),
    "/small": ("/small", "hard"),
    "/soft": ("/small", "soft,timeo=50,retrans=2,nosharecache"),
}
"""Where a machine mounts what, and how; all else is the client's default."""

_BOOT = """
export PATH=/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin HOME=/root LC_ALL=C.UTF-8
bb=/bin/busybox
hostname {name}
mount -t tmpfs tmpfs /run
mkdir -p /run/sshd /run/lock /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
for f in .bashrc .bash_profile .bash_login .profile .hushlogin; do : >/root/$f; done
: >/etc/profile
: >/etc/bash.bashrc
rm -rf /root/.ssh
mkdir -m 700 /root/.ssh
cp {rig}/client_key.pub /root/.ssh/authorized_keys
{own}
$bb ip link set lo up
$bb ip addr add 10.0.2.15/24 dev eth0
$bb ip link set eth0 up
$bb ip route add default via 10.0.2.2
{lan}
$bb modprobe nfsv4
{mounts}
{sshd} -D -f /dev/null -h {rig}/{name}/hostkey -o UsePAM=no -o UseDNS=no -o PidFile=none \\
  -o PermitRootLogin=yes -o PasswordAuthentication=no -o StrictModes=no -o MaxSessions=50 &
: >/run/up
while :; do wait; sleep 1; done
"""


class Cluster:
    """The machines, `head` and `workers`, and their file `server`."""

    def __init__(self, folder: Path, server: Server, machines: Sequence[Machine]) -> None:
        self.folder = folder
        self.server = server
        self.head, *workers = machines
        self.workers = {machine.name: machine for machine in workers}

    @classmethod
    def boot(cls, folder: Path, workers: int = 3, *, stay: bool = False) -> Cluster:
        """Start everything below `folder`, which is made; ready when all can be reached."""
        folder.mkdir(parents=True)
        _compile()
        kernel, initrd = vmimage.build(folder)
        make_key(folder / "client_key")
        wires = [Wire() for _ in range(workers)]
        head = _machine(folder, "head", kernel, initrd, wires, stay)
        rest = [
            _machine(folder, f"node{i}", kernel, initrd, [wire.turned()], stay)
            for i, wire in enumerate(wires, 1)
        ]
        head.memory = 1280  # an aggregator imports torch
        server = Server(str(folder / "server"), stay=stay)
        cluster = cls(folder, server, [head, *rest])
        try:
            server.prepare()
            server.start()
            cluster._write_scripts()
            for machine in cluster.machines:
                machine.power_on()
            cluster.save()
            for machine in cluster.machines:
                try:
                    machine.wait_ssh()
                except AssertionError:  # seen once: it stayed in its firmware
                    machine.power_off()
                    machine.power_on()
                    cluster.save()
                    machine.wait_ssh()
        except BaseException:
            cluster.close()
            raise
        return cluster

    @classmethod
    def load(cls, folder: Path) -> Cluster:
        """The cluster that another process started below `folder`."""
        value = json.loads((folder / "cluster.json").read_text())
        machines = [Machine.from_json(machine) for machine in value["machines"]]
        return cls(folder, Server.from_json(value["server"]), machines)

    def save(self) -> None:
        """Write down what runs, for `load`."""
        value = {
            "server": self.server.to_json(),
            "machines": [machine.to_json() for machine in self.machines],
        }
        temporary = self.folder / ".cluster.json"
        temporary.write_text(json.dumps(value, indent=1) + "\n")
        temporary.rename(self.folder / "cluster.json")

    @property
    def machines(self) -> list[Machine]:
        """All machines, the head first."""
        return [self.head, *self.workers.values()]

    def close(self) -> None:
        """Switch everything off, and remove the folder."""
        for machine in self.machines:
            machine.power_off()
        self.server.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write_scripts(self) -> None:
        known = []
        for machine in self.machines:
            machine.folder.mkdir()
            key = make_key(machine.folder / "hostkey")
            public = " ".join(Path(f"{key}.pub").read_text().split()[:2])
            known.append(f"{machine.name} {public}\n")
        (self.folder / "known_hosts").write_text("".join(known))
        for index, machine in enumerate(self.machines):
            text = _BOOT.format(
                name=machine.name,
                rig=self.folder,
                own=self._head_files()
                if index == 0
                else f"echo 127.0.0.1 {machine.name} localhost >/etc/hosts",
                lan="\n".join(_lan(index, len(self.workers))),
                mounts="\n".join(_mounts(self.server.port)),
                sshd=SSHD,
            )
            (machine.folder / "boot").write_text(text)

    def _head_files(self) -> str:
        hosts = [f"10.9.{i}.2 {name}" for i, name in enumerate(self.workers, 1)]
        lines = ["127.0.0.1 localhost head", *hosts]
        (self.folder / "hosts").write_text("\n".join(lines) + "\n")
        return (
            f"cp {self.folder}/hosts /etc/hosts\n"
            f"cp {self.folder}/known_hosts /root/.ssh/known_hosts\n"
            f"install -m 600 {self.folder}/client_key /root/.ssh/id_ed25519"
        )


def _compile() -> None:
    """Compile what machines import: else each would, on an emulated processor, after every boot.

    They see this checkout read-only, and what they write they forget.
    """
    names = ("ctl", "fsworker", "fedavg", "tests/cluster", "tests/support")
    argv = [sys.executable, "-m", "compileall", "-q", *(str(REPO / name) for name in names)]
    subprocess.run(argv, check=False)  # what is wrong in it will be said when it is imported


def _machine(
    folder: Path, name: str, kernel: Path, initrd: Path, wires: list[Wire], stay: bool
) -> Machine:
    return Machine(name, str(folder), str(kernel), str(initrd), vm.free_port(), wires, stay=stay)


def _lan(index: int, workers: int) -> list[str]:
    """The shell lines that give a machine its addresses on its wires."""
    ends = range(1, workers + 1) if index == 0 else [index]
    last = 1 if index == 0 else 2
    lines = []
    for card, net in enumerate(ends, 1):
        lines.append(f"$bb ip addr add 10.9.{net}.{last}/24 dev eth{card}")
        lines.append(f"$bb ip link set eth{card} up")
    return lines


def _mounts(port: int) -> list[str]:
    common = f"vers=4.2,proto=tcp,port={port},sec=sys"
    lines = []
    for point, (export, options) in MOUNTS.items():
        lines.append(f"mkdir -p {point}")
        lines.append(f"mount -t nfs4 -o {common},{options} 10.0.2.2:{export} {point}")
    return lines


def missing() -> str | None:
    """One sentence on what this machine lacks for a cluster, or None."""
    for path in (str(REPO), sys.executable):
        if any(ch in path for ch in " '\"\\"):
            return f"virtual machines are named {path} in shell lines: use a plain path"
    lacks = "virtual machines need sshd (openssh-server)" if SSHD is None else None
    return lacks or vmimage.missing() or vm.missing() or nfs.missing()
