"""How fast one command reaches 32 hosts, against what else sites use: first contact, and again.

    python bench/ssh.py --quick          three repetitions
    python bench/ssh.py --check --json FILE

Hosts are real sshd on loopback, in namespaces of their own (needs root). All contenders take turns
within a repetition, each in a process of its own; ratios are medians of ratios within a repetition.
OpenSSH loses by its default key exchange, so it is shown with curve25519 as well, which is what the
others use.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from environments import python_with  # noqa: E402  # needs the path above
from report import Report, median, parser, ratio_in_pairs  # noqa: E402
from ssh_contender import CONTENDERS  # noqa: E402
from tests.rigs.hosts import HostRig, missing  # noqa: E402

PACKAGES = {"parallel-ssh": ("parallel-ssh",), "asyncssh": ("asyncssh",)}
OURS, BARE = "shardfleet", "paramiko, 32 threads"
Figures = dict[str, dict[str, list[list[float]]]]


def main() -> int:
    """Measure, print, judge."""
    options = parser(__doc__ or "")
    options.add_argument("--hosts", type=int, default=32, help="how many")
    options.add_argument("--repetitions", type=int, help="default: 7, with --quick 3")
    options.add_argument("--only", action="append", choices=CONTENDERS, help="default: all")
    args = options.parse_args()
    lacking = missing()
    if lacking:
        print(f"cannot measure: {lacking}", file=sys.stderr)
        return 2
    out = Report("ssh", args)
    found: Figures = defaultdict(lambda: {"first": [], "again": []})
    with tempfile.TemporaryDirectory() as folder, HostRig(Path(folder)) as rig:
        spec = _lay(rig, args.hosts, out)
        pythons = _environments(args.only or list(CONTENDERS), out)
        for turn in range(args.repetitions or (3 if args.quick else 7)):
            for name, python in pythons.items():
                out.say(f"{turn + 1} {name}")
                _measure(name, python, spec, found, out)
    _tell(found, args.hosts, out)
    return out.finish()


def _lay(rig: HostRig, count: int, out: Report) -> str:
    """Start the hosts; the file that tells contenders about them."""
    out.say(f"starting {count} hosts")
    hosts = []
    for number in range(count):
        host = rig.add(f"n{number:02d}")
        hosts.append({"name": host.name, "address": host.address, "port": host.port})
    spec = {
        "hosts": hosts,
        "config": str(rig.config),
        "key": str(rig.client_key),
        "known_hosts": str(rig.known_hosts),
    }
    path = rig.folder / "spec.json"
    path.write_text(json.dumps(spec))
    return str(path)


def _environments(wanted: list[str], out: Report) -> dict[str, str]:
    """The interpreter of each contender that can be had."""
    found = {}
    for name in wanted:
        try:
            found[name] = python_with(PACKAGES.get(name, ()))
        except RuntimeError as error:
            out.say(f"{name} is left out: {str(error)[:200]}")
    return found


def _measure(name: str, python: str, spec: str, found: Figures, out: Report) -> None:
    argv = [python, str(HERE / "ssh_contender.py"), name, spec]
    # Only where our own packages are wanted: environments of others must not see ours.
    path = {} if name in PACKAGES else {"PYTHONPATH": str(HERE.parent)}
    done = subprocess.run(
        argv, capture_output=True, text=True, env={**os.environ, **path}, timeout=300, check=False
    )
    if done.returncode:
        out.say(f"{name} failed: {done.stderr[-300:]}")
        return
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    for kind in ("first", "again"):
        if told[kind]:
            found[name][kind].append(told[kind])


def _tell(found: Figures, hosts: int, out: Report) -> None:
    rows = []
    for name, figures in found.items():
        cells: list[float | None] = []
        for runs in (figures["first"], figures["again"]):
            cpu = median(run[1] for run in runs)
            cells += [median(run[0] for run in runs), None if cpu is None else 1e3 * cpu / hosts]
        rows.append((name, *cells))
    head = ("contender", "first, s", "CPU, ms a host", "again, s", "CPU, ms a host ")
    out.table("One command on every host; medians", head, rows)
    out.figures = {name: dict(figures) for name, figures in found.items()}
    others = [n for n in found if n != OURS] or [BARE]
    fastest = min(others, key=lambda n: median(r[0] for r in found[n]["first"]) or 1e9)
    out.target(
        f"first contact / {fastest}", _ratio(found, OURS, fastest, "first"), at_most=1.25, unit=" x"
    )
    out.target(
        "ClusterShell / first contact",
        _ratio(found, "ClusterShell", OURS, "first"), at_least=2.5, unit=" x",
    )  # fmt: skip
    out.target("again / bare paramiko", _ratio(found, OURS, BARE, "again"), at_most=1.2, unit=" x")


def _ratio(found: Figures, one: str, other: str, kind: str) -> float | None:
    first, second = ([run[0] for run in found[name][kind]] for name in (one, other))
    return ratio_in_pairs(first, second)


if __name__ == "__main__":
    sys.exit(main())
