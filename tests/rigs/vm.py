"""Machines with kernels of their own: boot, reach, freeze, cut off, switch off.

Each is a qemu process without KVM, so it runs wherever a process may run. It has two network cards:
`wan` leads to this machine (its ssh port is forwarded, and this machine is 10.0.2.2 for it), `lan`
to the head, each worker by a wire of its own. Whatever was started ends with the process that
started it, unless it was asked to stay.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.support.leftovers import SESSION
from tests.support.waiting import gone, start_ticks, wait_until

QEMU = "qemu-system-x86_64"
_HARDWARE = shlex.split(
    "-accel tcg,thread=single,tb-size=512 -cpu max,-la57,-smap,-smep,-pku "
    "-smp 1 -nographic -nodefaults -serial stdio "
    "-virtfs local,path=/,mount_tag=hostroot,security_model=none,readonly=on,multidevs=remap"
)
"""What costs an emulated processor much and protects nobody here is left out."""
_SSH = ("-o", "ControlMaster=auto", "-o", "ControlPersist=yes", "-o", "LogLevel=ERROR")
_LEASH = ("setpriv", "--pdeathsig", "KILL", "--")
_PORTS: set[int] = set()
_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}
BOOT_DEADLINE = 240.0
"""Seconds in which a machine answers: 11 s on idle cores, and they are seldom idle."""


def spawn(
    argv: list[str], log: Path, *, stay: bool, env: Mapping[str, str] | None = None
) -> tuple[int, int | None]:
    """Start a process that ends with this one, or is to `stay`; its pid and its start."""
    # What stays belongs to no test session, whose end would end it.
    kept = {k: v for k, v in os.environ.items() if not (stay and k == SESSION)}
    with log.open("ab") as output:
        process = subprocess.Popen(
            argv if stay else [*_LEASH, *argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**kept, **(env or {})},
            start_new_session=True,
        )
    _CHILDREN[process.pid] = process
    return process.pid, start_ticks(process.pid)


def end(pid: int, ticks: int | None) -> None:
    """Kill a process, if it is still the one that it was, and see it gone."""
    if ticks is not None and start_ticks(pid) == ticks:
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: gone(pid), what=f"the end of {pid}")
    if pid in _CHILDREN:
        _CHILDREN.pop(pid).wait()


def free_port(kind: int = socket.SOCK_STREAM) -> int:
    """A port of 127.0.0.1 that nobody uses now and that this process was not given before."""
    while True:
        with socket.socket(socket.AF_INET, kind) as sock:
            sock.bind(("127.0.0.1", 0))
            port = int(sock.getsockname()[1])
        if port not in _PORTS:
            _PORTS.add(port)
            return port


@dataclass
class Wire:
    """A cable: the two UDP ports of this machine between which frames go."""

    here: int = field(default_factory=lambda: free_port(socket.SOCK_DGRAM))
    there: int = field(default_factory=lambda: free_port(socket.SOCK_DGRAM))

    def turned(self) -> Wire:
        """The same cable seen from its other end."""
        return Wire(self.there, self.here)


@dataclass
class Machine:
    """One virtual machine. `wires` are its `lan` cards, in order."""

    name: str
    rig: str
    kernel: str
    initrd: str
    ssh_port: int
    wires: list[Wire] = field(default_factory=list)
    memory: int = 512
    rtc: str | None = None
    stay: bool = False
    pid: int = 0
    ticks: int | None = None

    @property
    def folder(self) -> Path:
        """Where its boot script, its console and its monitor's socket lie."""
        return Path(self.rig) / self.name

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Machine:
        """What `asdict` made of a machine."""
        return cls(**{**value, "wires": [Wire(**wire) for wire in value["wires"]]})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def running(self) -> bool:
        """Whether its process is there, frozen or not."""
        return bool(self.pid) and start_ticks(self.pid) == self.ticks and not gone(self.pid)

    def power_on(self) -> None:
        """Begin to boot; `wait_ssh` tells when it is up."""
        assert not self.running, f"{self.name} runs already"
        self._forget_connection()
        self._monitor_path().unlink(missing_ok=True)
        argv = [QEMU, *_HARDWARE, "-m", str(self.memory), "-kernel", self.kernel]
        words = f"console=ttyS0 quiet panic=-1 mitigations=off rig={self.rig} node={self.name}"
        argv += ["-initrd", self.initrd, "-append", words]
        argv += ["-qmp", f"unix:{self._monitor_path()},server=on,wait=off"]
        argv += self._cards()
        argv += ["-rtc", f"base={self.rtc}"] if self.rtc else []
        self.pid, self.ticks = spawn(argv, self.folder / "console", stay=self.stay)

    def power_off(self) -> None:
        """Take the power away: nothing is closed, nobody is told."""
        end(self.pid, self.ticks)
        self._forget_connection()

    def reset(self) -> None:
        """Press the reset button: it boots again, and remembers nothing."""
        self._forget_connection()
        self.monitor("system_reset")

    def freeze(self) -> None:
        """Stop it with its clock, as a hypervisor does that moves or suspends it."""
        self.monitor("stop")

    def thaw(self) -> None:
        self.monitor("cont")

    def hang(self) -> None:
        """Stop it while its clock goes on, as a machine that is stuck in its firmware."""
        os.kill(self.pid, signal.SIGSTOP)

    def unhang(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def link(self, up: bool, cards: Sequence[str] | None = None) -> None:
        """Pull out or put back its network cables: all, or those of `cards`."""
        if not up:
            self._forget_connection()
        for card in cards or ["wan", *(f"lan{i}" for i in range(len(self.wires)))]:
            self.monitor("set_link", name=card, up=up)

    def monitor(self, command: str, **arguments: Any) -> Any:
        """One command of qemu's monitor, and its answer."""
        with self._dial() as sock, sock.makefile("rw") as stream:
            for asked in ({"execute": "qmp_capabilities"}, _request(command, arguments)):
                stream.write(json.dumps(asked) + "\n")
                stream.flush()
                answer = _answer(stream)
        assert "return" in answer, f"{self.name}: {command}: {answer}"
        return answer["return"]

    def _dial(self) -> socket.socket:
        """A connection to the monitor, which a machine that was just switched on has not yet."""
        limit = time.monotonic() + 60
        while True:
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(60)
            try:
                sock.connect(str(self._monitor_path()))
            except (FileNotFoundError, ConnectionRefusedError):
                sock.close()
                if not self.running or time.monotonic() > limit:
                    raise
                time.sleep(0.05)
            else:
                return sock

    def ssh_argv(self, *argv: str) -> list[str]:
        """The command that runs a shell command in the machine, over one kept connection."""
        keys = ["-F", "none", "-i", f"{self.rig}/client_key", "-p", str(self.ssh_port)]
        keys += ["-o", f"UserKnownHostsFile={self.rig}/known_hosts", "-o", "ConnectTimeout=60"]
        keys += ["-o", f"HostKeyAlias={self.name}", "-o", f"ControlPath={self._control()}"]
        return ["ssh", *keys, *_SSH, "root@127.0.0.1", *argv]

    def run(
        self, command: str, *, check: bool = True, timeout: float = 300, data: bytes | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell command in the machine; its output is text."""
        done = subprocess.run(
            self.ssh_argv(command),
            input=data or b"",
            capture_output=True,
            timeout=timeout,
            check=False,
        )
        out, err = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
        told = f"{self.name}: {command}\nexit code {done.returncode}\n{out}\n{err}"
        assert not check or done.returncode == 0, told
        return subprocess.CompletedProcess(done.args, done.returncode, out, err)

    def wait_ssh(self, deadline: float = BOOT_DEADLINE) -> None:
        """Until it is up and lets us in."""
        limit = time.monotonic() + deadline
        while True:
            console = self.folder / "console"
            assert self.running, f"{self.name} ended: {_tail(console)}"
            if self._has_banner():
                tried = self.run("test -e /run/up", check=False)
                if tried.returncode == 0:
                    return
                self._forget_connection()
            assert time.monotonic() < limit, f"{self.name} does not come up: {_tail(console)}"
            time.sleep(0.3)

    def boot_id(self) -> str:
        return self.run("cat /proc/sys/kernel/random/boot_id").stdout.strip()

    def _has_banner(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.ssh_port), 5.0) as sock:
                sock.settimeout(20.0)
                return sock.recv(4) == b"SSH-"
        except OSError:
            return False

    def _cards(self) -> list[str]:
        wan = f"user,id=wan,hostfwd=tcp:127.0.0.1:{self.ssh_port}-:22"
        argv = ["-netdev", wan, "-device", "virtio-net-pci,netdev=wan,romfile="]
        for index, wire in enumerate(self.wires):
            ends = f"udp=127.0.0.1:{wire.there},localaddr=127.0.0.1:{wire.here}"
            mac = f"52:54:01:{wire.here >> 8:02x}:{wire.here & 255:02x}:{index:02x}"
            argv += ["-netdev", f"socket,id=lan{index},{ends}"]
            argv += ["-device", f"virtio-net-pci,netdev=lan{index},mac={mac},romfile="]
        return argv

    def _control(self) -> Path:
        return self.folder / "ssh"

    def _monitor_path(self) -> Path:
        return self.folder / "monitor"

    def _forget_connection(self) -> None:
        """Close the kept connection, whose other end is gone or about to be."""
        if self._control().exists():
            argv = ["ssh", "-F", "none", "-S", str(self._control()), "-O", "exit", "x"]
            subprocess.run(argv, capture_output=True, check=False, timeout=60)
            self._control().unlink(missing_ok=True)


def _request(command: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"execute": command, "arguments": dict(arguments)}


def _answer(stream: Any) -> dict[str, Any]:
    """The next line that is neither greeting nor event."""
    while True:
        value: dict[str, Any] = json.loads(stream.readline())
        if "return" in value or "error" in value:
            return value


def _tail(path: Path) -> str:
    return path.read_text(errors="replace")[-2000:] if path.exists() else "it said nothing"


def missing() -> str | None:
    """One sentence on what this machine lacks to run machines, or None."""
    for program, package in ((QEMU, "qemu-system-x86"), ("setpriv", "util-linux")):
        if not shutil.which(program):
            return f"virtual machines need {program} ({package})"
    return None
