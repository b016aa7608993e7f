"""`ctl` as a person calls it, for tests: own workspace, own prefix, everything ended at the end."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from tests.support.waiting import Spawned

REPO = Path(__file__).parents[2]
ECHO = "tests.support.functions_for_tests:echo"


class Ctl:
    """Calls of `ctl` in a folder of their own. Use as a context: no process survives it."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder = folder
        self.runs, self.ws = folder / "runs", folder / "ws"
        self.runs.mkdir(exist_ok=True)
        self.entry = f"CTL_TEST={secrets.token_hex(8)}"
        self.spawned = Spawned(self.entry)
        plain = {k: v for k, v in os.environ.items() if not k.startswith(("FLEET_", "SAO_"))}
        self.env = {
            **plain,
            "PYTHONPATH": str(REPO),
            "FLEET_WORKSPACE": str(self.ws),
            "FLEET_ROOT": str(self.runs),
            "FLEET_LAUNCHER": "local",
            "FLEET_CONCURRENCY": "1",
            **dict([self.entry.split("=", 1)]),
            **env,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.spawned.end_all()

    def __call__(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run `ctl ARGS` to its end."""
        return subprocess.run(
            [sys.executable, "-m", "ctl", *args],
            capture_output=True,
            text=True,
            env={**self.env, **env},
            cwd=self.folder,
            timeout=240,
            check=False,
        )

    def popen(self, *args: str, **env: str) -> subprocess.Popen[bytes]:
        """Begin `ctl ARGS`."""
        return self.spawned.start(
            [sys.executable, "-m", "ctl", *args],
            env={**self.env, **env},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def start(self, root: Path, *args: str, **env: str) -> list[dict[str, Any]]:
        """A start that must succeed; its JSON lines."""
        done = self("start", "--root", str(root), "--fn", ECHO, *args, **env)
        assert done.returncode == 0, done.stderr
        return json_lines(done.stdout)

    def status(self, root: Path) -> dict[str, Any]:
        """What `status --json` says."""
        value: dict[str, Any] = json.loads(self("status", "--root", str(root), "--json").stdout)
        return value


def beats(root: Path) -> dict[str, dict[str, Any]]:
    """The heartbeats of a run by host. Who waits for one asks them, not a process of `ctl`."""
    names = [n for n in os.listdir(root / "status") if n.endswith(".json") and n[0] != "."]
    return {n[:-5]: json.loads((root / "status" / n).read_bytes()) for n in names}


def json_lines(text: str) -> list[dict[str, Any]]:
    """The lines that scripts take: those that begin with a brace."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def started(text: str) -> dict[str, dict[str, str]]:
    """The `started` lines by host."""
    rows = [line.split()[1:] for line in text.splitlines() if line.startswith("started ")]
    fields = [dict(word.split("=", 1) for word in row) for row in rows]
    return {row["host"]: row for row in fields}
