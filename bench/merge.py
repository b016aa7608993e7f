"""How fast and in how little memory checkpoints are merged, against what people would use instead.

    python bench/merge.py --quick              models of 64 MiB, some minutes
    python bench/merge.py --check --json FILE  512 MiB, and memory up to 4 GiB; exit 1 when missed
    python bench/merge.py --peers none         without NVFlare and Flower

Eight models, float32 and bfloat16, from files that the page cache holds (warm), and from the disk
(cold). Every merge is a process of its own; all contenders take turns within each repetition, and
ratios are medians of ratios within a repetition. The limit reads every byte of the inputs and
writes and fsyncs as many as the output has, on two threads, and computes nothing. Time runs from
opening the inputs to the output on disk, for the limit too: start and imports are in nobody's time.
Run it on a machine that does nothing else; --check takes twenty minutes there.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from typing import Any

import report
from environments import python_with
from mergers import DIGEST, ENTRIES, FLOWER, LIMIT, LOAD_ALL, MMAP, NVFLARE, OURS, OVERLAPPED, Entry
from report import Report, median, ratio_in_pairs

HERE = os.path.dirname(os.path.abspath(__file__))
RUN, MODELS = f"{HERE}/mergers/run.py", f"{HERE}/mergers/models.py"
COUNTS = [100, 250, 400, 1000, 77, 640, 333, 512]
FASTER = {LOAD_ALL: 8, NVFLARE: 4, FLOWER: 20}
COLD = 2
"""Repetitions that are made from the disk as well."""
GROWTH = 128
"""MiB beyond the idle process, for rules of the mean's kind."""


def options() -> argparse.Namespace:
    """The command line."""
    parser = report.parser(__doc__ or "")
    parser.add_argument("--size", type=int, help="MiB of a model; default 512, with --quick 64")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--peers", default="all", choices=["all", "none"])
    parser.add_argument("--only", default="contest,memory", help="which parts to measure")
    parser.add_argument("--folder", help="where the models are made; default: a temporary one")
    args = parser.parse_args()
    args.size = args.size or (64 if args.quick else 512)
    return args


