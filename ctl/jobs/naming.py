"""What people call jobs: a job by its id, all of a group by the group's."""

from __future__ import annotations

from collections.abc import Sequence

from ctl.jobs import board
from ctl.roots import Run
from fsworker.errors import NotRunning


def jobs_of(run: Run, names: Sequence[str]) -> list[str]:
    """The jobs that names mean, each once. NotRunning names the first that means nothing."""
    found: dict[str, None] = {}
    for name in names:
        jobs = board.choose(run, name)
        if not jobs:
            raise NotRunning(f"there is no job and no group {name!r} in {run.root}")
        found.update(dict.fromkeys(jobs))
    return list(found)
