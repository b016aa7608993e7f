"""How fast tasks go through a fleet, against what people would use instead.

    python bench/tasks.py --quick              a few minutes
    python bench/tasks.py --check --json FILE  the whole table; exit 1 when a target is missed
    python bench/tasks.py --peers all          with Dask, Ray, Celery and HyperQueue

All contenders take turns within each repetition, so that a slow minute of the machine hits all of
them, and ratios are medians of ratios within a repetition. Two workers of one slot each, everything
of ours fsynced. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from typing import Any

import latencies
import product
import report
from contenders import ENTRIES, MAP, POOL, SUBMIT, Entry
from driver import Driver
from environments import python_with
from report import Report, median, percentile, ratio_in_pairs

PARTS = ("throughput", "latency", "kill", "idle", "calls", "slots", "scale")
TRIES = 4
"""How often a contender is tried in a repetition: one of them ends by itself in every other run."""
LIGHT = {e.name for e in ENTRIES if not e.packages}


def options() -> argparse.Namespace:
    """The command line."""
    parser = report.parser(__doc__ or "")
    parser.add_argument("--peers", default="light", help="light, all, none, or names with commas")
    parser.add_argument("--only", default=",".join(PARTS), help="which parts to measure")
    parser.add_argument("--repetitions", type=int, help="default: 5, with --quick 3")
    args = parser.parse_args()
    args.only = args.only.split(",")
    if unknown := set(args.only) - set(PARTS):
        parser.error(f"no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}")
    args.repetitions = args.repetitions or (3 if args.quick else 5)
    return args


def chosen(peers: str) -> list[Entry]:
    """Who takes part: the pool and ours always."""
    always = {POOL, MAP, SUBMIT}
    named = {"none": set(), "light": LIGHT, "all": {e.name for e in ENTRIES}}
    wanted = always | named.get(peers, {p.strip() for p in peers.split(",")})
    return [e for e in ENTRIES if e.name in wanted or e.module in wanted]


class Contest:
    """The measurements in which contenders are compared."""

    def __init__(self, entries: list[Entry], args: argparse.Namespace, out: Report) -> None:
        self._args, self._out = args, out
        self.rates: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self.latencies: dict[str, list[float]] = defaultdict(list)
        self.kills: dict[str, dict[str, Any]] = {}
        self._pythons: dict[str, str] = {}
        self.entries = [e for e in entries if self._prepare(e)]

    def run(self) -> None:
        """All repetitions."""
        for turn in range(self._args.repetitions):
            for entry in self.entries:
                self._out.say(f"{turn + 1}/{self._args.repetitions} {entry.name}")
                last = turn + 1 == self._args.repetitions
                if not any(self._tried(entry, last=last) for _ in range(TRIES)):
                    self._out.say(f"{entry.name} is given up in this repetition")
        self._out.figures["rates"] = self.rates
        self._out.figures["latencies"] = self.latencies
        self._out.figures["kills"] = self.kills

    def _prepare(self, entry: Entry) -> bool:
        try:
            if entry.packages:
                self._out.say(f"preparing {entry.name}")
            self._pythons[entry.name] = python_with(entry.packages)
        except (OSError, RuntimeError) as error:
            self._out.say(f"{entry.name} is left out: {error}")
            return False
        return True

    def _tried(self, entry: Entry, *, last: bool) -> bool:
        """Whether a contender could be measured."""
        try:
            with Driver(entry.module, self._pythons[entry.name]) as driver:
                self._measure(entry, driver, last=last)
        except Exception as error:
            self._out.say(f"{entry.name} failed: {error}")
            return False
        return True

    def _measure(self, entry: Entry, driver: Driver, *, last: bool) -> None:
        quick = self._args.quick
        if "throughput" in self._args.only:
            for fn in ("noop", "grade"):
                found = driver.ask("throughput", fn=fn, share=0.25 if quick else 1.0)
                self.rates[fn][entry.name].append(found["rate"])
        if "latency" in self._args.only and entry.name != SUBMIT:
            count = latencies.count(entry.module, quick)
            found = driver.ask("latency", count=count)
            self.latencies[entry.name] += found
        if "kill" in self._args.only and last and entry.name != SUBMIT:
            patience, tasks = (10, 400) if quick else (60, 1_000)
            self.kills[entry.name] = driver.ask("kill", patience=patience, tasks=tasks)

    # -- what it says

    def ratio(self, fn: str, ours: str, theirs: str) -> float | None:
        """How many times as fast."""
        return ratio_in_pairs(self.rates[fn][ours], self.rates[fn][theirs])

    def table(self) -> None:
        """The table of all contenders."""
        rows = []
        for entry in self.entries:
            name = entry.name
            noop, grade = (median(self.rates[fn][name]) for fn in ("noop", "grade"))
            times = self.latencies.get(name)
            spread = (
                f"{report.show(1e3 * percentile(times, 0.5))} / "
                f"{report.show(1e3 * percentile(times, 0.99))}"
                if times
                else None
            )
            ratios = (self.ratio(fn, name, POOL) for fn in ("noop", "grade"))
            rows.append((name, noop, grade, *ratios, spread, fate(self.kills.get(name))))
        head = (
            *("contender", "no-op/s", "grading/s", "no-op x pool", "grading x pool"),
            *("one task p50/p99 ms", "worker SIGKILLed"),
        )
        self._out.table("Two workers; medians", head, rows)

    def targets(self) -> None:
        """What was to be reached."""
        add = self._out.target
        add("no-op map / pool", self.ratio("noop", MAP, POOL), at_least=0.3, unit=" x")
        for peer, factor in (("dirq", 10), ("jug", 40), ("huey, files", 40)):
            ratio = self.ratio("noop", MAP, peer)
            add(f"no-op map / {peer}", ratio, at_least=factor, unit=" x")
        add("no-op submit / pool", self.ratio("noop", SUBMIT, POOL), at_least=0.1, unit=" x")
        add("grading map / pool", self.ratio("grade", MAP, POOL), at_least=0.7, unit=" x")
        times = [1e3 * t for t in self.latencies.get(MAP, [])]
        for share, most in ((0.5, 5), (0.99, 20)):
            measured = percentile(times, share) if times else None
            add(f"one task, p{share * 100:.0f}", measured, at_most=most, unit=" ms")
        killed = self.kills.get(MAP)
        lost = None if killed is None else float(killed["lost"] + (not killed["finished"]))
        add("tasks lost with a worker", lost, at_most=0)


def fate(kill: dict[str, Any] | None) -> str | None:
    """What became of the tasks, in words."""
    if kill is None:
        return None
    words = "finishes" if kill["finished"] else ("breaks" if kill["broken"] else "hangs")
    lost = f", {kill['lost']} lost" if kill["lost"] else ""
    twice = f", {kill['twice']} run twice" if kill["twice"] else ""
    return f"{words}{lost}{twice}"


def main() -> int:
    """Measure, and say what was found."""
    args = options()
    out = Report("tasks", args)
    contest = Contest(chosen(args.peers), args, out)
    if {"throughput", "latency", "kill"} & set(args.only):
        contest.run()
        contest.table()
        contest.targets()
    for part in ("idle", "calls", "slots", "scale"):
        if part in args.only:
            out.say(part)
            product.MEASURES[part](args.quick, out)
    return out.finish()


if __name__ == "__main__":
    sys.exit(main())
