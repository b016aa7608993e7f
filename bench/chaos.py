"""A fleet of virtual machines over NFS to which something happens all the time.

One head, three workers, a file server, a watcher, a client that keeps everybody busy. By a seed,
one at a time, for some minutes: kills, freezes, resets, cut links, server pauses, clocks that jump.
Then everything is put right, and the end is judged: one answer per task, nothing left on the root,
no process left, nobody started again whose worker lived. Needs root and what `tests/cluster` needs;
SHARDFLEET_CLUSTER names a cluster that runs already (`tests/cluster/up`).

    PYTHONPATH=. .venv/bin/python bench/chaos.py --quick --check --seed 7
"""

from __future__ import annotations

import json
import os
import random
import secrets
import shlex
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the rigs are part of the tests

from chaos_events import ENDS_LIFE, Event, Events, Pace
from report import Report, median, parser
from tests.cluster.ground import WATCH, Run
from tests.rigs import vmcluster
from tests.rigs.vmcluster import Cluster

MINUTES, QUICK_MINUTES = 10.0, 2.0
LONG, QUICK = Pace((8.0, 45.0), (5.0, 20.0)), Pace((6.0, 30.0), (2.0, 8.0))
"""Holds are shorter and longer than the staleness, and than the fence behind it."""
TASK_SECONDS, AHEAD = 0.3, 60
SETTLING = 300.0
"""Seconds in which all must be well again, and all answers there."""
READ = 1.0
"""Seconds in which an answer is read that was given before an event."""


class Answer(NamedTuple):
    """A batch that was answered: its shard, by which life of which host's worker, and when."""

    shard: str
    host: str
    life: str
    at: float

    @classmethod
    def of(cls, line: str) -> Answer:
        shard, host, life, at = line.split()
        return cls(shard, host, life, float(at))


class Laps:
    """Where the time goes: each part of the program, and its seconds on this machine."""

    def __init__(self, report: Report) -> None:
        self._report, self._at = report, time.monotonic()
        self._seconds: dict[str, float] = {}

    def end(self, part: str) -> None:
        """A part is over; another one begins."""
        now = time.monotonic()
        self._seconds[part] = now - self._at
        self._at = now
        self._report.say(f"{part}: {self._seconds[part]:.0f} s, load {os.getloadavg()[0]:.1f}")

    def tell(self) -> None:
        self._report.figures["parts"] = self._seconds
        rows = [(part, round(seconds)) for part, seconds in self._seconds.items()]
        self._report.table("where the time went", ("", "seconds"), rows)


@contextmanager
def ground() -> Iterator[Cluster]:
    """The cluster that runs, or one of our own."""
    running = os.environ.get("SHARDFLEET_CLUSTER")
    if running:
        yield Cluster.load(Path(running))
        return
    base = Path(tempfile.mkdtemp(prefix="shardfleet-chaos-", dir="/tmp"))
    try:
        cluster = Cluster.boot(base / "rig")
        try:
            yield cluster
        finally:
            cluster.close()
    finally:
        shutil.rmtree(base, ignore_errors=True)


def play(
    run: Run, events: Events, minutes: float, report: Report, laps: Laps
) -> tuple[dict[str, Any], list[Answer]]:
    """Everything that happens; the sender's summary, and its answers."""
    out = f"/run/chaos-{secrets.token_hex(3)}"
    words = ["-m", "tests.cluster.stream_sender", run.root, out, str(TASK_SECONDS), str(AHEAD)]
    command = f"{run.python(words)} >{out}.err 2>&1 </dev/null; : >{out}.over"
    run.sh(f"setsid sh -c {shlex.quote(command)} >/dev/null 2>&1 </dev/null &")
    run.wait(f"[ -s {out}.log ] || [ -e {out}.over ]", what="the first answer")
    laps.end("first answer")
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end and run.sh(f"test -e {out}.over", check=False).returncode:
        event = events.once()
        report.say(f"{event.what} {event.host}, over after {_uptime(run) - event.at:.0f} s")
        events.rest()
    events.wait_booted()
    laps.end("events")
    run.wait_beats(SETTLING)
    laps.end("all ready")
    run.sh(f": >{out}.end")
    run.wait(f"[ -e {out}.over ]", SETTLING, "all answers")
    error = run.sh(f"cat {out}.err").stdout
    assert run.sh(f"test -e {out}", check=False).returncode == 0, f"the sender failed: {error}"
    answers = list(map(Answer.of, run.sh(f"cat {out}.log").stdout.splitlines()))
    laps.end("last answers")
    return json.loads(run.sh(f"cat {out}").stdout), answers


