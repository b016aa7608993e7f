"""What has become of a job, read from the root: by workers, by jobs that wait for it, by `ctl`.

The token tells which attempt counts; everything else in a job's folder is a copy or an attempt. A
job that was submitted again has a token for each time, and the one with the highest number counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fsworker.errors import FleetError, FormatError
from fsworker.protocol import layout, segment
from fsworker.protocol.federation import RECORD_LIMIT, names, read_bytes
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Outcome
from fsworker.protocol.layout.jobs import Attempt
from fsworker.protocol.records.job import CANCELLED, FAILED, AttemptNote, Job, Result

LIMIT = RECORD_LIMIT
NOTE_FILE, METRICS_FILE = "attempt.json", "metrics.jsonl"


@dataclass(frozen=True, slots=True)
class Commit:
    """A token at its end: which batch of a job, and which attempt at it."""

    batch: str
    attempt: Attempt

    @property
    def number(self) -> int:
        """How often the job had been submitted before."""
        return layout.seq_of(self.batch)


@dataclass(frozen=True)
class Folder:
    """One listing of a job's folder."""

    job: str
    commit: Commit | None = None
    episodes: tuple[int, ...] = ()
    names: frozenset[str] = frozenset()


def all_jobs(store: Store) -> list[str]:
    """The ids of all jobs of a run."""
    found = (layout.jobs.parse_job_name(name) for name in names(store, layout.jobs.JOBS))
    return sorted(job for job in found if job is not None)


def look(store: Store, job: str) -> Folder:
    """A job's folder now."""
    found = names(store, layout.jobs.job_dir(job))
    episodes = (layout.jobs.parse_after_name(name) for name in found)
    return Folder(
        job,
        last_commit(found),
        tuple(sorted(e for e in episodes if e is not None)),
        frozenset(found),
    )


def last_commit(found: Iterable[str]) -> Commit | None:
    """The commit that counts, among the names in a job's folder."""
    parsed = (layout.jobs.parse_job_token(name) for name in found)
    commits = [Commit(*one) for one in parsed if one is not None]
    return max(commits, key=lambda c: c.number, default=None)


def read_job(store: Store, job: str) -> Job | None:
    """What was asked; None when there is no such job."""
    rel = layout.jobs.job_file(job)
    data = read_bytes(store, rel)
    return None if data is None else Job.from_json(data, store.path(rel))


def read_result(store: Store, job: str, commit: Commit) -> Result:
    """The result of the attempt that counts.

    Where it left none (its batch was damaged, refused or given up), what its worker answered.
    """
    rel = f"{layout.jobs.attempt_dir(job, commit.attempt)}/{layout.jobs.RESULT_FILE}"
    data = read_bytes(store, rel)
    if data is not None:
        found: Result = Result.from_json(data, store.path(rel))
        return found
    return _answered(store, job, commit)


def attempts(store: Store, job: str) -> list[tuple[Attempt, AttemptNote | None]]:
    """All attempts at a job in order, with what they noted; None where that cannot be read."""
    folder = layout.jobs.attempts_dir(job)
    parsed = (layout.jobs.parse_attempt_name(name) for name in names(store, folder))
    found = sorted((a for a in parsed if a is not None), key=lambda a: (a.number, a.incarnation))
    return [(attempt, _note(store, job, attempt)) for attempt in found]


def note_path(job: str, attempt: Attempt) -> str:
    """Where an attempt says what it is."""
    return f"{layout.jobs.attempt_dir(job, attempt)}/{NOTE_FILE}"


def _note(store: Store, job: str, attempt: Attempt) -> AttemptNote | None:
    rel = note_path(job, attempt)
    try:
        data = read_bytes(store, rel)
        return None if data is None else AttemptNote.from_json(data, store.path(rel))
    except FormatError:
        return None


def _answered(store: Store, job: str, commit: Commit) -> Result:
    """A result made of the record in the token's result file."""
    attempt = commit.attempt
    outcome = Outcome(commit.batch, attempt.number, attempt.incarnation)
    status, error, host = FAILED, "its result is missing", ""
    data = read_bytes(store, outcome.result)
    if data is not None:
        try:
            found = segment.decode(data, segment.RESULT, store.path(outcome.result))
            host = str(found.meta.get("host", ""))
            (record,) = found.values()
            status = CANCELLED if record[2] == "cancelled" else FAILED
            error = str(record[3]["message"])
        except (FleetError, ValueError, LookupError, TypeError) as problem:
            error = f"its result cannot be read: {problem}"
    return Result(job, host, status, "", "", 0.0, error=error, attempt=attempt.number)
