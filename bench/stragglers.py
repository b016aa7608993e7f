"""Does one slow task hold back its batch, or others? Do idle workers take over what lies elsewhere?

Four workers of two slots each. First 10,000 short tasks, with and without a slow one among them, in
turn: when are the short ones answered? While the slow one runs, single tasks are sent by another
client: how long do they take? Then a backlog that lies in one shard alone: who executes it, and how
much faster is that than its own worker could be? Tasks sleep, so that two cores are no limit.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from concurrent.futures import as_completed

from fleet import Fleet, temporary_fleet
from fsworker import Client
from fsworker.protocol import layout, ledger, packing, segment, stream
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Token
from fsworker.protocol.segment import Segment
from report import Report, eventually, median, parser, percentile

FUNCTION = "naps:nap"
WORKERS, SLOTS = 4, 2
SHORT = 0.001
"""Seconds of a short task."""


def among_many(run: Fleet, count: int, slow: float | None) -> dict[str, float]:
    """When all short ones of `count` tasks were answered, and the slow one; seconds from the start.

    `slow` is how long one of them takes, a tenth of the way in; None: none does.
    """
    with Client(run.root) as client:
        begun = time.perf_counter()
        futures = [client.submit(FUNCTION, SHORT) for _ in range(count // 10)]
        late = client.submit(FUNCTION, slow) if slow is not None else None
        futures += [client.submit(FUNCTION, SHORT) for _ in range(count - len(futures))]
        for future in as_completed(futures):
            future.result()
        found = {"short": time.perf_counter() - begun}
        if late is not None:
            found["early"] = float(not late.done())
            late.result()
            found["slow"] = time.perf_counter() - begun
        return found


def beside(run: Fleet, slow: float, tries: int) -> tuple[list[float], list[float]]:
    """Seconds that single tasks take in an idle fleet, and while a worker is at a slow one."""
    with Client(run.root) as client, Client(run.root) as other:
        client.submit(FUNCTION, 0.0).result()

        def single() -> float:
            begun = time.perf_counter()
            other.submit(FUNCTION, 0.0).result()
            return time.perf_counter() - begun

        quiet = [single() for _ in range(tries)]
        late = client.submit(FUNCTION, slow)
        eventually(late.running, 10, "the slow task is sent")
        busy = []
        while not late.done() and len(busy) < tries:
            busy.append(single())
        return quiet, busy


def one_shard(run: Fleet, batches: int, tasks: int, seconds: float) -> dict[str, object]:
    """A backlog in shard 0: how long it takes, and who executes how many of its tasks."""
    store = Store(run.root)
    name = layout.encode("one-shard")
    store.mkdir(layout.outbox_dir(name))
    begun = time.perf_counter()
    for number in range(batches):
        token = Token(layout.batch_id(name, "0123456789ab", number), 0)
        record = packing.pack([None, [seconds]])
        data = segment.encode(Segment(segment.BATCH, {"fn": FUNCTION}, [record] * tasks))
        store.run(ledger.enqueue(token, store.run(ledger.prepare_submission(token, "b", data))))
    listing = eventually(
        lambda: (
            found if len((found := store.run(stream.look(name))).committed) == batches else None
        ),
        600,
        "the backlog is served",
    )
    took = time.perf_counter() - begun
    hosts: Counter[str] = Counter()
    for outcome in listing.committed:
        results = store.run(stream.collect(outcome)).results
        hosts[results.meta["host"] if results is not None else "?"] += tasks
        store.run(stream.forget(outcome, stream.leftovers(listing, outcome)))
    alone = batches * tasks * seconds / SLOTS
    return {"took": took, "alone": alone, "hosts": dict(hosts), "speed": alone / took}


def measure(quick: bool, out: Report) -> None:
    """All of it."""
    count, slow, rounds = (2000, 3.0, 2) if quick else (10_000, 8.0, 5)
    hosts, functions = f"bench[1-{WORKERS}]", (FUNCTION,)
    with temporary_fleet(hosts=hosts, functions=functions, concurrency=SLOTS) as run:
        among_many(run, count // 10, None)  # everything is imported, and the sizes are learnt
        plain, mixed = [], []
        for number in range(rounds):
            out.say(f"{count} short tasks, round {number + 1} of {rounds}")
            plain.append(among_many(run, count, None)["short"])
            mixed.append(among_many(run, count, slow))
        out.say("single tasks beside a slow one")
        quiet, busy = beside(run, slow, 100 if quick else 400)
        out.say("a backlog in one shard")
        batches, tasks = (120, 25) if quick else (400, 50)
        stolen = one_shard(run, batches, tasks, 0.005)
    short = [found["short"] for found in mixed]
    out.figures.update(
        plain=plain, mixed=mixed, quiet=quiet, busy=busy, one_shard=stolen, count=count, slow=slow
    )
    rows = [
        (f"{count} short tasks, s", median(plain)),
        (f"the same with one of {slow:g} s among them: the short ones, s", median(short)),
        ("the slow one, s", median(found["slow"] for found in mixed)),
        ("a single task, idle fleet, p50 ms", 1e3 * statistics.median(quiet)),
        ("a single task beside the slow one, p50 ms", 1e3 * statistics.median(busy)),
        ("a single task beside the slow one, p99 ms", 1e3 * percentile(busy, 0.99)),
        ("a single task beside the slow one, worst ms", 1e3 * max(busy)),
        (f"{batches} batches in one shard: by its worker alone, s", stolen["alone"]),
        (f"{batches} batches in one shard: by {WORKERS} workers, s", stolen["took"]),
    ]
    out.table("Stragglers", ("figure", "value"), rows)
    counted = stolen["hosts"]
    assert isinstance(counted, dict)
    shares = [(host, tasks, tasks / sum(counted.values())) for host, tasks in counted.items()]
    out.table("Who executed the backlog of one shard", ("host", "tasks", "share"), sorted(shares))
    # The slow one occupies one slot of all; what is more than that it holds back.
    share = WORKERS * SLOTS / (WORKERS * SLOTS - 1)
    held = median(mixed - share * alone for mixed, alone in zip(short, plain, strict=True))
    out.target("short ones are held back, by a slow one", held, at_most=1.0, unit=" s")
    out.target(
        "rounds whose short ones came first", sum(m["early"] for m in mixed), at_least=rounds
    )
    beside_ratio = statistics.median(busy) / statistics.median(quiet)
    out.target("single task beside / idle, p50", beside_ratio, at_most=2.0)
    out.target("workers that served the one shard", float(len(counted)), at_least=WORKERS)
    speed = stolen["speed"]
    assert isinstance(speed, float)
    out.target("speed against its own worker", speed, at_least=2.0 if quick else 2.5, unit="x")


def main() -> int:
    """The program."""
    args = parser(__doc__ or "").parse_args()
    out = Report("stragglers", args)
    measure(args.quick, out)
    return out.finish()


if __name__ == "__main__":
    sys.exit(main())
