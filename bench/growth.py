"""Whether time and memory grow as they should: with tasks, with shards, with pending batches."""

from __future__ import annotations

import itertools
import os
import threading
import time

import fsworker
from fleet import Fleet, temporary_fleet
from fsworker.protocol import layout, segment, stream
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Token
from fsworker.protocol.segment import Segment
from fsworker.taskpack import TaskPacker
from report import Report

PAYLOAD = b"x" * 100
SLACK = 1.5
"""How far from a straight line counts as straight."""
FLAT_MIB = 48
"""MiB by which memory may differ between a tenth of the tasks and all of them."""


def measure(quick: bool, out: Report) -> None:
    """All three."""
    _tasks([10**3, 10**4, 10**5] if quick else [10**3, 10**4, 10**5, 10**6], out)
    _shards([1, 10, 100], 10 if quick else 50, out)
    _pending(10**3, 10**4 if quick else 10**5, out)


# -- tasks


def _tasks(counts: list[int], out: Report) -> None:
    rows = []
    with temporary_fleet() as run:
        pids = {"client": os.getpid(), **{h: run.worker(h) for h in run.hosts()}}
        for count in counts:
            with fsworker.Client(run.root) as client, Peak(pids) as peak:
                begun = time.perf_counter()
                results = client.map("workload:noop", itertools.repeat(PAYLOAD, count))
                done = sum(1 for _ in results)
                seconds = time.perf_counter() - begun
            assert done == count
            worker = max(mib for name, mib in peak.mib.items() if name != "client")
            rows.append((count, seconds, 1e6 * seconds / count, peak.mib["client"], worker))
    out.figures["growth_tasks"] = rows
    head = ("tasks", "seconds", "us a task", "client MiB", "worker MiB")
    out.table("One map of no-ops: time and resident memory", head, rows)
    tenth, whole = rows[-2], rows[-1]
    out.target("time a task, most / a tenth", whole[2] / tenth[2], at_most=SLACK)
    out.target("client memory, most - a tenth", whole[3] - tenth[3], at_most=FLAT_MIB, unit=" MiB")
    out.target("worker memory, most - a tenth", whole[4] - tenth[4], at_most=FLAT_MIB, unit=" MiB")


class Peak:
    """The highest resident memory of processes while it is open, in MiB."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids
        self._over = threading.Event()
        self.mib = dict.fromkeys(pids, 0.0)

    def __enter__(self) -> Peak:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            for name, pid in self._pids.items():
                with open(f"/proc/{pid}/statm") as file:
                    mib = int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20
                self.mib[name] = max(self.mib[name], mib)
            if self._over.wait(0.1):
                return


# -- shards and pending batches: batches that lie there before anybody is told


def _shards(counts: list[int], each: int, out: Report) -> None:
    rows = []
    for count in counts:
        with temporary_fleet(more=("--shard-count", str(max(count, 2)))) as run:
            found = _serve(run, dict.fromkeys(range(count), each))
        rows.append(
            (count, found["batches"], found["seconds"], 1e3 * found["seconds"] / found["batches"])
        )
    out.figures["growth_shards"] = rows
    head = ("shards", "batches", "seconds", "ms a batch")
    out.table(f"{each} batches in each shard, two workers", head, rows)
    out.target("time a batch, 100 shards / 10", rows[-1][3] / rows[-2][3], at_most=SLACK)


def _pending(few: int, many: int, out: Report) -> None:
    """The rate at which batches are served with few and with many that wait behind them."""
    rows = []
    for count in (few, many):
        with temporary_fleet(hosts="bench1", more=("--shard-count", "1")) as run:
            found = _serve(run, {0: count}, wanted=few)
        rows.append((count, found["first"], found["seconds"], found["rate"]))
    out.figures["growth_pending"] = rows
    head = ("pending batches", "first result s", "seconds", "batches/s")
    out.table(f"The first {few:,} of many batches in one shard, one worker", head, rows)
    out.target("rate, many pending / few", rows[1][3] / rows[0][3], at_least=1 / SLACK, unit=" x")


def _serve(run: Fleet, batches: dict[int, int], wanted: int | None = None) -> dict[str, float]:
    """Put batches of one task into shards; how long until `wanted` (all) are committed."""
    store, name = Store(run.root), layout.encode("bench")
    store.mkdir(layout.outbox_dir(name))
    data = segment.encode(
        Segment(segment.BATCH, {"fn": "workload:noop"}, [TaskPacker().record([None, [PAYLOAD]])])
    )
    incarnation, numbers = layout.new_incarnation(), itertools.count()
    hidden = f"{run.folder}/prepared"
    os.mkdir(hidden)
    moves = []
    for shard, count in batches.items():
        os.makedirs(store.path(layout.inbox_dir(shard)), exist_ok=True)
        for _ in range(count):
            token = Token(f"{name}-{incarnation}-{next(numbers)}", shard)
            with open(f"{hidden}/{token.batch}", "wb") as file:
                file.write(data)
            moves.append((f"{hidden}/{token.batch}", store.path(layout.inbox_path(token))))
    begun = time.perf_counter()
    for source, target in moves:
        os.rename(source, target)
    return _await(store, name, wanted or len(moves), begun)


def _await(store: Store, name: str, wanted: int, begun: float) -> dict[str, float]:
    first, done = None, 0
    while done < wanted:
        committed = store.run(stream.look(name)).committed
        now = time.perf_counter()
        if committed and first is None:
            first = now
        for outcome in committed:
            store.run(stream.forget(outcome))
        done += len(committed)
        time.sleep(0.01)
    end = time.perf_counter()
    assert first is not None
    return {
        "batches": done,
        "first": first - begun,
        "seconds": end - begun,
        "rate": done / max(end - first, 1e-6),
    }
