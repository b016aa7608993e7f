"""What every program in bench/ shares: its options, its table, its JSON and its verdict.

A measurement is worth nothing without what it was compared with, so figures are kept raw, medians
and ratios are made here in one way, and a target is one line that says what was to be reached.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

BENCH_FORMAT = "1.0"


def parser(about: str) -> argparse.ArgumentParser:
    """The options that every program has; it may add its own. From now on TERM and HUP end it in
    good order, as Ctrl-C does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    options = argparse.ArgumentParser(
        description=about.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    options.add_argument("--quick", action="store_true", help="small numbers, a minute or two")
    options.add_argument("--json", metavar="FILE", help="write all figures there (- for stdout)")
    options.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    return options


def _end(number: int, _: object) -> NoReturn:
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)  # once: it is ending
    sys.exit(128 + number)


@dataclass(frozen=True)
class Target:
    """What a figure must reach. `measured` None: it was not measured in this run."""

    what: str
    measured: float | None
    at_least: float | None = None
    at_most: float | None = None
    unit: str = ""

    @property
    def met(self) -> bool | None:
        """Whether it is reached; None when it was not measured."""
        if self.measured is None:
            return None
        enough = self.at_least is None or self.measured >= self.at_least
        return enough and (self.at_most is None or self.measured <= self.at_most)

    @property
    def bound(self) -> str:
        """The bound in words."""
        if self.at_least is not None:
            return f">= {self.at_least:g}{self.unit}"
        return f"<= {self.at_most:g}{self.unit}"


class Report:
    """Figures of one program's run, and what they had to be."""

    def __init__(self, program: str, args: argparse.Namespace) -> None:
        self._args = args
        self._out = sys.stderr if args.json == "-" else sys.stdout
        self.targets: list[Target] = []
        self.tables: list[dict[str, Any]] = []
        self.figures: dict[str, Any] = {}
        self._head = {
            "format": BENCH_FORMAT,
            "program": program,
            "quick": bool(args.quick),
            "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": f"{platform.system()} {platform.release()} {platform.machine()}",
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "load_at_start": os.getloadavg()[0],
        }

    def say(self, text: str) -> None:
        """A line of progress, with the time."""
        print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)

    def table(self, title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print a table, the first column to the left and the others to the right; keep it."""
        cells = [[show(cell) for cell in row] for row in rows]
        self.tables.append({"title": title, "head": list(head), "rows": cells})
        widths = [max(len(row[i]) for row in [list(head), *cells]) for i in range(len(head))]
        print(f"\n{title}", file=self._out)
        for row in [list(head), ["-" * w for w in widths], *cells]:
            first, rest = row[0].ljust(widths[0]), zip(row[1:], widths[1:], strict=True)
            line = "  ".join([first, *(c.rjust(w) for c, w in rest)])
            print(line.rstrip(), file=self._out)
        self._out.flush()

    def target(self, what: str, measured: float | None, **bound: Any) -> None:
        """Add a target."""
        self.targets.append(Target(what, measured, **bound))

    def finish(self) -> int:
        """Print the targets, write the JSON; the program's exit code."""
        words = {True: "met", False: "MISSED", None: "not measured"}
        rows = [(t.what, show(t.measured), t.bound, words[t.met]) for t in self.targets]
        if rows:
            self.table("Targets", ("target", "measured", "bound", ""), rows)
        if self._args.json:
            self._write()
        missed = [t for t in self.targets if t.met is False]
        if missed and self._args.check:
            print(f"{len(missed)} of {len(self.targets)} targets are missed", file=sys.stderr)
            return 1
        return 0

    def _write(self) -> None:
        document = {
            **self._head,
            "load_at_end": os.getloadavg()[0],
            "figures": self.figures,
            "tables": self.tables,
            "targets": [{**asdict(t), "met": t.met} for t in self.targets],
        }
        text = json.dumps(document, indent=1, default=str) + "\n"
        if self._args.json == "-":
            sys.stdout.write(text)
            return
        with open(self._args.json, "w") as file:
            file.write(text)


def show(value: object) -> str:
    """A cell: numbers with three digits that count, nothing for None."""
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if value != value or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def median(values: Iterable[float]) -> float | None:
    """The median; None of nothing."""
    found = list(values)
    return statistics.median(found) if found else None


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the values lie: the nearest one that was seen."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def ratio_in_pairs(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """The median of ratios, each of two figures of the same round: so a slow minute cancels out."""
    pairs = zip(ours, theirs, strict=False)
    return median(a / b for a, b in pairs if b)


def eventually(holds: Callable[[], Any], seconds: float, what: str, pause: float = 0.02) -> Any:
    """What `holds` gives once that is true. TimeoutError after `seconds`."""
    end = time.monotonic() + seconds
    while not (value := holds()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(pause)
    return value
