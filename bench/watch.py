"""What a watcher costs, when all is well and when a third of its hosts is broken.

    python bench/watch.py --quick        100 sweeps over broken hosts, a minute or two
    python bench/watch.py --check        1,000 of them

First a hundred simulated hosts that beat: CPU time of a sweep, watcher and its child together, and
the time of `ctl status`. Then thirty hosts, ten of them broken in eight ways (no port, no answer,
no banner, nothing after it, hangs up, takes no key, shows another key, dies amid a command) and
asked at every sweep: what the process of the watcher holds must not grow, and connections are used
again. Needs root for the hosts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from ctl.health import Limits  # noqa: E402  # needs the path above
from ctl.journal import Journal  # noqa: E402
from ctl.rootio import RootIO  # noqa: E402
from ctl.watch import Options, Watcher  # noqa: E402
from report import Report, median, parser, percentile  # noqa: E402
from tests.rigs.hosts import HostRig, missing  # noqa: E402
from tests.support.sweeps import Figures, Sweeper, sweeper  # noqa: E402
from tests.support.synthetic import Synthetic, cpu_ms  # noqa: E402


def main() -> int:
    """Measure, print, judge."""
    options = parser(__doc__ or "")
    options.add_argument("--hosts", type=int, default=100, help="simulated ones")
    options.add_argument("--sweeps", type=int, help="over broken hosts; default: 1000, or 100")
    args = options.parse_args()
    out = Report("watch", args)
    with tempfile.TemporaryDirectory() as folder:
        _steady(Path(folder), args.hosts, 30 if args.quick else 200, out)
        lacking = missing()
        if lacking:
            out.say(f"broken hosts are left out: {lacking}")
        else:
            (Path(folder) / "rig").mkdir()
            with HostRig(Path(folder) / "rig") as rig, sweeper(Path(folder), rig) as made:
                _broken(made, args.sweeps or (100 if args.quick else 1000), out)
    return out.finish()


def _steady(folder: Path, count: int, sweeps: int, out: Report) -> None:
    """What it costs to see that all is well."""
    root = folder / "steady"
    run = Synthetic(root, [f"node{i:03d}" for i in range(count)])
    io = RootIO(str(root))
    allowed = frozenset(run.hosts)
    watcher = Watcher(io, Options(Limits(), late=60.0), lambda meta: allowed, Journal(echo=False))
    costs = []
    try:
        watcher._enter()
        for _ in range(sweeps):
            run.beat()
            before = cpu_ms(os.getpid()) + cpu_ms(io.pid)
            decision = watcher._turn()
            costs.append(cpu_ms(os.getpid()) + cpu_ms(io.pid) - before)
            assert decision is not None and all(v.healthy for v in decision.verdicts)
    finally:
        watcher.close()
    took = [_status(run, root) for _ in range(5)]
    costs = costs[2:]  # the first ones import and tell everything
    rows = [
        ("CPU of a sweep, ms", median(costs), percentile(costs, 0.99)),
        ("ctl status, ms", 1e3 * (median(took) or 0.0), 1e3 * max(took)),
    ]
    out.table(f"{count} hosts that are well", ("what", "median", "p99"), rows)
    out.figures["steady"] = {"cpu_ms": costs, "status_s": took}
    out.target("CPU of a sweep", median(costs), at_most=20, unit=" ms")
    out.target("ctl status", median(took), at_most=0.5, unit=" s")


def _status(run: Synthetic, root: Path) -> float:
    run.beat()
    env = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    begun = time.monotonic()
    argv = [sys.executable, "-m", "ctl", "status", "--root", str(root)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    took = time.monotonic() - begun
    assert done.returncode == 0, done.stderr
    return took


def _broken(made: Sweeper, sweeps: int, out: Report) -> None:
    """Sweep after sweep over hosts of which a third is broken."""
    for begun in range(0, sweeps, 100):
        out.say(f"sweep {begun} of {sweeps}")
        made.sweep(min(100, sweeps - begun), pause=0.1)
    seen, third = made.figures, sweeps // 3
    parts = {"first": slice(third), "second": slice(third, 2 * third), "last": slice(-third, None)}
    rows = [(name, *_middles(seen, part)) for name, part in parts.items()]
    head = ("third", "sweep, ms", "p99", "CPU, ms", "threads", "descriptors", "resident, MiB")
    out.table(f"{sweeps} sweeps over 30 hosts, 10 of them broken; medians", head, rows)
    words = made.words()
    asked = [(host, count, words[host][:60]) for host, count in made.probes().items()]
    out.table("Hosts that were asked", ("host", "times", "the last answer"), asked)
    logins = [made.logins(host) for host in made.reached]
    growth = {name: seen.growth(getattr(seen, name)) for name in ("threads", "files", "memory")}
    out.figures["broken"] = {"growth": growth, "logins": logins, "took": seen.took, "cpu": seen.cpu}
    for name, most, unit in (("threads", 2, ""), ("files", 2, ""), ("memory", 2048, " KiB")):
        what = f"{name}: last third over the one before"
        out.target(what, growth[name], at_most=most, unit=unit)
    out.target("connections of a host that answers", max(logins), at_most=1)
    out.target("a sweep, p99", percentile(seen.took, 0.99), at_most=0.5, unit=" s")


def _middles(seen: Figures, part: slice) -> list[float | None]:
    took = seen.took[part]
    return [
        1e3 * (median(took) or 0.0),
        1e3 * percentile(took, 0.99),
        1e3 * (median(seen.cpu[part]) or 0.0),
        median(seen.threads[part]),
        median(seen.files[part]),
        (median(seen.memory[part]) or 0.0) / 1024,
    ]


if __name__ == "__main__":
    sys.exit(main())
