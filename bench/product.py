"""What is measured of ours alone: idleness, calls on the root, slots, and growth."""

from __future__ import annotations

import ast
import re
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import fsworker
import growth
import slots
import workload
from driver import Driver
from fleet import Fleet, temporary_fleet
from report import Report, eventually

CALLS = re.compile(r"calls on the root: (\{.*\})")
CHANGING = ("create", "open", "rename", "unlink")
"""The kinds of calls that the budget of a batch counts."""


def idle(quick: bool, out: Report) -> None:
    """The first task after idleness."""
    seconds, times = (10.0, 2) if quick else (60.0, 3)
    with Driver("fleet_map") as driver:
        found = [1e3 * driver.ask("after_idleness", seconds=seconds) for _ in range(times)]
    out.figures["after_idleness_ms"] = found
    out.table(f"First task after {seconds:g} s of idleness, ms", ("trial", "ms"), enumerate(found))
    out.target("first task after idleness, worst", max(found), at_most=300, unit=" ms")


def calls(quick: bool, out: Report) -> None:
    """Calls on the root for each task and batch, and those of an idle worker."""
    tasks = workload.payloads(50_000 if quick else 500_000)
    with temporary_fleet(more=("--log-level", "DEBUG")) as run:
        time.sleep(5 if quick else 65)
        rest = [_calls(run) for _ in range(2)]
        with fsworker.Client(run.root) as client:
            list(client.map("workload:noop", tasks))
            time.sleep(0.2)  # the last files are forgotten after their results are handed out
            ours = Counter(client._store.calls)
        after = _calls(run)
    idle_rates = {kind: _rate(rest[0], rest[1], kind) for kind in rest[1][1]}
    theirs = _between(rest[1], after, idle_rates)
    batches = ours["rename"]
    rows = []
    for kind in sorted(ours | theirs):
        both = ours[kind] + theirs[kind]
        rows.append((kind, ours[kind], theirs[kind], both / batches, both / len(tasks)))
    total = sum(ours.values()) + sum(theirs.values())
    changing = sum(ours[k] + theirs[k] for k in CHANGING)
    rows.append(
        ("all", sum(ours.values()), sum(theirs.values()), total / batches, total / len(tasks))
    )
    head = ("call", "client", "workers", "a batch", "a task")
    out.table(f"Calls on the root: {len(tasks):,} tasks, {batches:.0f} batches, map", head, rows)
    per_second = sum(idle_rates.values()) / 2
    out.figures["calls"] = {"client": ours, "workers": theirs, "batches": batches}
    out.figures["idle_calls_per_second"] = per_second
    out.target("calls a task through map", total / len(tasks), at_most=0.1)
    out.target("create, open, rename, unlink a batch", changing / batches, at_most=10)
    out.target("calls of an idle worker", per_second, at_most=5, unit="/s")


def _calls(run: Fleet) -> tuple[float, Counter[str]]:
    """(when, the calls of all workers), as they log them at their next beats."""
    before = {host: len(CALLS.findall(run.log(host))) for host in run.hosts()}
    total: Counter[str] = Counter()
    for host in run.hosts():
        found = eventually(partial(_news, run, host, before[host]), 30, "a beat")
        total.update(ast.literal_eval(found[-1]))
    return time.monotonic(), total


def _news(run: Fleet, host: str, seen: int) -> list[str]:
    return CALLS.findall(run.log(host))[seen:]


def _rate(a: tuple[float, Counter[str]], b: tuple[float, Counter[str]], kind: str) -> float:
    return (b[1][kind] - a[1][kind]) / (b[0] - a[0])


def _between(
    a: tuple[float, Counter[str]], b: tuple[float, Counter[str]], idle_rates: dict[str, float]
) -> Counter[str]:
    """What the workers did beyond what they do when idle."""
    passed = b[0] - a[0]
    extra = {k: b[1][k] - a[1][k] for k in b[1]}
    beats = {k: idle_rates.get(k, 0) * passed for k in ("create", "rename")}
    return Counter({k: max(0, round(n - beats.get(k, 0))) for k, n in extra.items()})


MEASURES: dict[str, Callable[[bool, Report], None]] = {
    "idle": idle,
    "calls": calls,
    "slots": slots.measure,
    "scale": growth.measure,
}