def _uptime(run: Run) -> float:
    return float(run.sh("cat /proc/uptime").stdout.split()[0])


def seconds_to(event: Event, answers: Sequence[Answer], **wanted: str) -> float | None:
    """From an event to the first answer with these fields; None where none came.

    Where it ended a worker, what that one had answered may still be read, and does not count.
    """
    mine = {a.life for a in answers if a.host == event.host and a.at <= event.at}
    ended = mine if event.what in ENDS_LIFE else set()
    later = (
        answer.at
        for answer in answers
        if answer.at > event.at + READ
        and answer.life not in ended
        and wanted.items() <= answer._asdict().items()
    )
    first = min(later, default=None)
    return None if first is None else first - event.at


def tell_recovery(
    run: Run, events: Sequence[Event], answers: Sequence[Answer], report: Report
) -> dict[str, list[float]]:
    """The table of how long answers were missing; by event, the seconds to the shard's next one."""
    manifest = json.loads(run.sh(f"cat {run.root}/manifest.json").stdout)
    homes = {worker["host"]: str(worker["shard"]) for worker in manifest["workers"]}
    rows, shards = [], {}
    for what in sorted({event.what for event in events if event.host in homes}):
        mine = [event for event in events if event.what == what and event.host in homes]
        by_host = [seconds_to(e, answers, host=e.host) for e in mine]
        by_shard = [seconds_to(e, answers, shard=homes[e.host]) for e in mine]
        hosts, shards[what] = ([s for s in row if s is not None] for row in (by_host, by_shard))
        figures = [f(seconds) for seconds in (hosts, shards[what]) for f in (median, _most)]
        rows.append((what, len(mine), *figures))
    head = ("", "times", "host: median", "most", "its shard: median", "most")
    report.table("seconds from an event to the next answer", head, rows)
    return shards


def _most(seconds: Sequence[float]) -> float | None:
    return max(seconds, default=None)


def judge(
    run: Run,
    events: Sequence[Event],
    told: dict[str, Any],
    answers: Sequence[Answer],
    report: Report,
) -> None:
    limit = float(WATCH["FLEET_WATCH_STALE"])
    shards = tell_recovery(run, events, answers, report)
    ended = Counter(event.host for event in events if event.what in ENDS_LIFE)
    restarts = Counter(run.restarts(well=True))
    innocent = sum((restarts - ended).values())
    killed = shards.get("kill", [])
    report.figures.update(
        told, events=[vars(event) for event in events], restarts=restarts, shards=shards
    )
    report.table(
        "the whole", ("", "count"),
        [("events", len(events)), ("tasks", told["sent"]), ("restarts", restarts.total())],
    )  # fmt: skip
    report.target("tasks without their one right answer", told["sent"] - told["right"], at_most=0)
    report.target("tasks answered twice", told["twice"], at_most=0)
    report.target("restarts of workers that lived", innocent, at_most=0)
    report.target(
        "from a kill to its shard's next commit, most", _most(killed), at_most=limit, unit=" s"
    )
    run.check_clean()
    left = run.end()
    report.target("machines with processes after the stop", len(left), at_most=0)
    if innocent or told["wrong"] or left:
        report.say(f"{told['wrong']} {left}\n{run.text('watch.log')}")


def main() -> int:
    options = parser(__doc__ or "")
    options.add_argument("--minutes", type=float, help="how long (10; with --quick 2)")
    options.add_argument("--seed", type=int, default=1, help="of the choices")
    args = options.parse_args()
    why = vmcluster.missing()
    if why:
        print(why, file=sys.stderr)
        return 2
    report = Report("chaos", args)
    laps = Laps(report)
    minutes = args.minutes or (QUICK_MINUTES if args.quick else MINUTES)
    with ground() as cluster:
        laps.end("boot")
        run = Run(cluster, "chaos")
        events = Events(run, random.Random(args.seed), QUICK if args.quick else LONG)
        try:
            # The watcher is in a hurry, the start is not: keys are exchanged slowly over there.
            run.start(**{**WATCH, "FLEET_CONNECT_TIMEOUT": "90"})
            run.watch()
            laps.end("start")
            told, answers = play(run, events, minutes, report, laps)
            judge(run, events.past, told, answers, report)
            laps.end("audit and stop")
        finally:
            events.put_right()
            run.close()
            laps.end("removal")
    laps.end("switching off")
    laps.tell()
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
