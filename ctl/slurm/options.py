"""The options of `start` that are Slurm's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from ctl.params import COUNT, DURATION
from ctl.slurm.terms import Book, Terms
from fsworker.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--nodes", type=COUNT, help="Slurm: how many workers, a job each."),
    click.option("--partition", help="Slurm: the partition."),
    click.option("--account", help="Slurm: the account."),
    click.option("--time", "limit", help="Slurm: the time limit of a job."),
    click.option("--gres", help="Slurm: generic resources, as gpu:2."),
    click.option("--cpus", type=COUNT, help="Slurm: cpus of a job [default: the concurrency]."),
    click.option("--mem", help="Slurm: memory of a job, as 4G."),
    click.option(
        "--sbatch", multiple=True, metavar="ARG", help="Slurm: more for sbatch, as it is."
    ),
    click.option("--drain-before", type=COUNT, help="Slurm: s before the limit [default: 60]."),
    click.option("--max-idle", type=DURATION, help="Slurm: idle workers end [default: never]."),
    click.option("--resubmit", type=COUNT, help="Slurm: deaths to replace [default: 0]."),
)


def slurm_options(command: F) -> F:
    """Add them to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def check(launcher: str, options: Mapping[str, Any]) -> None:
    """UsageError for Slurm's options with another launcher, and for a Slurm without nodes."""
    given = [n for n in _NAMES if options[n] not in (None, ())]
    if launcher != "slurm" and given:
        raise UsageError(f"--{given[0].replace('_', '-')} is for --launcher slurm")
    if launcher == "slurm" and options["nodes"] is None:
        raise UsageError("--launcher slurm needs --nodes: how many workers to submit")


_NAMES = (
    *("nodes", "partition", "account", "limit", "gres", "cpus", "mem", "sbatch"),
    *("drain_before", "max_idle", "resubmit"),
)


def book_of(options: Mapping[str, Any], parallel: int, job_slots: int) -> Book:
    """What the options ask for; nothing is submitted yet."""
    terms = Terms(
        options["partition"],
        options["account"],
        options["limit"],
        options["gres"],
        options["cpus"] or max(parallel, 1),
        options["mem"],
        tuple(options["sbatch"]),
        options["drain_before"] or 60,
        options["max_idle"] or 0.0,
    )
    nodes, resubmit = options["nodes"], options["resubmit"] or 0
    return Book(nodes, terms, parallel=parallel, job_slots=job_slots, resubmit=resubmit)
