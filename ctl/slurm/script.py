"""The batch script of one worker and the arguments of sbatch: pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ctl.slurm.terms import Book, Terms
from fsworker.protocol.records.run import LaunchMeta


def arguments(terms: Terms, run_id: str, root: str) -> list[str]:
    """What sbatch is told. The script itself comes on its stdin: a token must not show in argv."""
    given = {
        "--partition": terms.partition,
        "--account": terms.account,
        "--time": terms.time,
        "--gres": terms.gres,
        "--cpus-per-task": terms.cpus,
        "--mem": terms.memory,
    }
    argv = ["--parsable", "--nodes=1", "--ntasks=1", "--requeue", "--open-mode=append"]
    argv += [f"--job-name=shardfleet-{run_id}", f"--output={_plain(root)}/ctl/slurm-%j.out"]
    # To the batch shell, which is the wrapper by then: it drains before the limit, or at once where
    # the site announces preemptions. TERM comes later, to every process, and then KILL.
    argv += [f"--signal=B:USR1@{terms.grace}", "--chdir=/"]
    argv += [f"{name}={value}" for name, value in given.items() if value is not None]
    return [*argv, *terms.extra]


def _plain(path: str) -> str:
    """A path in which sbatch replaces nothing."""
    return path.replace("\\", "\\\\").replace("%", "%%")


def build(
    meta: LaunchMeta,
    book: Book,
    token: str,
    environ: Sequence[tuple[str, str]],
    shard: int,
    kill_wait: float,
) -> bytes:
    """The script: environment and setup as on any host, then the worker in the shell's place.

    `kill_wait`: seconds from TERM to KILL, in which a worker that was not told before gives back.
    """
    terms = book.terms
    lines = ["#!/bin/sh"]
    if meta.pythonpath:
        joined = shlex.quote(":".join(meta.pythonpath))
        lines.append(f'PYTHONPATH={joined}"${{PYTHONPATH:+:$PYTHONPATH}}"; export PYTHONPATH')
    lines += [f"{name}={shlex.quote(value)}; export {name}" for name, value in environ]
    lines += [f"FLEET_WORKER_TOKEN={shlex.quote(token)}; export FLEET_WORKER_TOKEN", *meta.setup]
    own = [f"{meta.root}/{meta.bundle}"] if meta.from_bundle else ["-m", "fsworker"]
    argv = [meta.python or "python3", *own, "attach", "--root", meta.root]
    argv += ["--parallel", str(book.parallel), "--job-slots", str(book.job_slots)]
    labels = ",".join(("slurm", *meta.labels))
    argv += ["--labels", labels, "--log-level", meta.log_level, "--shard", str(shard)]
    argv += ["--grace", f"{terms.grace * 0.8:g}", "--term-grace", f"{kill_wait * 0.5:g}"]
    argv += ["--max-idle", f"{terms.max_idle:g}"] if terms.max_idle else []
    lines.append(f'exec {shlex.join(argv)} --name "slurm-$SLURM_JOB_ID"')
    return "\n".join([*lines, ""]).encode("utf-8", "surrogateescape")