class Contest:
    """Merges in processes of their own."""

    def __init__(self, args: argparse.Namespace, out: Report, folder: str) -> None:
        self.args, self.out, self.folder = args, out, folder
        self.pythons: dict[str, str] = {}
        self.missing: dict[str, str] = {}
        for entry in ENTRIES if "contest" in args.only else ENTRIES[:3]:
            self._prepare(entry)

    def _prepare(self, entry: Entry) -> None:
        if entry.packages and self.args.peers == "none":
            self.missing[entry.name] = "left out"
            return
        try:
            self.pythons[entry.name] = python_with(entry.packages)
        except RuntimeError as error:
            self.missing[entry.name] = "cannot be installed"
            self.out.say(f"{entry.name} cannot be installed: {error}")

    def make(self, dtype: str, size: int, count: int) -> list[str]:
        """The files of `count` models, on disk and not waiting to be written."""
        self.out.say(f"making {count} models of {size} MiB in {dtype}")
        argv = [sys.executable, MODELS, "make", dtype, str(size), str(count), self.folder]
        subprocess.run(argv, check=True)
        os.sync()
        return [f"{self.folder}/{dtype}-{size}-{i}.pt" for i in range(count)]

    def run(
        self, name: str, function: str, files: list[str], cold: bool, keep: bool = False
    ) -> dict[str, float]:
        """One merge; its figures. The output is left where it is wanted."""
        for path in set(files):
            touch(path, cold)
        counts = [COUNTS[i % len(COUNTS)] for i in range(len(files))]
        argv = [self.pythons[name], RUN, function, f"{self.folder}/out.pt", json.dumps(counts)]
        env = {**os.environ, "PYTHONPATH": os.path.dirname(HERE)}
        done = subprocess.run([*argv, *files], env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{name} exits {done.returncode}: {done.stderr[-800:]}")
        if not keep:
            for path in (f"{self.folder}/out.pt", f"{self.folder}/out.pt.state"):
                if os.path.exists(path):
                    os.unlink(path)
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found

    def error(self, files: list[str]) -> dict[str, float]:
        """How far the output that was kept is from the right one."""
        argv = [sys.executable, MODELS, "error", f"{self.folder}/out.pt", json.dumps(COUNTS)]
        done = subprocess.run([*argv, *files], check=True, capture_output=True, text=True)
        found: dict[str, float] = json.loads(done.stdout)
        return found


def touch(path: str, cold: bool) -> None:
    """Have a file in the page cache, or not."""
    fd = os.open(path, os.O_RDONLY)
    try:
        if cold:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            return
        while os.read(fd, 16 << 20):
            pass
    finally:
        os.close(fd)


def compare(contest: Contest, dtype: str) -> None:
    """All contenders on one type, warm and (those that are near the limit) cold."""
    args, out = contest.args, contest.out
    files = contest.make(dtype, args.size, len(COUNTS))
    warm: dict[str, list[dict[str, float]]] = defaultdict(list)
    cold: dict[str, list[dict[str, float]]] = defaultdict(list)
    errors = {}
    for turn in range(args.repetitions):
        out.say(f"{dtype}, repetition {turn + 1} of {args.repetitions}")
        for entry in ENTRIES:
            if entry.name not in contest.pythons:
                continue
            first = turn == 0 and entry.name not in (LIMIT, OVERLAPPED)
            warm[entry.name].append(contest.run(entry.name, entry.function, files, False, first))
            if first:
                errors[entry.name] = contest.error(files)
                os.unlink(f"{contest.folder}/out.pt")
        for entry in ENTRIES:
            if entry.name in (LIMIT, OURS, MMAP) and turn < COLD:
                cold[entry.name].append(contest.run(entry.name, entry.function, files, True))
    tell(contest, dtype, warm, cold, errors)
    for path in files:
        os.unlink(path)


def tell(contest: Contest, dtype: str, warm: Any, cold: Any, errors: Any) -> None:
    """The table of one type, and what was to be reached."""
    out, size = contest.out, contest.args.size
    out.figures[dtype] = {"warm": dict(warm), "cold": dict(cold), "errors": errors}
    read = size * len(COUNTS) / 1024
    seconds = {n: [r["seconds"] for r in rows] for n, rows in warm.items()}
    rows = []
    for entry in ENTRIES:
        if entry.name in contest.missing:
            rows.append((entry.name, contest.missing[entry.name], *[None] * 7))
            continue
        taken, off = median(seconds[entry.name]), errors.get(entry.name, {})
        rows.append((
            entry.name, taken, read / taken if taken else None,
            ratio_in_pairs(seconds[entry.name], seconds[OURS]),
            median(r["cpu"] for r in warm[entry.name]),
            median(r["grown"] for r in warm[entry.name]),
            median(r["seconds"] for r in cold[entry.name]),
            f"{off['relative']:.1e}" if off else None,
            f"{off['not_nearest']:.4%}" if off else None,
        ))  # fmt: skip
    head = ("", "s, warm", "GiB/s", "x ours", "CPU s", "MiB", "s, cold", "error", "not nearest")
    out.table(f"8 models of {size} MiB, {dtype}", head, rows)
    cold_seconds = {n: [r["seconds"] for r in rows] for n, rows in cold.items()}
    for where, taken in (("warm", seconds), ("cold", cold_seconds)):
        share = ratio_in_pairs(taken[LIMIT], taken[OURS])
        out.target(f"{dtype}: of the limit, {where}", share, at_least=0.8, unit=" x")
    for name, bound in FASTER.items():
        theirs = ratio_in_pairs(seconds.get(name, []), seconds[OURS])
        out.target(f"{dtype}: faster than {name}", theirs, at_least=bound, unit=" x")
    grown = max(r["grown"] for name in (OURS, DIGEST) for r in warm[name])
    out.target(f"{dtype}: memory beyond idle", grown, at_most=GROWTH, unit=" MiB")
    if dtype == "float32":
        out.target("float32: error relative to the largest", errors[OURS]["relative"], at_most=1e-6)
    else:
        out.target(f"{dtype}: error", errors[OURS]["ulp"], at_most=0.51, unit=" ulp")


def memory(contest: Contest) -> None:
    """What a merge takes, by rule, size of the model and number of participants."""
    out, quick = contest.out, contest.args.quick
    least, small, large = (16, 64, 256) if quick else (64, 512, 4096)
    mean, robust = ("ours", "ours_fedadam"), ("ours_median", "ours_krum")
    # Rules that compare every model with every other take minutes for 32 of 512 MiB.
    asked: dict[int, list[tuple[tuple[str, ...], int]]] = {
        least: [(robust, 32)],
        small: [(mean + robust, 8), (mean, 32)],
        large: [(mean, 8)],
    }
    rows, grown = [], {}
    for size, how in asked.items():
        (path,) = contest.make("float32", size, 1)
        for function, count in [(f, count) for rules, count in how for f in rules]:
            got = contest.run(OURS, function, [path] * count, False)
            grown[function, size, count] = got["grown"]
            name = function.removeprefix("ours").lstrip("_") or "fedavg"
            rows.append((f"{name}, {count} x {size} MiB", got["grown"], got["seconds"]))
        os.unlink(path)
    out.table("Memory beyond the idle process", ("", "MiB", "s"), rows)
    out.figures["memory"] = [list(row) for row in rows]
    most = max(v for (function, *_), v in grown.items() if function in mean)
    out.target("memory of mean-type rules, all sizes", most, at_most=GROWTH, unit=" MiB")
    out.target("memory of robust rules, all sizes", max(grown.values()), at_most=GROWTH + 64,
               unit=" MiB")  # fmt: skip


def main() -> int:
    """Measure; the exit code."""
    args = options()
    out = Report("merge", args)
    folder = tempfile.mkdtemp(prefix="shardfleet-merge-", dir=args.folder)
    try:
        contest = Contest(args, out, folder)
        for dtype in args.dtypes.split(",") if "contest" in args.only else ():
            compare(contest, dtype)
        if "memory" in args.only:
            memory(contest)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return out.finish()


if __name__ == "__main__":
    sys.exit(main())
