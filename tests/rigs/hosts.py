"""Hosts by namespaces: real sshd, own hostname, own pid space, own home, shared files.

Each host is `unshare` around a foreground sshd on a loopback address of its own. All of a host ends
with its `unshare` process, which the rig kills by pid.
"""

from __future__ import annotations

import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.support.waiting import gone, wait_until

REPO = Path(__file__).resolve().parents[2]
INPUTS = Path(__file__).resolve().parent / "inputs"
SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
_UNSHARE = ["unshare", "--uts", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child"]


def missing() -> str | None:
    """One sentence on what this machine lacks for the rig, or None."""
    if os.geteuid() != 0:
        return "hosts by namespaces need root"
    if SSHD is None:
        return "hosts by namespaces need sshd (openssh-server)"
    if not shutil.which("ssh-keygen"):
        return "hosts by namespaces need ssh-keygen (openssh-client)"
    if not shutil.which("unshare"):
        return "hosts by namespaces need unshare (util-linux)"
    tried = subprocess.run([*_UNSHARE, "true"], capture_output=True, check=False)
    if tried.returncode:
        return f"unshare is not allowed here: {tried.stderr.decode(errors='replace').strip()}"
    return None


def require() -> None:
    """Skip the test when the rig cannot be had; on CI, which must have it, fail."""
    why = missing()
    if why and os.environ.get("CI"):
        pytest.fail(why)
    if why:
        pytest.skip(why)


def free_address() -> str:
    """A loopback address that no other test uses: drawn from sixteen million."""
    parts = [random.SystemRandom().randint(1, 254) for _ in range(3)]
    return "127." + ".".join(map(str, parts))


def free_port(address: str) -> int:
    with socket.socket() as sock:
        sock.bind((address, 0))
        return int(sock.getsockname()[1])


@dataclass
class Host:
    """One running host. `name` is the name under which the client reaches it."""

    name: str
    address: str
    port: int
    home: Path
    key: Path
    log: Path
    process: subprocess.Popen[bytes] = field(repr=False)

    def kill(self) -> None:
        """End the host with all its processes, as a power cut would."""
        inside = _children(self.process.pid)
        self.process.kill()
        self.process.wait()
        what = f"the end of host {self.name} with its unshare"
        wait_until(lambda: all(map(gone, inside)), what=what)

    def init_pid(self) -> int:
        """The pid, in our own pid space, of the host's first process, which is its sshd."""
        return _children(self.process.pid)[0]

    def inside(self, *argv: str) -> subprocess.CompletedProcess[bytes]:
        """Run a command in the host without SSH."""
        enter = ["nsenter", "-t", str(self.init_pid()), "-m", "-u", "-p", "--"]
        return subprocess.run([*enter, *argv], capture_output=True, check=False, timeout=30)

    def freeze(self) -> None:
        """Stop the host's sshd from answering; the kernel still accepts connections."""
        os.kill(self.init_pid(), signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.init_pid(), signal.SIGCONT)


class HostRig:
    """Hosts for one test, and the ssh configuration with which to reach them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hosts: dict[str, Host] = {}
        self.config = folder / "ssh_config"
        self.known_hosts = folder / "known_hosts"
        self.client_key = folder / "client_key"
        self._blocks: list[str] = []

    def __enter__(self) -> Self:
        os.makedirs("/run/sshd", exist_ok=True)  # sshd wants its empty folder
        make_key(self.client_key)
        self.known_hosts.touch()
        self._write_config()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for host in self.hosts.values():
            host.kill()

    def options(self, **more: Any) -> dict[str, Any]:
        """Options for `open_launcher("ssh", …)`."""
        base = {"python": sys.executable, "pythonpath": [str(REPO)], "ssh_config": str(self.config)}
        return {**base, **more}

    def add(
        self,
        name: str,
        *,
        hostname: str | None = None,
        shell: str = "/bin/bash",
        login: str = "",
        sshd: Sequence[str] = (),
        pam: str | None = None,
        client: Sequence[str] = (),
        known: bool = True,
    ) -> Host:
        """Start a host; returns once its sshd answers.

        `hostname` is what it calls itself, `login` its `.bashrc`, `sshd` more settings of its sshd,
        `pam` the rules by which PAM lets people in (none: no PAM), `client` more lines for its
        block in the client's configuration.
        """
        home = self.folder / f"home-{name}"
        (home / ".ssh").mkdir(parents=True)
        (home / ".bashrc").write_text(login)
        address = free_address()
        port = free_port(address)
        key = make_key(self.folder / f"hostkey-{name}")
        log = self.folder / f"sshd-{name}.log"
        script = self._boot_script(home, hostname or name, shell, pam)
        settings = [
            f"ListenAddress={address}",
            f"HostKey={key}",
            f"AuthorizedKeysFile={self.client_key}.pub",
            f"UsePAM={'yes' if pam else 'no'} PidFile=none UseDNS=no StrictModes=no",
            "PermitRootLogin=yes PasswordAuthentication=no KbdInteractiveAuthentication=no",
        ]
        listed = [s for line in settings for s in line.split(" ")] + list(sshd)
        argv = [str(SSHD), "-D", "-e", "-f", "/dev/null", "-p", str(port)]
        # The first value of a setting counts.
        argv += [word for setting in reversed(listed) for word in ("-o", setting)]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*_UNSHARE, "sh", "-c", script + ' exec "$@"', "sh", *argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        host = Host(name, address, port, home, key, log, process)
        self.hosts[name] = host
        self.reach(name, host, client)
        if known:
            self.know(host)
        wait_for_banner(host)
        return host

    def reach(self, name: str, host: Host, client: Sequence[str] = ()) -> None:
        """Let the client reach `host` under one more name."""
        lines = [f"Host {name}", f"HostName {host.address}", f"Port {host.port}", *client]
        self._blocks.append("\n  ".join(lines))
        self._write_config()

    def know(self, host: Host, kind: str | None = None) -> None:
        """Record the host's key in the client's known_hosts."""
        public = (host.key.parent / (host.key.name + ".pub")).read_text().split()[:2]
        with self.known_hosts.open("a") as stream:
            stream.write(f"[{host.address}]:{host.port} {' '.join(public)}\n")

    def _boot_script(self, home: Path, hostname: str, shell: str, pam: str | None) -> str:
        passwd = home.with_name(home.name + ".passwd")
        rest = [
            line for line in Path("/etc/passwd").read_text().splitlines() if line[:5] != "root:"
        ]
        passwd.write_text("\n".join([f"root:x:0:0:root:{home}:{shell}", *rest]) + "\n")
        mounts = [(passwd, "/etc/passwd")]
        if pam is not None:
            rules = home.with_name(home.name + ".pam")
            rules.write_text(pam)
            mounts.append((rules, "/etc/pam.d/sshd"))
        steps = [f"hostname {shlex.quote(hostname)}"]
        steps += [f"mount --bind {shlex.quote(str(src))} {target}" for src, target in mounts]
        return " && ".join(steps) + " &&"

    def _write_config(self) -> None:
        common = [
            "Host *",
            "User root",
            f'IdentityFile "{self.client_key}"',
            "IdentitiesOnly yes",
            "IdentityAgent none",
            f'UserKnownHostsFile "{self.known_hosts}"',
            "GlobalKnownHostsFile none",
        ]
        text = "\n".join([*self._blocks, "\n  ".join(common)]) + "\n"
        self.config.write_text(text)


def make_key(path: Path, kind: str = "ed25519") -> Path:
    argv = ["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "", "-f", str(path)]
    argv += ["-b", "2048"] if kind == "rsa" else []
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
    return path


def wait_for_banner(host: Host, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            with socket.create_connection((host.address, host.port), 1.0) as sock:
                if sock.recv(4) == b"SSH-":
                    return
        except OSError:
            pass
        said = host.log.read_text(errors="replace")
        assert host.process.poll() is None, f"sshd of {host.name} ended: {said}"
        assert time.monotonic() < deadline, f"sshd of {host.name} does not answer: {said}"
        time.sleep(0.02)


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except FileNotFoundError:
        return []
    return [int(word) for word in text.split()]
