"""Old checkpoints of a job, removed once enough newer ones are finished.

What an episode gave (`done.json`: rewards, sizes, digests) stays, and so does its folder, which
nothing may ever take the name of again; only the files of its checkpoint go.
"""

from __future__ import annotations

from fsworker.errors import FleetError
from fsworker.protocol import artifacts, federation, fsfolders, jobstate, layout
from fsworker.protocol.artifacts import Damaged
from fsworker.protocol.fsops import Store
from fsworker.protocol.records.artifact import Done
from fsworker.protocol.records.job import Job


def oldest_kept(job: Job, newest: int) -> int:
    """The first episode whose checkpoint is kept when `newest` is the last that is finished."""
    return 1 if job.keep_checkpoints is None else max(1, newest - job.keep_checkpoints + 1)


def prune(store: Store, job: Job, newest: int) -> list[int]:
    """Remove checkpoints that are older than is kept; the episodes whose files went.

    Oldest first, so that what a killed attempt left is at the end of what is gone. OSError and
    StorageError as they come: the next episode tries again.
    """
    first = oldest_kept(job, newest)
    due = []
    for episode in reversed(jobstate.look(store, job.job_id).episodes):
        if episode >= first:
            continue
        folder = layout.jobs.episode_dir(job.job_id, episode)
        if set(federation.names(store, folder)) <= {artifacts.DONE}:
            break
        due.append(episode)
    for episode in reversed(due):
        _empty(store, layout.jobs.episode_dir(job.job_id, episode))
    return due[::-1]


def record(store: Store, job: Job, episode: int, newest: int) -> Done | None:
    """What a finished episode gave; None where its checkpoint should be there and is not sound."""
    folder = layout.jobs.episode_dir(job.job_id, episode)
    try:
        if episode < oldest_kept(job, newest):
            return artifacts.read_done(store, folder)
        return artifacts.verify(store, folder, full=False)
    except Damaged:
        return None


def _empty(store: Store, folder: str) -> None:
    for name in federation.names(store, folder):
        if name != artifacts.DONE and not fsfolders.remove_tree(store, f"{folder}/{name}"):
            raise FleetError(f"{store.path(folder)}/{name} cannot be removed")
