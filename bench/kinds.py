"""One run with members of all kinds, each of which is killed in its own way amid many tasks.

Two hosts over real SSH, one that attached with a label and a device mask, two jobs of a real Slurm;
tasks that need different things. At the end each task has one answer, by somebody who offers what
it needs, and nobody is blamed. Needs root, sshd and Slurm (Debian: slurm-wlm, munge).

    PYTHONPATH=. .venv/bin/python bench/kinds.py --check            50,000 tasks, some minutes
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the rigs are part of the tests

from fsworker import Client
from report import Report, parser
from tests.cluster.kinds import Kinds
from tests.rigs import hosts, slurm
from tests.rigs.hosts import HostRig
from tests.rigs.slurm import Slurm

TASKS, QUICK_TASKS, TASK_SECONDS = 50_000, 2_000, 0.01
KILLS = 5


def measure(kinds: Kinds, count: int, out: Report) -> None:
    """Send everything, kill everybody once, and say what came of it."""
    kinds.up()
    out.say(f"{count} tasks")
    began = time.monotonic()
    with Client(str(kinds.root), no_worker_timeout=120) as client:
        futures = kinds.send(client, count, TASK_SECONDS)
        sent = time.monotonic() - began
        # Spread over the first half, so that everybody is back before the end.
        kinds.kill_in_turn(lambda n: sum(kinds.answers.values()) >= count * n // (2 * KILLS))
        for future in futures:
            future.exception(600)
    took = time.monotonic() - began
    wrong = kinds.wrong(count)
    for sentence in wrong[:20]:
        out.say(sentence)
    hosts = sorted({host for counted in kinds.by.values() for host in counted})
    rows = [(kind, *(counted[host] for host in hosts)) for kind, counted in kinds.by.items()]
    out.table("Who executed what", ("needs", *hosts), rows)
    rows = [("sent in, s", sent), ("all answered after, s", took), ("tasks a second", count / took)]
    out.table(f"{count} tasks of {1e3 * TASK_SECONDS:g} ms", ("", "figure"), rows)
    out.figures.update(sent_s=sent, took_s=took, by=kinds.by, wrong=wrong, backs=kinds.backs)
    rows = [(name, seconds) for name, seconds in kinds.backs.items()]
    out.table("From a kill to the next life that is ready, s", ("what", "s"), rows)
    out.target("answers that are missing, doubled or by a stranger", len(wrong), at_most=0)
    kinds.down()


def main() -> int:
    """The program."""
    options = parser(__doc__ or "")
    options.add_argument(
        "--tasks", type=int, help=f"how many ({TASKS}; with --quick {QUICK_TASKS})"
    )
    args = options.parse_args()
    why = hosts.missing() or slurm.missing()
    if why:
        print(why, file=sys.stderr)
        return 2
    out = Report("kinds", args)
    folder = Path(tempfile.mkdtemp(prefix="bench-kinds-"))
    os.makedirs(folder / "run")
    os.makedirs(folder / "slurm")
    try:
        with Slurm(folder / "slurm") as site, HostRig(folder / "run") as rig:
            kinds = Kinds(folder / "run", site, rig, out.say)
            try:
                measure(kinds, args.tasks or (QUICK_TASKS if args.quick else TASKS), out)
            finally:
                kinds.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return out.finish()


if __name__ == "__main__":
    sys.exit(main())
