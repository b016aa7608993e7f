"""From what lies in a job's folder to what is told about it: its progress, its deaths, its result.

Results are counted in what was published, so that it does not matter how many attempts it took.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fsworker.jobs import handing, retention
from fsworker.jobs.attempt import AttemptFolder
from fsworker.jobs.episodes import End, Progress, begin
from fsworker.protocol import federation, jobstate, layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout.jobs import Attempt
from fsworker.protocol.records.artifact import Done
from fsworker.protocol.records.job import FAILED, SUCCESS, AttemptNote, Job, Result, utc_now

MOST_RETURNS = 10
"""How often hosts may decline a job before it fails."""
DECLINED = ("preflight", "environment")


def progress(store: Store, job: Job) -> Progress:
    """How far a job is, by what is verified on the root. Raises StorageError."""
    done = handing.latest(store, job.job_id).number
    group = job.federation_group_id
    if group is None:
        return begin(job, done, 0, 1)
    uploaded = done if done and handing.is_uploaded(store, group, done, job.job_id) else 0
    newest = federation.newest_global(store, group)
    return begin(job, done, uploaded, newest.episode if newest else 1)


def notes_before(store: Store, job: str, attempt: Attempt) -> list[AttemptNote]:
    """What the attempts before this one have noted, since the job was last submitted."""
    commit = jobstate.look(store, job).commit
    since = commit.attempt.number if commit is not None else 0
    found = jobstate.attempts(store, job)
    return [note for a, note in found if note is not None and a != attempt and a.number > since]


def too_deadly(notes: Iterable[AttemptNote], first: int, deaths: int, most: int) -> str | None:
    """Why a job is given up that workers die of; None when it may go on.

    Deaths count since the job last finished an episode, so that a long job on bad hosts gets on.
    """
    before = [note.deaths for note in notes if note.first >= first]
    since = deaths - min([*before, deaths])
    if since < most:
        return None
    return f"{since} workers died while they ran episode {first}"


def refused_too_often(notes: Sequence[AttemptNote]) -> str | None:
    """Why a job is given up that no host wants; None while it may be tried again."""
    declined = [note for note in notes if note.why in DECLINED]
    if len(declined) < MOST_RETURNS:
        return None
    last = declined[-1]
    return f"{len(declined)} times a host declined it, last {last.host}: {last.returned}"


@dataclass(frozen=True)
class Tally:
    """What all finished episodes of a job gave."""

    episodes: int = 0
    rewards: tuple[float | None, ...] = ()
    total: float | None = None
    last: Done | None = None


def tally(store: Store, job: Job) -> Tally:
    """Add up the published episodes of a job; those that cannot be used are left out."""
    episodes = jobstate.look(store, job.job_id).episodes
    newest = max(episodes, default=0)
    found = (retention.record(store, job, episode, newest) for episode in episodes)
    dones = [done for done in found if done is not None]
    totals = [done.total_reward for done in dones if done.total_reward is not None]
    return Tally(
        dones[-1].episode if dones else 0,
        tuple(reward for done in dones for reward in done.rewards),
        sum(totals) if totals else None,
        dones[-1] if dones else None,
    )


def result(
    at: AttemptFolder, end: End, began: float, *, uncounted: bool, exit_code: int | None
) -> Result:
    """What came of a job. `began` is on the monotonic clock."""
    store, job = at.store, at.job
    found = tally(store, job)
    rewards = [reward for reward in found.rewards if reward is not None]
    checkpoint, error = None, end.error
    status = end.status
    if status == SUCCESS and found.last is not None:
        folder = layout.jobs.episode_dir(job.job_id, found.last.episode)
        checkpoint = f"{folder}/{handing.top_of(found.last.files)}"
    elif status == SUCCESS:
        status, error = FAILED, "its last checkpoint is damaged or gone"
    if at.left:
        pids = ", ".join(map(str, sorted(at.left)))
        error = f"{error}; " if error else ""
        error += f"processes {pids} could not be ended on {at.note.host}"
    return Result(
        job.job_id,
        at.note.host,
        status,
        at.note.started_at,
        utc_now(),
        round(time.monotonic() - began, 3),
        None if uncounted and not job.by_episode else found.episodes,
        found.total,
        rewards[-1] if rewards else None,
        error,
        checkpoint,
        at.log_path,
        at.attempt.number,
        at.attempt.incarnation,
        exit_code,
        tuple(sorted(at.left)),
    )
