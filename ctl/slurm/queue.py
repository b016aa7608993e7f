"""Slurm's commands, each with a time limit: a controller that is away must not hang a `ctl`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from fsworker.errors import FleetError, UnknownState, UsageError
from fsworker.inventory import without_grants

WITHIN = 30.0
KILL_WAIT = 30.0
ENDED = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
     "PREEMPTED", "TIMEOUT", "REVOKED", "GONE"}
)  # fmt: skip
"""States in which a job does nothing any more, unless Slurm itself requeues it."""


@dataclass(frozen=True)
class Row:
    """What Slurm says of one job. `reason`: why it waits or how it ended."""

    id: str
    state: str
    node: str = ""
    reason: str = ""

    @property
    def over(self) -> bool:
        """Whether it has ended for good."""
        return self.state in ENDED


def require() -> None:
    """UsageError where Slurm's commands are not installed."""
    if shutil.which("sbatch") is None:
        raise UsageError("--launcher slurm needs sbatch on PATH: run ctl where jobs are submitted")


def submit(script: bytes, arguments: Sequence[str]) -> str:
    """Submit a job; its id."""
    told = _run("sbatch", *arguments, stdin=script)
    job = told.strip().splitlines()[-1].partition(";")[0] if told.strip() else ""
    if not job.isdigit():
        raise FleetError(f"sbatch printed {told.strip()!r} in place of a job id")
    return job


def look(jobs: Collection[str]) -> dict[str, Row]:
    """Each of these jobs as Slurm knows it; one that it has forgotten is GONE."""
    found = {job: Row(job, "GONE") for job in jobs}
    if not jobs:
        return found
    told = _run("squeue", "--noheader", "--states=all", f"--jobs={','.join(jobs)}",
                "--format=%i|%T|%N|%r", missing_ok=True)  # fmt: skip
    for line in told.splitlines():
        parts = line.strip().split("|")
        if len(parts) == 4 and parts[0] in found:
            found[parts[0]] = Row(*parts)
    return found


def kill_wait() -> float:
    """Seconds between TERM and KILL where Slurm ends a job; its default where it does not say."""
    try:
        told = _run("scontrol", "show", "config")
    except FleetError:
        return KILL_WAIT
    found = re.search(r"^KillWait\s*=\s*([0-9]+)", told, re.MULTILINE)
    return float(found[1]) if found else KILL_WAIT


def cancel(jobs: Iterable[str], *, pending: bool = False) -> None:
    """Cancel jobs; `pending`: those only that have not begun."""
    names = list(jobs)
    if names:
        only = ["--state=PENDING"] if pending else []
        _run("scancel", *only, *names, missing_ok=True)


def _run(program: str, *argv: str, stdin: bytes = b"", missing_ok: bool = False) -> str:
    # What an allocation around us says of itself would be taken for what we ask for.
    env = without_grants(os.environ)
    if "SLURM_CONF" in os.environ:
        env["SLURM_CONF"] = os.environ["SLURM_CONF"]
    try:
        done = subprocess.run(
            [program, *argv], input=stdin, capture_output=True, timeout=WITHIN, env=env, check=False
        )
    except FileNotFoundError:
        raise UnknownState(
            f"{program} is not installed here: ask where jobs are submitted"
        ) from None
    except subprocess.TimeoutExpired:
        raise UnknownState(f"{program} does not answer within {WITHIN:g} s") from None
    said = done.stderr.decode("utf-8", "replace").strip()
    if done.returncode and not (missing_ok and "nvalid job id" in said):
        words = " / ".join(said.splitlines()) or f"exit code {done.returncode}"
        raise FleetError(f"{program} refuses: {words}")
    return done.stdout.decode("utf-8", "replace")
