"""A real service manager of a test's own: `systemd --user` in namespaces, over its own cgroup.

systemd wants a machine that it has booted, which it sees by a folder, and a cgroup tree that is its
own. Both are there in a mount and a cgroup namespace; with the pid namespace around them, all that
it started ends with the one process that the test kills.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

SYSTEMD = "/lib/systemd/systemd"
_TOOLS = ("unshare", "nsenter", "mount", "systemctl")

_OUTER = """
set -e
mount -t cgroup2 none "$1/cgroup"
mkdir "$1/cgroup/$2"
echo $$ > "$1/cgroup/$2/cgroup.procs"
exec unshare --cgroup --pid --mount --fork --mount-proc --kill-child sh -c "$3"
"""
_INNER = f"""
set -e
umount -R /sys/fs/cgroup 2>/dev/null || true
mount -t cgroup2 none /sys/fs/cgroup
mkdir -p /run/systemd
mount -t tmpfs none /run/systemd
mkdir /run/systemd/system
# Not as the first process of the namespace, or it takes itself for the machine's manager.
{SYSTEMD} --user --unit=basic.target &
wait
"""
_SWEEP = 'mount -t cgroup2 none "$1/cgroup"; find "$1/cgroup/$2" -depth -type d -exec rmdir {} +'


def missing() -> str | None:
    """One sentence on what this machine lacks for the rig, or None."""
    if os.geteuid() != 0:
        return "a service manager in namespaces needs root"
    lacking = [tool for tool in _TOOLS if not shutil.which(tool)]
    if lacking or not os.path.exists(SYSTEMD):
        return f"a service manager needs {', '.join(lacking) or 'systemd'} (apt install systemd)"
    tried = subprocess.run(
        ["unshare", "--mount", "--cgroup", "sh", "-c", "mount -t cgroup2 none /mnt"],
        capture_output=True,
        check=False,
    )
    if tried.returncode:
        return f"no cgroup tree can be had here: {tried.stderr.decode(errors='replace').strip()}"
    return None


class UserManager:
    """`systemd --user` with a home of its own; commands run in its namespaces by `run`."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sd", dir="/tmp"))
        self.home = self.folder / "home"
        self.log = self.folder / "log"
        self._name = f"shardfleet-{self.folder.name}"
        kept = {k: v for k, v in env.items() if k != "DBUS_SESSION_BUS_ADDRESS"}
        runtime = self.folder / "runtime"
        self.env = {**kept, "HOME": str(self.home), "XDG_RUNTIME_DIR": str(runtime)}
        for path in (self.home, runtime, self.folder / "cgroup"):
            path.mkdir(mode=0o700)

    def __enter__(self) -> Self:
        argv = ["unshare", "--mount", "sh", "-c", _OUTER, "sh", str(self.folder), self._name]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*argv, _INNER], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env
            )
        try:
            self._await()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.send_signal(signal.SIGKILL)  # its namespace goes with it
        self._process.wait()
        sweep = ["unshare", "--mount", "sh", "-c", _SWEEP, "sh", str(self.folder), self._name]
        for _ in range(50):  # the processes of the namespace may still be on their way out
            if subprocess.run(sweep, capture_output=True, check=False).returncode == 0:
                break
            time.sleep(0.1)
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command where the manager is."""
        inside = ["nsenter", "-t", str(self._init()), "-m", "-p", "-C", "--"]
        done = subprocess.run(
            [*inside, *argv], capture_output=True, text=True, env=self.env, timeout=120, check=False
        )
        assert not check or done.returncode == 0, (
            f"{shlex.join(argv)} ended with {done.returncode}: {done.stdout}{done.stderr}\n"
            f"the manager said: {self.said()}"
        )
        return done

    def show(self, unit: str) -> dict[str, str]:
        """What the manager says of a unit."""
        wanted = "ActiveState,SubState,MainPID,NRestarts,Result,StatusText"
        told = self.run("systemctl", "--user", "show", "-p", wanted, unit).stdout
        return dict(line.split("=", 1) for line in told.splitlines())

    def said(self) -> str:
        """The last that manager and units said."""
        return self.log.read_text(errors="replace")[-4000:]

    def _init(self) -> int:
        pid = self._process.pid
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        assert text, f"the manager has ended: {self.said()}"
        return int(text[0])

    def _await(self) -> None:
        end = time.monotonic() + 60
        while True:
            if self._process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"the manager did not come up: {self.said()}")
            try:
                done = self.run("systemctl", "--user", "is-active", "basic.target", check=False)
                if done.stdout.strip() == "active":
                    return
            except (AssertionError, FileNotFoundError, subprocess.TimeoutExpired):
                pass  # not there yet
            time.sleep(0.1)
