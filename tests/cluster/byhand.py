"""A cluster that stays, for trying things by hand.

    tests/cluster/up [--workers N] [--folder DIR]     boot a head, N machines and a file server
    tests/cluster/on [--folder DIR] MACHINE COMMAND   run a shell command in one of them
    tests/cluster/down [--folder DIR]                 switch everything off

Tests use it instead of booting their own where SHARDFLEET_CLUSTER names its folder.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from tests.rigs import vmcluster
from tests.rigs.vmcluster import Cluster

FOLDER = Path("/tmp/shardfleet-cluster")


def up(folder: Path, workers: int) -> int:
    why = vmcluster.missing() or (f"{folder} exists: tests/cluster/down" if folder.exists() else "")
    if why:
        print(why, file=sys.stderr)
        return 1
    cluster = Cluster.boot(folder, workers, stay=True)
    names = ", ".join(machine.name for machine in cluster.machines)
    print(f"up: {names}; run roots belong on /nfs; SHARDFLEET_CLUSTER={folder} for tests")
    return 0


def down(folder: Path) -> int:
    if not (folder / "cluster.json").exists():
        print(f"no cluster in {folder}", file=sys.stderr)
        return 1
    Cluster.load(folder).close()
    return 0


def on(folder: Path, name: str, command: list[str]) -> int:
    machines = {machine.name: machine for machine in Cluster.load(folder).machines}
    if name not in machines:
        print(f"no machine {name}: {', '.join(machines)}", file=sys.stderr)
        return 1
    return subprocess.call(machines[name].ssh_argv(*command))


def main() -> int:
    parser = argparse.ArgumentParser(prog=f"tests/cluster/{sys.argv[1]}")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    if sys.argv[1] == "up":
        parser.add_argument("--workers", type=int, default=3)
    if sys.argv[1] == "on":
        parser.add_argument("machine")
        parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args(sys.argv[2:])
    if sys.argv[1] == "up":
        return up(asked.folder, asked.workers)
    return (
        down(asked.folder)
        if sys.argv[1] == "down"
        else on(asked.folder, asked.machine, asked.command)
    )


if __name__ == "__main__":
    sys.exit(main())
