"""All jobs of a run at one moment: where each token is, how far it is, what came of it.

Read from the root alone. A token may move between two listings, so inboxes are listed again after
the claims, and a job whose token is nowhere to be seen is looked at once more in its own folder.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ctl.beats import server_now
from ctl.roots import Run
from fsworker.errors import FleetError
from fsworker.protocol import federation, jobstate, layout
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.jobstate import Folder
from fsworker.protocol.layout import Owner, Token
from fsworker.protocol.records.job import Job, Result

PENDING, RUNNING, LOST = "pending", "running", "lost"
"""Besides the statuses of results. `lost`: there is no token of it to be seen."""


@dataclass(frozen=True)
class Row:
    """One job."""

    job_id: str
    status: str
    host: str | None = None
    episode: int = 0
    episodes: int | None = None
    job: Job | None = None
    result: Result | None = None
    token: Token | None = None
    age: float | None = None
    problem: str | None = None

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.result is not None

    def fields(self) -> dict[str, Any]:
        """The job's JSON object."""
        result = self.result
        return {
            "job_id": self.job_id,
            "status": self.status,
            "host": self.host,
            "episode": self.episode,
            "episodes": self.episodes,
            "total_reward": result.total_reward if result else None,
            "final_reward": result.final_reward if result else None,
            "age_s": None if self.age is None else round(self.age, 3),
            "error": self.problem or (result.error if result else None),
            "group": self.job.federation_group_id if self.job else None,
            "after": self.job.after if self.job else None,
        }


@dataclass
class Board:
    """Where the tokens of jobs are."""

    pending: dict[str, Token] = field(default_factory=dict)
    claimed: dict[str, tuple[Owner, Token]] = field(default_factory=dict)
    now: float = 0.0
    """By the clock of the file server."""

    @classmethod
    def look(cls, run: Run) -> Board:
        """List inboxes, claims, and inboxes again: a job may be given back meanwhile."""
        board = cls()
        try:
            board.now = server_now(run.store)
            board._look_inboxes(run.store)
            for owner in filter(None, map(layout.parse_owner, run.store.scan(layout.CLAIMS))):
                for name in federation.names(run.store, owner.folder):
                    token = layout.parse_claim_name(name)
                    if token is not None and token.is_job:
                        board.claimed[layout.job_of(token.batch)] = owner, token
            board._look_inboxes(run.store)
        except OSError as error:
            raise storage_error(error, "list", run.root) from None
        return board

    def age(self, store: Store, job_id: str) -> float | None:
        """Seconds since a job was submitted, by the file server's clock alone."""
        try:
            made = store.read_with_mtime(layout.jobs.job_file(job_id), jobstate.LIMIT)[1]
            return max(0.0, self.now - made)
        except OSError:
            return None

    def _look_inboxes(self, store: Store) -> None:
        for shard in store.scan(layout.INBOX):
            if not (shard.isascii() and shard.isdigit()):
                continue
            for name in federation.names(store, layout.inbox_dir(int(shard))):
                token = layout.parse_inbox_name(int(shard), name)
                if token is not None and token.is_job:
                    self.pending[layout.job_of(token.batch)] = token


def rows(run: Run, chosen: list[str] | None = None) -> list[Row]:
    """The jobs of a run, or those that were named, oldest first."""
    board = Board.look(run)
    found = [row(run, board, job) for job in chosen or jobstate.all_jobs(run.store)]
    return sorted(found, key=lambda r: (r.job.created_at if r.job else "", r.job_id))


def choose(run: Run, name: str) -> list[str]:
    """The jobs that a name means: one job, or all of a group. Empty when there is none."""
    try:
        if jobstate.read_job(run.store, name) is not None:
            return [name]
    except ValueError:
        return []  # it cannot be the name of anything
    if name in federation.all_groups(run.store):
        return sorted(federation.members(run.store, name).values())
    return []


def row(run: Run, board: Board, job_id: str) -> Row:
    """One job now."""
    store = run.store
    folder, held = jobstate.look(store, job_id), board.claimed.get(job_id)
    waiting = board.pending.get(job_id)
    try:
        job = jobstate.read_job(store, job_id)
        job_problem = None
    except FleetError as error:
        job, job_problem = None, str(error)
    done = max(folder.episodes, default=0)
    known: dict[str, Any] = {
        "job": job,
        "episode": done,
        "episodes": job.episodes if job else None,
        "age": board.age(store, job_id),
        "problem": job_problem,
    }
    newest = held[1] if held else waiting
    if newest is not None and (folder.commit is None or folder.commit.batch != newest.batch):
        if held is not None:
            return Row(job_id, RUNNING, held[0].host, token=held[1], **known)
        return Row(job_id, PENDING, token=waiting, **known)
    return _ended(run, job_id, folder, known)


def _ended(run: Run, job_id: str, folder: Folder, known: dict[str, Any]) -> Row:
    if folder.commit is None:
        folder = jobstate.look(run.store, job_id)
    if folder.commit is None:
        return Row(job_id, LOST, **known)
    try:
        result = jobstate.read_result(run.store, job_id, folder.commit)
    except FleetError as error:
        return Row(job_id, LOST, **{**known, "problem": str(error)})
    return Row(job_id, result.status, result.worker_id or None, result=result, **known)
