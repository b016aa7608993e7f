"""A fleet of virtual machines over NFS to which something happens all the time.

One head, three workers, a file server, a watcher, a client that keeps everybody busy. A seeded
choice of kills, freezes, resets, cut links and server pauses, one at a time, for some minutes; then
everything is put right, and the end is judged: one answer per task, nothing left on the root, no
process left, nobody restarted to whom nothing had happened. Needs root and what `tests/cluster`
needs; SHARDFLEET_CLUSTER names a cluster that runs already (`tests/cluster/up`).

    PYTHONPATH=. .venv/bin/python bench/chaos.py --quick --check --seed 7
"""

from __future__ import annotations

import json
import os
import random
import secrets
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the rigs are part of the tests

from report import Report, median, parser
from tests.cluster.ground import WATCH, Run
from tests.rigs import vmcluster
from tests.rigs.vmcluster import Cluster

MINUTES, QUICK_MINUTES = 10.0, 2.0
HOLD = (8.0, 45.0)
"""Seconds that a freeze, a cut or a pause lasts: some shorter than the staleness, some longer."""
REST = (10.0, 30.0)
TASK_SECONDS, AHEAD = 0.3, 60


class Chaos:
    """What may happen; each notes when, by the head's clock, and to whom."""

    def __init__(self, run: Run, rng: random.Random) -> None:
        self.run, self.rng = run, rng
        self.events: list[tuple[str, str, float]] = []
        self.ways: dict[str, Callable[[str], None]] = {
            "kill": self._kill,
            "freeze": self._freeze,
            "cut": self._cut,
            "reset": self._reset,
            "pause": self._pause,
        }

    def once(self) -> tuple[str, str, float]:
        """Let one thing happen, and undo it."""
        what = self.rng.choice(sorted(self.ways))
        host = "server" if what == "pause" else self.rng.choice(sorted(self.run.cluster.workers))
        event = (what, host, float(self.run.sh("date +%s.%N").stdout))
        self.events.append(event)
        self.ways[what](host)
        return event

    def rest(self) -> None:
        time.sleep(self.rng.uniform(*REST))

    def _hold(self) -> None:
        time.sleep(self.rng.uniform(*HOLD))

    def _kill(self, host: str) -> None:
        pids = [self.run.text(f"{host}.{name}").strip() for name in ("wrap.pid", "pid")]
        machine = self.run.cluster.workers[host]
        self.run.sh(f"kill -9 {' '.join(pids)}", on=machine, check=False)

    def _freeze(self, host: str) -> None:
        machine = self.run.cluster.workers[host]
        machine.freeze()
        self._hold()
        machine.thaw()

    def _cut(self, host: str) -> None:
        machine = self.run.cluster.workers[host]
        machine.link(False)
        self._hold()
        machine.link(True)

    def _reset(self, host: str) -> None:
        machine = self.run.cluster.workers[host]
        machine.reset()
        machine.wait_ssh()

    def _pause(self, _: str) -> None:
        server = self.run.cluster.server
        server.pause()
        self._hold()
        server.resume()


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


def play(run: Run, chaos: Chaos, minutes: float, report: Report) -> tuple[dict[str, int], str]:
    """Everything that happens; the sender's summary, and its log of answers."""
    out = f"/run/chaos-{secrets.token_hex(3)}"
    words = ["-m", "tests.cluster.stream_sender", run.root, out, str(TASK_SECONDS), str(AHEAD)]
    run.sh(f"setsid {run.python(words)} >{out}.err 2>&1 </dev/null &")
    run.wait(f"[ -s {out}.log ]", what="the first answer")
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        report.say("{} {}".format(*chaos.once()))
        chaos.rest()
    run.wait_ready(600)
    run.sh(f": >{out}.end")
    run.wait(f"[ -e {out} ]", 600, "all answers")
    return json.loads(run.sh(f"cat {out}").stdout), run.sh(f"cat {out}.log").stdout


def back_after(events: list[tuple[str, str, float]], log: str) -> list[tuple[str, str, float]]:
    """For each event of a host, the seconds until that host gave the next answer."""
    rows = [(host, float(at)) for host, at in map(str.split, log.splitlines())]
    found = []
    for what, host, at in events:
        later = [moment for name, moment in rows if name == host and moment > at + 1.0]
        if later:
            found.append((what, host, min(later) - at))
    return found


def judge(run: Run, chaos: Chaos, told: dict[str, int], log: str, report: Report) -> None:
    happened = Counter(host for what, host, _ in chaos.events if what != "pause")
    restarts = Counter(run.restarts())
    innocent = sum(n for host, n in restarts.items() if not happened[host])
    back = back_after(chaos.events, log)
    rows = [
        (
            what,
            sum(1 for e in chaos.events if e[0] == what),
            len(took),
            median(took),
            max(took, default=None),
        )
        for what in sorted(chaos.ways)
        for took in [[s for w, _, s in back if w == what]]
    ]
    head = ("what", "times", "host was back", "median s", "most s")
    report.table("until the host's next answer", head, rows)
    report.figures.update(told, events=chaos.events, restarts=restarts, back=back)
    report.target("tasks without their one answer", told["sent"] - told["right"], at_most=0)
    report.target("tasks answered twice", told["twice"], at_most=0)
    report.target("restarts of hosts to which nothing had happened", innocent, at_most=0)
    run.check_clean()
    run.stop()


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
    minutes = args.minutes or (QUICK_MINUTES if args.quick else MINUTES)
    with ground() as cluster:
        run = Run(cluster, "chaos")
        try:
            run.start("--watch", **WATCH)
            chaos = Chaos(run, random.Random(args.seed))
            told, log = play(run, chaos, minutes, report)
            judge(run, chaos, told, log, report)
        finally:
            run.close()
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
