"""What a worker may use of its machine: cpus, memory, GPUs; what a batch system granted first.

Nobody's tool is called: no nvidia-smi, no scontrol. They may be missing, slow, or show the whole
machine where only a part is ours.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fsworker.inventory import machine
from fsworker.inventory.grants import granted


@dataclass(frozen=True)
class Inventory:
    """What there is. `memory_mb` is None where it is not known, which is allowed.

    `gpus` counts the visible devices; `mask` is the variable that says which, passed on unchanged.
    """

    cpus: int
    memory_mb: int | None
    gpus: int
    source: str
    mask: str | None = None
    warnings: tuple[str, ...] = ()

    def fields(self) -> dict[str, Any]:
        """What a heartbeat says of it."""
        told = {"cpus": self.cpus, "memory_mb": self.memory_mb, "gpu_count": self.gpus}
        return {**told, "granted_by": self.source, "warnings": list(self.warnings)}


def take(environ: Mapping[str, str], here: machine.Machine | None = None) -> Inventory:
    """The inventory of this process: the grant of a batch system, filled up by the machine.

    More than the machine has is not believed: a grant for another node may have leaked in here.
    """
    here = here or machine.look()
    grant = granted(environ)
    cpus = min(grant.cpus or here.cpus, here.cpus)
    memory = _least(grant.memory_mb, here.memory_mb)
    gpus = here.gpus if grant.gpus is None else grant.gpus
    return Inventory(cpus, memory, gpus, grant.source or "machine", grant.mask, grant.warnings)


def overridden(
    found: Inventory, cpus: int = 0, memory_mb: int = 0, gpus: int | None = None
) -> Inventory:
    """With what somebody said on the command line: 0 (and None for GPUs) stand for nothing said."""
    return replace(
        found,
        cpus=cpus or found.cpus,
        memory_mb=memory_mb or found.memory_mb,
        gpus=found.gpus if gpus is None else gpus,
    )


def without_grants(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment for what starts elsewhere: a grant for this node would mislead or break it.

    A nested srun refuses contradicting SLURM_MEM_* variables, and a step on another node must not
    believe this node's numbers.
    """
    return {k: v for k, v in environ.items() if not k.startswith(("SLURM_", "PBS_", "LSB_"))}


def _least(*amounts: int | None) -> int | None:
    return min((a for a in amounts if a is not None), default=None)


def here() -> Inventory:
    """The inventory of this process, by its own environment."""
    return take(os.environ)
