"""The records of a training job: what was asked, what an attempt is doing, and what came of it.

Field names are those that scripts of earlier job systems know. All times of day are for people and
in UTC, ISO 8601; all durations are in seconds.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from fsworker.errors import FormatError
from fsworker.protocol import joblog
from fsworker.protocol.records.needs import Needs
from fsworker.protocol.records.run import _Record

SUCCESS, FAILED, TIMEOUT, CANCELLED = "success", "failed", "timeout", "cancelled"
STATUSES = (SUCCESS, FAILED, TIMEOUT, CANCELLED)

MOST_EPISODES = 999_999_999
MOST_ID = 100
"""Characters of a job's id."""
FORMATS = (".pt", ".safetensors", ".json")
"""Endings of a checkpoint that is one file; without one it is a folder with an index."""
JSON_AGENTS = ("greedy", "random")
"""Agents without a network: their checkpoints are JSON."""
FIELD_PARAMS = ("trace", "agent", "steps", "duration", "namespace", "deploy", "target")
"""Fields that a command may use by their names."""
RESERVED_PARAMS = frozenset(
    ("job", "episode", "episodes", "total", "weights", "transfer", "checkpoint", *FIELD_PARAMS)
)
"""Names in templates that are not free."""

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_PARAM = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CHECKPOINT = re.compile(r"checkpoint(\.[A-Za-z0-9]+)?")


def new_job_id(now: datetime | None = None) -> str:
    """`job_YYYYMMDD_HHMMSS_` in UTC and six random hex digits."""
    return f"job_{now or datetime.now(UTC):%Y%m%d_%H%M%S}_{secrets.token_hex(3)}"


@dataclass(frozen=True)
class Job(_Record):
    """What was asked; `job.json`, and the one record of the job's batch.

    `command` is the command line with `{…}` to fill in, executed without a shell in `cwd`, in
    which `params` are names of its user's. `timeout_seconds` is for each training process. With
    `per_episode_sync` each episode is a process; a group means that too.
    `sync_server_weights_timeout_seconds` is how long an episode waits for the global model. `after`
    is the job whose last checkpoint this one starts from, `weights` the file that it starts from.
    `pass_env` are names of variables whose values the worker's host has. `grace` is what the
    process gets after TERM. With `agent_loop` one process trains all episodes, each of which is a
    task of its agent. `checkpoint` is the name of what the command saves. `needs` is what its
    worker must offer. `log_limit` are the bytes of an attempt's log, head and tail (0: all),
    `keep_checkpoints` how many of the newest episodes keep theirs (None: all).
    """

    job_id: str
    command: tuple[str, ...]
    episodes: int = 1
    cwd: str | None = None
    trace: str | None = None
    agent: str | None = None
    steps: int | None = None
    duration: float | None = None
    namespace: str | None = None
    deploy: str | None = None
    target: str | None = None
    weights: str | None = None
    after: str | None = None
    timeout_seconds: float = 3600.0
    per_episode_sync: bool = False
    federation_group_id: str | None = None
    federation_size: int | None = None
    sync_server_weights_timeout_seconds: float = 7200.0
    created_at: str = ""
    params: dict[str, str] = field(default_factory=dict)
    pass_env: tuple[str, ...] = ()
    preflight: str | None = None
    postflight: str | None = None
    grace: float = 10.0
    agent_loop: bool = False
    checkpoint: str = "checkpoint.pt"
    needs: Needs = field(default_factory=Needs)
    log_limit: int = joblog.LIMIT
    keep_checkpoints: int | None = None

    @classmethod
    def from_json(cls, data: bytes, path: str) -> Job:
        """The record in `data`; FormatError names `path` and the field."""
        job: Job = super().from_json(data, path)
        if (problem := job.problem()) is not None:
            raise FormatError(f"{path}: {problem}", path=path)
        return job

    @property
    def by_episode(self) -> bool:
        """Whether each episode is a process of its own."""
        return self.per_episode_sync or self.agent_loop or self.federation_group_id is not None

    def problem(self) -> str | None:
        """What no job can be; None when all is well."""
        return self._bad_names() or self._bad_numbers() or self._bad_group()

    def _bad_names(self) -> str | None:
        if not _ID.fullmatch(self.job_id) or len(self.job_id) > MOST_ID:
            return (
                f"field 'job_id' must be letters, digits, '_', '-' and '.', {MOST_ID} at most and "
                f"not '.' or '-' first, not {self.job_id!r:.60}"
            )
        if not self.command or not self.command[0]:
            return "field 'command' is empty: name the program to run"
        if any("\0" in word for word in self.command):
            return "field 'command' holds a NUL byte"
        for name in self.params:
            if not _PARAM.fullmatch(name) or name in RESERVED_PARAMS:
                return f"field 'params': {name!r:.60} cannot be the name of a parameter"
        for name in self.pass_env:
            if not _VARIABLE.fullmatch(name):
                return f"field 'pass_env': {name!r:.60} is not the name of a variable"
        if not _CHECKPOINT.fullmatch(self.checkpoint):
            return f"field 'checkpoint' must be checkpoint.pt or alike, not {self.checkpoint!r:.60}"
        if self.after is not None and not _ID.fullmatch(self.after):
            return f"field 'after' cannot be the id of a job: {self.after!r:.60}"
        if self.weights and self.after:
            return "fields 'weights' and 'after' both say what it starts from"
        return None

    def _bad_numbers(self) -> str | None:
        if not 1 <= self.episodes <= MOST_EPISODES:
            return f"field 'episodes' must be 1 to {MOST_EPISODES}, not {self.episodes}"
        for name in ("timeout_seconds", "sync_server_weights_timeout_seconds"):
            if getattr(self, name) <= 0:
                return f"field {name!r} must be above zero, not {getattr(self, name):g}"
        if self.grace < 0:
            return f"field 'grace' must be 0 or more seconds, not {self.grace:g}"
        if (why := self.needs.problem()) is not None:
            return f"field 'needs': {why}"
        if self.log_limit != 0 and self.log_limit < joblog.LEAST:
            return f"field 'log_limit' must be 0 (all) or at least 1M, not {self.log_limit}"
        if self.keep_checkpoints is not None and self.keep_checkpoints < 1:
            return f"field 'keep_checkpoints' must be 1 or more, not {self.keep_checkpoints}"
        return None

    def _bad_group(self) -> str | None:
        if (self.federation_group_id is None) != (self.federation_size is None):
            return "fields 'federation_group_id' and 'federation_size' go together"
        if self.federation_size is not None and self.federation_size < 1:
            return f"field 'federation_size' must be 1 or more, not {self.federation_size}"
        return None


