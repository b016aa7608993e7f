"""Slots with an expensive function: how fast they are ready, come back, and what memory they share.

The function is math-verify, whose import takes a second or more. The executor is driven as the
worker drives it, in this process, so that what is timed is the slots and nothing else.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from contenders.base import children_of
from fsworker.executors import Setting
from fsworker.slots.slot import Slot
from fsworker.slots.tasks import TaskExecutor
from report import Report, median

GRADING = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "examples/grading"
)
FUNCTION = "grader:grade"
MANY = 48


def measure(quick: bool, out: Report) -> None:
    """Run in a process of its own: it forks, and its slots inherit its path."""
    argv = [sys.executable, os.path.abspath(__file__), "quick" if quick else "full"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((*sys.path, GRADING))}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        out.say(f"slots failed: {done.stderr[-1500:]}")
        return
    found = json.loads(done.stdout)
    out.figures["slots"] = found
    rows = [
        ("one import, s", found["import_s"]),
        (f"{MANY} slots ready, s", found["ready_s"]),
        ("lost slot back, ms", found["back_ms"]),
        ("lost slot back, worst, ms", found["back_worst_ms"]),
        (f"{MANY} slots and zygote, PSS, MiB", found["pss_mib"]),
        (f"{MANY} separate imports, PSS, MiB", found["separate_mib"]),
    ]
    out.table("Slots with math-verify", ("figure", "value"), rows)
    out.target("lost slot back, median", found["back_ms"], at_most=50, unit=" ms")
    bound = 1.5 * found["import_s"] + 2
    out.target(f"{MANY} slots ready", found["ready_s"], at_most=round(bound, 2), unit=" s")
    share = found["pss_mib"] / found["separate_mib"]
    out.target("PSS / separate imports", share, at_most=0.5)


def _import_seconds() -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import grader"], check=True)
    return time.perf_counter() - begun


def pss(pids: list[int]) -> float:
    """The memory of processes in MiB, what they share counted once."""
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            total += sum(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    return total / 1024


def _separate() -> float:
    """PSS of as many imports apart, in MiB: of four at once, scaled up."""
    code = "import grader, sys; print(flush=True); sys.stdin.read()"
    argv = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    found = [subprocess.Popen(argv, stdin=pipe, stdout=pipe) for _ in range(4)]
    try:
        for child in found:
            assert child.stdout
            child.stdout.readline()
        return pss([child.pid for child in found]) / len(found) * MANY
    finally:
        for child in found:
            child.communicate()


class Rig:
    """An executor of tasks, turned by hand."""

    def __init__(self, count: int) -> None:
        self.selector = selectors.DefaultSelector()
        self.executor = TaskExecutor(Setting(count, (FUNCTION,)), self.selector)

    def until(self, holds: Callable[[], Any], seconds: float = 300.0) -> None:
        """Turn it until something holds."""
        end = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > end:
                raise TimeoutError("the slots are not there")
            if self.executor.refused:
                raise RuntimeError(self.executor.refused)
            for key, mask in self.selector.select(0.05):
                key.data(mask)
            self.executor.step(time.monotonic())

    def idle(self) -> int:
        """How many slots wait for work."""
        return self.executor.pool.count("idle")


def _replaced(slot: Slot, old: int) -> bool:
    return slot.state == "idle" and slot.pid != old


def _full(times: int) -> dict[str, float]:
    begun = time.perf_counter()
    rig = Rig(MANY)
    rig.until(lambda: rig.idle() == MANY)
    ready = time.perf_counter() - begun
    zygote = rig.executor.pool.zygote_pid or 0
    memory = pss([zygote, *children_of(zygote)])
    back = []
    for i in range(times):
        slot = rig.executor.pool.slots[i % MANY]
        old, begun = slot.pid, time.perf_counter()
        os.kill(old, signal.SIGKILL)
        rig.until(partial(_replaced, slot, old))
        back.append(1e3 * (time.perf_counter() - begun))
    rig.executor.close()
    return {
        "ready_s": ready,
        "pss_mib": memory,
        "back_ms": median(back) or 0.0,
        "back_worst_ms": max(back),
    }


def main() -> None:
    """All of it, as JSON."""
    quick = sys.argv[1] == "quick"
    imports = [_import_seconds() for _ in range(4)][1:]
    found = {
        "import_s": median(imports),
        **_full(20 if quick else 100),
        "separate_mib": _separate(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
