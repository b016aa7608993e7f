"""What a task costs, by who pays: CPU time of a client, its workers and their slots.

    python bench/costs.py --quick                 two minutes
    python bench/costs.py --also FOLDER           in turn with another checkout

A rate depends on what else the machine does; the CPU time of a process hardly does. So this is what
a change of the hot path is judged by, with the pool measured in the same run as the limit.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import report
import workload
from contenders.base import children_of
from report import Report, median

HERE = os.path.dirname(os.path.abspath(__file__))
POOL = "pool"
SHAPES = {"map noop": 200_000, "map grade": 100_000, "submit noop": 100_000}
"""How tasks are sent, which, and how many."""
WHO = ("client", "workers", "slots", "all", "rate")

Costs = dict[str, dict[str, float]]
"""For each shape: microseconds a task of each group of processes and of all, and tasks a second."""


def options() -> argparse.Namespace:
    """The command line."""
    parser = report.parser(__doc__ or "")
    parser.add_argument("--also", action="append", default=[], help="another checkout")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    return parser.parse_args()


def cpu_seconds(pid: int) -> float:
    """The CPU time that a process has used, all threads, by the scheduler's clock."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat") as file:
            total += int(file.read().split()[0])
    return total / 1e9


def metered(groups: dict[str, list[int]], run: Callable[[], Any], count: int) -> dict[str, float]:
    """What a run of `count` tasks costs each group of processes."""

    def sums() -> dict[str, float]:
        return {name: sum(map(cpu_seconds, pids)) for name, pids in groups.items()}

    before, begun = sums(), time.perf_counter()
    run()
    seconds, after = time.perf_counter() - begun, sums()
    costs = {name: 1e6 * (after[name] - before[name]) / count for name in before}
    return {**costs, "all": sum(costs.values()), "rate": count / seconds}


def inputs(shape: str, quick: bool) -> tuple[str, str, list[Any]]:
    """(how, function, payloads) of a shape."""
    how, fn = shape.split()
    count = SHAPES[shape] // (4 if quick else 1)
    return how, fn, workload.payloads(count) if fn == "noop" else workload.answers(count)


def ours(quick: bool) -> Costs:
    """Each shape through a fleet, in this process."""
    import fsworker
    from fleet import temporary_fleet

    found = {}
    with temporary_fleet() as fleet, fsworker.Client(fleet.root) as client:
        workers = [fleet.worker(host) for host in fleet.hosts()]
        zygotes = [child for pid in workers for child in children_of(pid)]
        slots = [child for pid in zygotes for child in children_of(pid)]
        groups = {"client": [os.getpid()], "workers": workers, "slots": slots}
        for shape in SHAPES:
            how, fn, tasks = inputs(shape, quick)
            name = f"workload:{fn}"
            list(client.map(name, tasks[: len(tasks) // 8]))  # batches find their size
            run = partial(_map if how == "map" else _submit, client, name, tasks)
            found[shape] = metered(groups, run, len(tasks))
    return found


def _map(client: Any, name: str, tasks: list[Any]) -> list[Any]:
    return list(client.map(name, tasks))


def _submit(client: Any, name: str, tasks: list[Any]) -> list[Any]:
    return [future.result() for future in [client.submit(name, task) for task in tasks]]


def pool(quick: bool) -> Costs:
    """What of it a pool does, with chunks of 64."""
    found = {}
    with multiprocessing.Pool(2) as it:
        groups = {"client": [os.getpid()], "slots": children_of(os.getpid())}
        for shape in SHAPES:
            how, fn, tasks = inputs(shape, quick)
            if how == "map":
                run = partial(it.map, workload.FUNCTIONS[fn], tasks, chunksize=64)
                run()
                found[shape] = metered(groups, run, len(tasks))
    return found


def measured(kind: str, checkout: str, quick: bool) -> Costs:
    """A measurement of a checkout in a process of its own."""
    program = os.path.join(checkout, "bench", os.path.basename(__file__))
    argv = [sys.executable, program, "--measure", kind, *(["--quick"] if quick else [])]
    env = {**os.environ, "PYTHONPATH": checkout}
    done = subprocess.run(argv, env=env, stdout=subprocess.PIPE, check=True)
    found: Costs = json.loads(done.stdout)
    return found


def main() -> int:
    """Take turns, and say what was found."""
    args = options()
    if args.measure:
        print(json.dumps({"ours": ours, POOL: pool}[args.measure](args.quick)))
        return 0
    out = Report("costs", args)
    here = os.path.dirname(HERE)
    contenders = {POOL: (POOL, here), "this": ("ours", here)}
    contenders |= {folder: ("ours", os.path.abspath(folder)) for folder in args.also}
    samples: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for turn in range(3 if args.quick else 5):
        for name, (kind, checkout) in contenders.items():
            out.say(f"{turn + 1} {name}")
            for shape, costs in measured(kind, checkout, args.quick).items():
                for who, value in costs.items():
                    samples[shape, name][who].append(value)
    rows = [(*key, *(median(found[who]) for who in WHO)) for key, found in sorted(samples.items())]
    out.table("CPU time, us a task; medians", ("shape", "contender", *WHO), rows)
    out.figures["costs"] = {" ".join(key): found for key, found in samples.items()}
    for shape, most in (("map noop", 5), ("map grade", 1.4)):
        this, limit = (median(samples[shape, who]["all"]) for who in ("this", POOL))
        if this and limit:
            out.target(f"{shape}, of the pool's", this / limit, at_most=most, unit=" x")
    return out.finish()


if __name__ == "__main__":
    sys.exit(main())
