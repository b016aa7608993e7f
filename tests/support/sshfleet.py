"""A run over real sshd hosts, started by `ctl` as a person types it, and seen from outside.

Hosts have pid spaces of their own. From here all their processes are in sight under other numbers,
so they are found by what they carry in their environment, and a pid that a host speaks of is
translated.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from fsworker import procfs
from fsworker.life import hostlock
from tests.rigs.hosts import Host, HostRig
from tests.support.ctlrun import Ctl, beats, json_lines
from tests.support.waiting import gone, kill_at_once, wait_until

COUNT = "tests.support.counting:count"


class SshFleet(Ctl):
    """`ctl` with hosts to reach over SSH: allowed by FLEET_HOSTS, found by an ssh_config."""

    def __init__(self, folder: Path, rig: HostRig, **env: str) -> None:
        super().__init__(folder, FLEET_LAUNCHER="ssh", FLEET_SSH_CONFIG=str(rig.config), **env)
        self.rig = rig
        self.root = self.runs / "run"

    def add_hosts(self, *names: str, **options: Any) -> list[Host]:
        """Start hosts and allow them."""
        made = [self.rig.add(name, **options) for name in names]
        self.env["FLEET_HOSTS"] = " ".join(self.rig.hosts)
        return made

    def up(self, *args: str, fn: str = COUNT, **env: str) -> list[dict[str, Any]]:
        """`ctl start` of the run at `root`, which must succeed."""
        done = self("start", "--root", str(self.root), "--fn", fn, *args, **env)
        assert done.returncode == 0, done.stderr
        return json_lines(done.stdout)

    def down(self) -> None:
        """`ctl stop`, after which nothing of the run may be left anywhere."""
        done = self("stop", "--root", str(self.root))
        assert done.returncode == 0, (done.stdout, done.stderr)
        assert self.members() == []

    def members(self, host: str | None = None, root: Path | None = None) -> list[int]:
        """All living processes of the run, on one host or on all, as numbered here."""
        root = root or self.root
        run_id = json.loads((root / "manifest.json").read_bytes())["run_id"]
        wanted = {"FLEET_RUN": hostlock.run_key(str(root), run_id)}
        if host:
            wanted["FLEET_HOST"] = host
        found = [p for p in procfs.pids() if procfs.holds(procfs.environ(p), wanted)]
        return [p for p in found if not gone(p)]

    def beat(self, host: str) -> dict[str, Any]:
        """The host's heartbeat, or nothing while there is none."""
        try:
            found: dict[str, Any] = json.loads((self.root / "status" / f"{host}.json").read_bytes())
        except FileNotFoundError:
            return {}
        return found

    def pid(self, host: str, suffix: str = "pid", root: Path | None = None) -> int:
        """The process that a pid file names, as numbered here."""
        path = (root or self.root) / "ctl" / f"{host}.{suffix}"
        inner = int(wait_until(lambda: path.exists() and path.read_text(), what=str(path)))
        return self.translate(host, inner, root)

    def translate(self, host: str, inner: int, root: Path | None = None) -> int:
        """The number here of a process of the run that its host calls `inner`."""
        for pid in self.members(host, root):
            if inner_pid(pid) == inner:
                return pid
        raise AssertionError(f"host {host} has no process {inner} of the run")

    def kill(self, *pids: int) -> None:
        """`kill -9`, and see them gone."""
        kill_at_once(*pids)
        wait_until(lambda: all(map(gone, pids)), what=f"the end of {pids}")

    def wait_new_process(self, host: str, old: int) -> int:
        """The process of the host's next worker, as soon as a pid file names it.

        `old` is the pid of before, as the host calls it.
        """
        path = self.root / "ctl" / f"{host}.pid"

        def look() -> int:
            text = path.read_text() if path.exists() else ""
            return int(text) if text and int(text) != old else 0

        return self.translate(host, wait_until(look, what=f"a new process on {host}"))

    def wait_new_life(
        self, host: str, before: dict[str, Any], deadline: float = 120.0
    ) -> dict[str, Any]:
        """The beat of a later incarnation of the host's worker, once it is ready."""

        def look() -> dict[str, Any] | None:
            beat = self.beat(host)
            return beat if beat["incarnation"] != before["incarnation"] and beat["ready"] else None

        return wait_until(look, deadline, f"a new life on {host}")

    def wait_all_ready(self, deadline: float = 120.0) -> dict[str, Any]:
        """What `ctl status` says once all is well."""

        def look() -> dict[str, Any] | None:
            if not all(beat["ready"] for beat in beats(self.root).values()):
                return None
            status = self.status(self.root)
            return status if status["exit_code"] == 0 else None

        return wait_until(look, deadline, "all hosts ready")

    def text(self, name: str) -> str:
        """A file in `ctl/`."""
        path = self.root / "ctl" / name
        return path.read_text(errors="replace") if path.exists() else ""

    def tokens(self) -> list[str]:
        """All batches that still wait or are held."""
        folders = [*(self.root / "inbox").iterdir(), *(self.root / "claims").iterdir()]
        return [name for folder in folders for name in os.listdir(folder)]


def inner_pid(pid: int) -> int:
    """What the process is called in its own pid space."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return -1
    found = re.search(r"^NSpid:.*\s(\d+)$", text, re.MULTILINE)
    assert found
    return int(found[1])


def others(host: Host) -> list[int]:
    """All processes of a host besides its sshd that listens."""
    return [s.pid for s in procfs.descendants([host.init_pid()]) if s.state not in "ZXx"]


def untaken(root: Path) -> list[str]:
    """The files that lie in the outbox."""
    return [name for _, _, files in os.walk(root / "outbox") for name in files]
