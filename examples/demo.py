"""`make demo`: a fleet of two workers on this machine grades 2,000 answers and loses a worker.

It uses the commands and the client as anybody would, and checks what it shows. Its promises: the
killed worker comes back by itself, every task has exactly one result and the right one, and after
`ctl stop` no process of the run is left. If one of them does not hold, it says so and exits 1.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsworker

REPO = Path(__file__).resolve().parents[1]
GRADING = REPO / "examples" / "grading"
ANSWERS = GRADING / "answers.jsonl"
PLACE = REPO / ".demo"
CTL = [sys.executable, "-m", "ctl"]
VICTIM = "demo1"
TASK_TIMEOUT = 5
DEADLINE = 240.0
"""Seconds after which anything that is waited for counts as broken."""

EXPECTED = {
    "right": ("ok", 1.0),
    "wrong": ("ok", 0.0),
    "malformed": ("ok", 0.0),
    "pathological": ("timeout", None),
}
"""What must come of each kind of answer."""


class Broken(Exception):
    """A promise of the demo does not hold."""


def check(holds: bool, promise: str) -> None:
    """Go on only if `promise` holds."""
    if not holds:
        raise Broken(promise)


def say(text: str) -> None:
    """One line of what happens, with the time since the beginning."""
    print(f"[{time.monotonic() - BEGUN:5.1f}s] {text}", flush=True)


def ctl(*words: str, codes: tuple[int, ...] = (0,)) -> str:
    """Run a command of ctl as a user would; its output."""
    argv, env = [*CTL, *words], environment()
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, env=env, check=False)
    check(done.returncode in codes, f"`ctl {' '.join(words)}` exits {done.returncode}, not 0")
    return done.stdout


def environment() -> dict[str, str]:
    """Ours, without settings that mean another fleet."""
    own = {k: v for k, v in os.environ.items() if not k.startswith(("FLEET_", "SAO_", "REWARD_"))}
    return {**own, "XDG_CONFIG_HOME": str(PLACE / "config"), "FLEET_WORKSPACE": str(PLACE / "ws")}


# -- the run


def start() -> str:
    """Start two workers; the run root, taken from the JSON lines as scripts take it."""
    slots = max(1, min(8, (os.cpu_count() or 2) // 2))
    run_id = time.strftime("demo_%Y%m%d_%H%M%S")
    output = ctl(
        "start",
        *("--launcher", "local", "--hosts", "demo[1-2]", "--concurrency", str(slots + 1)),
        *("--fn", "grader:grade", "--repo", str(GRADING), "--task-timeout", str(TASK_TIMEOUT)),
        *("--root", str(PLACE / "runs" / run_id), "--run-id", run_id),
    )
    for line in output.splitlines():
        if line.startswith("started"):
            say(line)
    last = json.loads([line for line in output.splitlines() if line.startswith("{")][-1])
    check(last.get("phase") == "ready", "`ctl start` ends with its workers ready")
    return str(last["root"])


def one_call(root: str) -> None:
    """The same fleet from Python."""
    with fsworker.Client(root) as client:
        score = client.submit("grader:grade", "\\frac{1}{2}", "It is \\boxed{0.5}").result(60)
    check(score == 1.0, "a call from Python returns its value")
    say("Client.submit('grader:grade', '\\\\frac{1}{2}', 'It is \\\\boxed{0.5}') -> 1.0")


@contextlib.contextmanager
def results_into(root: str, target: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`ctl results` at work; what it says goes beside `target`, clear of our own progress."""
    with target.with_suffix(".log").open("wb") as log:
        argv = [*CTL, "results", "--root", root, "-o", str(target)]
        child = subprocess.Popen(argv, stdout=log, stderr=log, env=environment())
        try:
            yield child
        finally:
            if child.poll() is None:
                child.terminate()
            child.wait()


def arrived(target: Path) -> int:
    """How many results `ctl results` has kept so far: a JSON line a batch, after a first line."""
    try:
        lines = Path(f"{target}.partial").read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return 0
    return sum(len(json.loads(x)["rows"]) for x in lines[1:] if x.endswith(b"\n"))


def status(root: str) -> dict[str, Any]:
    """`ctl status --json`, also while it is degraded."""
    document: dict[str, Any] = json.loads(ctl("status", "--root", root, "--json", codes=(0, 1)))
    return document


def kill_worker(root: str, run: str) -> int:
    """SIGKILL the victim's worker: the pid is in its file, its environment proves that it is it."""
    pid = pid_in(root, VICTIM, "pid")
    found = environ_of(pid)
    proven = found.get("FLEET_RUN") == run and found.get("FLEET_HOST") == VICTIM
    check(proven, f"ctl/{VICTIM}.pid names the worker (pid {pid})")
    os.kill(pid, signal.SIGKILL)
    say(f"kill -9 {pid}: the worker of {VICTIM}, in the middle of its work")
    return pid


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


# -- progress


