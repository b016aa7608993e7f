"""What the acts of `make demo` share: they say what happens, check it, and leave nothing running.

Each act starts a fleet on this machine with the commands that anybody would use. If a promise does
not hold, the act says which, stops what it started and exits 1.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
PLACE = REPO / ".demo"
CTL = [sys.executable, "-m", "ctl"]
FEDAVG = [sys.executable, "-c", "import sys; from fedavg.cli import main; sys.exit(main())"]
DEADLINE = 240.0
"""Seconds after which anything that is waited for counts as broken."""

BEGUN = time.monotonic()


class Broken(Exception):
    """A promise of the demo does not hold."""


def check(holds: bool, promise: str) -> None:
    """Go on only if `promise` holds."""
    if not holds:
        raise Broken(promise)


def say(text: str) -> None:
    """One line of what happens, with the time since the beginning."""
    print(f"[{time.monotonic() - BEGUN:5.1f}s] {text}", flush=True)


def environment() -> dict[str, str]:
    """Ours, without settings that mean another fleet."""
    own = {k: v for k, v in os.environ.items() if not k.startswith(("FLEET_", "SAO_", "REWARD_"))}
    places = {"FLEET_ROOT": str(PLACE / "runs"), "FLEET_WORKSPACE": str(PLACE / "ws")}
    return {**own, "XDG_CONFIG_HOME": str(PLACE / "config"), **places}


def ctl(*words: str, codes: tuple[int, ...] = (0,)) -> str:
    """Run a command of ctl as a user would; its output."""
    argv, env = [*CTL, *words], environment()
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, env=env, check=False)
    check(done.returncode in codes, f"`ctl {' '.join(words)}` exits {done.returncode}, not 0")
    return done.stdout


@contextlib.contextmanager
def beside(argv: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command at work meanwhile; what it says goes to `log`, clear of our own progress."""
    with log.open("wb") as out:
        child = subprocess.Popen(argv, stdout=out, stderr=out, env=environment())
        try:
            yield child
        finally:
            if child.poll() is None:
                child.terminate()
            child.wait()


def pid_in(root: str, host: str, suffix: str) -> int:
    """The bare number in a pid file."""
    return int(Path(root, "ctl", f"{host}.{suffix}").read_text())


def environ_of(pid: int) -> dict[str, str]:
    """What a process was started with; nothing for one that is gone."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(entry.partition("=")[::2] for entry in entries if "=" in entry)


def processes_of(run: str) -> list[int]:
    """All processes that carry the run's token in their environment."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if environ_of(pid).get("FLEET_RUN") == run]


class Fleet:
    """The run of an act: its root, and the token that all its processes carry."""

    def __init__(self) -> None:
        self.root, self.run = "", ""
        self.alive = False

    def start(self, name: str, *options: str) -> None:
        """Start workers demo1 and demo2, and see from the JSON lines that they are ready."""
        run_id = time.strftime(f"{name}_%Y%m%d_%H%M%S")
        self.root, self.alive = str(PLACE / "runs" / run_id), True
        place = ("--root", self.root, "--run-id", run_id)
        output = ctl("start", "--launcher", "local", "--hosts", "demo[1-2]", *place, *options)
        for line in output.splitlines():
            if line.startswith("started"):
                say(line)
        last = json.loads([line for line in output.splitlines() if line.startswith("{")][-1])
        check(last.get("phase") == "ready", "`ctl start` ends with its workers ready")
        check(last["root"] == self.root, f"the run is in {self.root}, not in {last['root']}")
        self.run = environ_of(pid_in(self.root, "demo1", "wrap.pid"))["FLEET_RUN"]

    def stop(self) -> None:
        """Stop the run and look for processes that are left."""
        before = len(processes_of(self.run))
        promise = "two wrappers and two workers carry the run's token"
        check(before >= 4, f"{promise}, not {before} processes")
        ctl("stop", "--root", self.root, "--grace", "30")
        left = processes_of(self.run)
        check(not left, f"no process is left after `ctl stop`; these are: {left}")
        say(f"ctl stop: none of the run's {before} processes is left")
        self.alive = False

    def give_up(self) -> None:
        """End whatever an act that broke has left."""
        if self.alive:
            ending = ["stop", "--root", self.root, "--grace", "10", "--kill-after", "5"]
            subprocess.run([*CTL, *ending], env=environment(), check=False)
            print(f"the run root is kept: {self.root}", file=sys.stderr)


def perform(act: Callable[[Fleet], None]) -> int:
    """An act from its beginning to its exit code."""
    (PLACE / "config").mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leaves nothing running either
    fleet = Fleet()
    try:
        act(fleet)
    except (Broken, KeyboardInterrupt) as error:
        print(f"DEMO FAILED, this does not hold: {str(error) or 'interrupted'}", file=sys.stderr)
        return 1
    finally:
        fleet.give_up()
    return 0
