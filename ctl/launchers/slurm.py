"""The launcher of runs on Slurm: jobs are submitted (`ctl.slurm`), and their workers attach."""

from __future__ import annotations

from typing import Any, ClassVar

from ctl.launchers.attached import AttachedLauncher


class SlurmLauncher(AttachedLauncher):
    """Contacts nobody: Slurm starts the workers, which hear from the root."""

    name: ClassVar[str] = "slurm"
    options: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, **common: Any) -> None:
        """What is common to launchers is written into the batch script instead."""
