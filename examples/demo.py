"""`make demo`: a fleet of two workers on this machine grades 2,000 answers and loses a worker.

It uses the commands and the client as anybody would, and checks what it shows. Its promises: the
killed worker comes back by itself, every task has exactly one result and the right one, and after
`ctl stop` no process of the run is left. If one of them does not hold, it says so and exits 1.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import fsworker
from demo_parts import (
    CTL,
    DEADLINE,
    REPO,
    Fleet,
    beside,
    check,
    ctl,
    environ_of,
    perform,
    pid_in,
    say,
)

GRADING = REPO / "examples" / "grading"
ANSWERS = GRADING / "answers.jsonl"
VICTIM = "demo1"
TASK_TIMEOUT = 5

EXPECTED = {
    "right": ("ok", 1.0),
    "wrong": ("ok", 0.0),
    "malformed": ("ok", 0.0),
    "pathological": ("timeout", None),
}
"""What must come of each kind of answer."""


# -- the run


def one_call(root: str) -> None:
    """The same fleet from Python."""
    with fsworker.Client(root) as client:
        score = client.submit("grader:grade", "\\frac{1}{2}", "It is \\boxed{0.5}").result(60)
    check(score == 1.0, "a call from Python returns its value")
    say("Client.submit('grader:grade', '\\\\frac{1}{2}', 'It is \\\\boxed{0.5}') -> 1.0")


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


def play(fleet: Fleet) -> None:
    """The whole act."""
    total = len(ANSWERS.read_text().splitlines())
    say(f"starting two workers on this machine; math-verify will grade {total} answers")
    slots = max(1, min(8, (os.cpu_count() or 2) // 2))
    fleet.start(
        "demo",
        *("--concurrency", str(slots + 1), "--task-timeout", str(TASK_TIMEOUT)),
        *("--fn", "grader:grade", "--repo", str(GRADING)),
    )
    root = fleet.root
    one_call(root)
    target = Path(root).parent / f"{Path(root).name}.results.jsonl"
    since = time.monotonic()
    ctl("submit", "--root", root, "--tasks", str(ANSWERS), "--batch-size", "20")
    results = [*CTL, "results", "--root", root, "-o", str(target)]
    with beside(results, target.with_suffix(".log")) as child:
        follow(root, fleet.run, child, target, total)
    seconds = time.monotonic() - since
    kinds = judge(target)
    say(f"one result for each of {total} tasks, {total / seconds:.0f} a second:")
    for kind, count in kinds.items():
        state, score = EXPECTED[kind]
        say(f"  {count:5d} {kind:13s} -> {state if score is None else score}")
    fleet.stop()
    print(f"\nrun root   {root}\nresults    {target}\nlook at it   ls -R {root} | less\n")


if __name__ == "__main__":
    sys.exit(perform(play))
