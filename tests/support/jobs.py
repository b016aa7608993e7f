"""A fleet of job slots on this machine, and training jobs on it, as a person has them by `ctl`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from ctl import roots
from ctl.jobs import board
from ctl.jobs.board import Row
from ctl.roots import Run
from fsworker.protocol import jobstate, layout
from fsworker.protocol.records.run import HostIdentity
from tests.support.ctlrun import REPO, Ctl
from tests.support.waiting import gone, wait_until, with_environ

TRAIN = str(REPO / "tests" / "support" / "tiny_train.py")
COMMAND = (
    *(sys.executable, TRAIN, "--save", "{checkpoint}", "--episodes", "{episodes}"),
    *("--first", "{episode}", "{transfer}"),
)


class JobFleet:
    """Hosts with one job slot each; `ctl` is called in its folder."""

    def __init__(self, ctl: Ctl, *hosts: str, options: tuple[str, ...] = (), **env: str) -> None:
        self.ctl = ctl
        self.root = ctl.runs / "run"
        self.diary = ctl.folder / "diary"
        ctl.start(
            self.root, "--hosts", ",".join(hosts or ("n0",)), "--concurrency", "0", *options, **env
        )
        self.run: Run = roots.open_run(str(self.root))

    def submit(self, *train: str, options: tuple[str, ...] = (), **env: str) -> str:
        """Submit a job of the tiny training script; its id."""
        command = [*COMMAND, "--diary", str(self.diary), *train]
        return self.submit_command(command, options=options, **env)[0]

    def submit_command(
        self, command: list[str], options: tuple[str, ...] = (), **env: str
    ) -> list[str]:
        """Submit jobs of any command; their ids."""
        done = self.call(
            "job", "submit", "--checkpoint", "checkpoint.json", *options, "--", *command, **env
        )
        assert done.returncode == 0, done.stderr
        return str(done.stdout).split()

    def call(self, *args: str, **env: str) -> Any:
        """Call `ctl` with this root, which stands before what is behind `--`."""
        at = args.index("--") if "--" in args else len(args)
        return self.ctl(*args[:at], "--root", str(self.root), *args[at:], **env)

    def row(self, job: str) -> Row:
        """How a job is now."""
        return board.rows(self.run, [job])[0]

    def over(self, job: str, deadline: float = 120.0) -> dict[str, Any]:
        """The `result.json` of a job, once it is there."""
        path = self.job(job) / "result.json"
        wait_until(lambda: path.exists() or None, deadline, f"the result of {job}")
        value: dict[str, Any] = json.loads(path.read_bytes())
        return value

    def running(self, job: str, line: str = "begin 1") -> int:
        """The pid of the training process that wrote this line into the diary."""
        return wait_until(lambda: self.wrote(line), what=f"{line} of {job}")

    def wrote(self, line: str) -> int | None:
        """The pid of the latest process that wrote this line."""
        found = [text.split() for text in self.lines()]
        pids = [int(words[-1]) for words in found if " ".join(words[:-1]) == line]
        return pids[-1] if pids else None

    def lines(self) -> list[str]:
        """The diary."""
        return self.diary.read_text().splitlines() if self.diary.exists() else []

    def job(self, job: str) -> Path:
        """A job's folder."""
        return self.root / "outbox" / "jobs" / job

    def weights(self, job: str, episode: int) -> list[float]:
        """What is in the checkpoint of a finished episode."""
        path = self.job(job) / layout.jobs.after_name(episode) / "checkpoint.json"
        found: list[float] = json.loads(path.read_text())["weights"]
        return found

    def pids(self, host: str) -> tuple[int, int]:
        """(wrapper, worker) of a host."""
        path = self.root / layout.host_file(host, "identity.json")
        who: HostIdentity = HostIdentity.from_json(path.read_bytes(), str(path))
        assert who.wrapper and who.worker
        return who.wrapper.pid, who.worker.pid

    def holders(self, job: str) -> list[int]:
        """All living processes of a job: whoever has it in its environment."""
        return [pid for pid in with_environ(f"FLEET_JOB={job}") if not gone(pid)]

    def notes(self, job: str) -> list[Any]:
        """What the attempts at a job have noted."""
        return [note for _, note in jobstate.attempts(self.run.store, job)]


def undisturbed(folder: Path, episodes: int, *train: str) -> list[float]:
    """The weights after so many episodes, one process each, without any fleet."""
    import subprocess

    load: list[str] = []
    for episode in range(1, episodes + 1):
        save = folder / f"plain_{episode}.json"
        argv = [sys.executable, TRAIN, "--save", str(save), "--first", str(episode), *load, *train]
        subprocess.run(argv, check=True, env=os.environ, stdout=subprocess.DEVNULL)
        load = ["--load", str(save), "--transfer"]
    found: list[float] = json.loads(save.read_text())["weights"]
    return found
