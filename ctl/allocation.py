"""The nodes of the batch job that this process runs in, and whether its numbers agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ctl.hosts import names_of
from fsworker.inventory.grants import repeated


@dataclass(frozen=True)
class Allocation:
    """The nodes of a Slurm job, in the order in which Slurm numbers them; sentences of doubt."""

    nodes: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def allocation(environ: Mapping[str, str]) -> Allocation | None:
    """The allocation around this process; None outside of one. UsageError for a list unread."""
    text = (environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST") or "").strip()
    if not text:
        return None
    nodes = tuple(names_of(text, "SLURM_JOB_NODELIST"))
    entries = environ.get("SLURM_JOB_CPUS_PER_NODE", "").strip()
    counts = repeated(entries) if entries else None
    if counts is not None and len(counts) != len(nodes):
        told = f"SLURM_JOB_NODELIST has {len(nodes)} nodes, SLURM_JOB_CPUS_PER_NODE {len(counts)}"
        return Allocation(nodes, (f"{told}: the numbers of cpus are not believed",))
    return Allocation(nodes)