@dataclass(frozen=True)
class Result(_Record):
    """What came of a job; `result.json`.

    `worker_id` is the host. `checkpoint` and `log` are paths relative to the run root; there is no
    checkpoint unless the job succeeded. `episodes_completed` is counted in checkpoints (None: they
    do not tell), and so are the rewards where they hold any. `left` are pids that outlived KILL.
    """

    job_id: str
    worker_id: str
    status: str
    started_at: str
    finished_at: str
    elapsed_seconds: float
    episodes_completed: int | None = None
    total_reward: float | None = None
    final_reward: float | None = None
    error: str | None = None
    checkpoint: str | None = None
    log: str | None = None
    attempt: int = 0
    incarnation: str = ""
    exit_code: int | None = None
    left: tuple[int, ...] = ()

    @classmethod
    def from_json(cls, data: bytes, path: str) -> Result:
        """The record in `data`; FormatError names `path` and the field."""
        result: Result = super().from_json(data, path)
        if result.status not in STATUSES:
            raise FormatError(
                f"{path}: field 'status' must be one of {', '.join(STATUSES)}, "
                f"not {result.status!r:.40}",
                path=path,
            )
        return result


@dataclass(frozen=True)
class AttemptNote(_Record):
    """What an attempt is, for people and its successors; `attempt.json` in its folder.

    `deaths` are those of the job's workers before it, `first` the episode that it began with.
    `returned` is the sentence with which it gave the job back.
    """

    job_id: str
    host: str
    attempt: int
    incarnation: str
    started_at: str
    deaths: int = 0
    first: int = 1
    returned: str | None = None
    why: str = ""
    """One word for scripts: preflight, environment, drain."""


def utc_now() -> str:
    """Now, for people."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def from_batch(record: Any, path: str) -> Job:
    """The job in the decoded record of its batch, `[id, [text of job.json], …]`."""
    match record:
        case [str(), [str(text)], *_]:
            return Job.from_json(text.encode(), path)
    raise FormatError(f"{path}: the batch of a job must hold its job.json", path=path)