class Progress:
    """How far it is: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, total: int) -> None:
        self.total, self.shown = total, -1
        self.bar: Any = None
        if sys.stdout.isatty():
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            columns = (TextColumn("graded"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self.bar = Bar(*columns, transient=True)
            self.task = self.bar.add_task("graded", total=total)
            self.bar.start()

    def show(self, done: int, note: str = "") -> None:
        """`done` of all are finished."""
        if self.bar:
            self.bar.update(self.task, completed=done)
        elif done * 10 // self.total > self.shown:
            self.shown = done * 10 // self.total
            say(f"{done} of {self.total} graded{note}")

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self.bar:
            self.bar.stop()


def follow(root: str, run: str, child: subprocess.Popen[bytes], target: Path, total: int) -> None:
    """Show progress until all results are there; kill a worker at a third and see it return."""
    progress = Progress(total)
    killed: tuple[int, float] | None = None
    done, back = 0, False
    end = time.monotonic() + DEADLINE
    try:
        while child.poll() is None:
            check(time.monotonic() < end, f"all results are there within {DEADLINE:.0f} s")
            done = max(done, arrived(target))  # the kept ones move to their file at the end
            progress.show(done)
            if killed is None and done >= total // 3:
                killed = kill_worker(root, run), time.monotonic()
            elif killed and not back:
                back = has_returned(root, *killed)
            time.sleep(0.1)
    finally:
        progress.close()
    # 1: some tasks failed, which the pathological ones must.
    code, words = child.returncode, target.with_suffix(".log").read_text().strip()
    check(code == 1, f"`ctl results` exits 1, not {code}: {words}")
    check(killed is not None, "the worker was killed while there was work")
    while killed and not back:
        check(time.monotonic() < end, f"{VICTIM} comes back")
        back = has_returned(root, *killed)
        time.sleep(0.1)


def has_returned(root: str, old: int, since: float) -> bool:
    """Whether the victim beats and is ready with another process; said once."""
    host = next(h for h in status(root)["hosts"] if h["host"] == VICTIM)
    if not host["ok"] or host["status_pid"] in (None, old):
        return False
    say(
        f"{VICTIM} is back by its wrapper alone: pid {host['status_pid']}, "
        f"ready {time.monotonic() - since:.1f} s after the kill"
    )
    return True


# -- the proof


def judge(target: Path) -> Counter[str]:
    """Check every result; how many there are of each kind."""
    wanted = [json.loads(line)["id"] for line in ANSWERS.read_text().splitlines()]
    found = [json.loads(line) for line in target.read_text().splitlines()]
    times = Counter(result["id"] for result in found)
    check(not [i for i in wanted if times[i] != 1], "every task has exactly one result")
    check([r["id"] for r in found] == wanted, "results come in the order of the tasks")
    wrong = [r for r in found if not is_right(r)]
    check(not wrong, f"every verdict is the right one; these are not: {wrong[:3]}")
    return Counter(result["id"].partition("-")[0] for result in found)


def is_right(result: dict[str, Any]) -> bool:
    """Whether a result is what its kind of answer must get."""
    state, value = EXPECTED[result["id"].partition("-")[0]]
    return result["status"] == state and (value is None or result["value"] == value)


def stop(root: str, run: str) -> None:
    """Stop the run and look for processes that are left."""
    before = len(processes_of(run))
    check(
        before >= 4, f"two wrappers and two workers carry the run's token, not {before} processes"
    )
    ctl("stop", "--root", root, "--grace", "30")
    left = processes_of(run)
    check(not left, f"no process is left after `ctl stop`; these are: {left}")
    say(f"ctl stop: none of the run's {before} processes is left")


def main() -> int:
    """The whole demo."""
    total = len(ANSWERS.read_text().splitlines())
    (PLACE / "config").mkdir(parents=True, exist_ok=True)
    root = ""
    try:
        say(f"starting two workers on this machine; math-verify will grade {total} answers")
        root = start()
        run = environ_of(pid_in(root, VICTIM, "wrap.pid"))["FLEET_RUN"]
        one_call(root)
        target = Path(root).parent / f"{Path(root).name}.results.jsonl"
        since = time.monotonic()
        ctl("submit", "--root", root, "--tasks", str(ANSWERS), "--batch-size", "20")
        with results_into(root, target) as child:
            follow(root, run, child, target, total)
        seconds = time.monotonic() - since
        kinds = judge(target)
        say(f"one result for each of {total} tasks, {total / seconds:.0f} a second:")
        for kind, count in kinds.items():
            state, score = EXPECTED[kind]
            say(f"  {count:5d} {kind:13s} -> {state if score is None else score}")
        stop(root, run)
    except (Broken, KeyboardInterrupt) as error:
        print(f"DEMO FAILED, this does not hold: {error or 'interrupted'}", file=sys.stderr)
        if root:
            ending = ["stop", "--root", root, "--grace", "10", "--kill-after", "5"]
            subprocess.run([*CTL, *ending], env=environment(), check=False)
            print(f"the run root is kept: {root}", file=sys.stderr)
        return 1
    print(f"\nrun root   {root}\nresults    {target}\nlook at it   ls -R {root} | less")
    return 0


BEGUN = time.monotonic()

if __name__ == "__main__":
    sys.exit(main())
