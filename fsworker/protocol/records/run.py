"""The records that describe a run: manifest, launch meta, heartbeat, and identities."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fsworker.protocol.records import coding
from fsworker.protocol.records.hostterms import HostTerms
from fsworker.protocol.records.slots import SlotTerms


class _Record:
    """What every record can do."""

    def to_json(self) -> bytes:
        """The record as the bytes of its file."""
        return coding.encode(self)

    @classmethod
    def from_json(cls, data: bytes, path: str) -> Any:
        """The record in `data`; FormatError names `path` and the field."""
        return coding.decode(cls, data, path)


MOST_SLOTS = 4096
"""Slots that a worker may have; a start refuses more before it contacts anybody."""


LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
"""Those of a worker, in the words of everybody who passes one on."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker as asked for: the allowed name of its host, its home shard, its slots.

    `slots` says what each of these slots gets.
    """

    host: str
    shard: int
    concurrency: int = 48
    slots: SlotTerms = field(default_factory=SlotTerms)
    job_slots: int = 1


@dataclass(frozen=True)
class Manifest(_Record):
    """What a run is; `manifest.json`. Written last by `ctl start`, then never changed.

    `reward_fn` is the first of `functions`, under the name that scripts know. `allow` are patterns
    (`package.*`) of functions that tasks may call besides. `task_timeout` is in seconds;
    `created_at` is UTC, ISO 8601; `owner` is the uid that started the run.
    """

    run_id: str
    reward_fn: str
    shard_count: int
    workers: tuple[WorkerSpec, ...]
    functions: tuple[str, ...] = ()
    experiment_name: str | None = None
    trial_name: str | None = None
    created_at: str = ""
    owner: int = 0
    group: str | None = None
    task_timeout: float | None = None
    max_deaths: int = 3
    slot_start: str = "auto"
    allow: tuple[str, ...] = ()


@dataclass(frozen=True)
class LaunchMeta(_Record):
    """What the controller last asked for; `ctl/launch_meta.json`.

    Everything that a restart needs so that the new worker is like the old one. `launches` is the
    number of the latest launch of each host. Times are in seconds. `may_attach` are names that may
    join without a token; `attached`, those that did, is never written (`records.member`).
    """

    root: str
    run_id: str
    workers: tuple[WorkerSpec, ...]
    shard_count: int
    reward_fn: str
    respawn: bool = True
    experiment_name: str | None = None
    trial_name: str | None = None
    launcher: str = "local"
    launcher_options: dict[str, Any] = field(default_factory=dict)
    python: str | None = None
    pythonpath: tuple[str, ...] = ()
    workspace: str | None = None
    setup: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    host_terms: dict[str, HostTerms] = field(default_factory=dict)
    log_level: str = "INFO"
    ready_timeout: float = 60.0
    heartbeat_stale: float = 15.0
    launches: dict[str, int] = field(default_factory=dict)
    may_attach: tuple[str, ...] = ()
    attached: tuple[str, ...] = ()
    pass_env: tuple[str, ...] = ()
    """Names of variables that hosts get from whoever starts them; their values are not recorded."""
    bundle: str | None = None
    """The file under the root that hosts without packages run from."""
    labels: tuple[str, ...] = ()
    """What every worker offers."""
    from_bundle: bool = False
    """Whether hosts run from it whose terms do not say."""


@dataclass(frozen=True)
class Heartbeat(_Record):
    """One beat of a worker; `status/<host>.json`.

    `seq` grows with every beat of an incarnation. `heartbeat_at` (epoch seconds by the host's own
    clock) is for people and for showing skew: nothing is decided by it. `refused` is the sentence
    with which a worker declines to run. `last_progress` is in seconds before this beat.
    """

    host: str
    pid: int
    incarnation: str
    seq: int
    heartbeat_at: float
    start: int = 0
    boot_id: str = ""
    pid_ns: str = ""
    launch: int = 0
    shard: int = 0
    ready: bool = False
    draining: bool = False
    stopped: bool = False
    refused: str | None = None
    slots_busy: int = 0
    slots_total: int = 0
    jobs_busy: int = 0
    jobs_total: int = 0
    claimed: int = 0
    done: int = 0
    failed: int = 0
    timeouts: int = 0
    last_progress: float | None = None
    wrapped: bool = False
    hostname: str = ""
    labels: tuple[str, ...] = ()
    inventory: dict[str, Any] = field(default_factory=dict)
    python: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    package_digest: str = ""
    code: dict[str, Any] = field(default_factory=dict)
    """`packages`: a digest of what is installed; `functions`: digests by name (`records.code`)."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a process is: no two processes ever share all of these.

    `start` is field 22 of `/proc/<pid>/stat`: ticks since boot.
    """

    host: str
    boot_id: str
    pid_ns: str
    pid: int
    start: int


@dataclass(frozen=True)
class HostIdentity(_Record):
    """The two processes of a host's launch; `ctl/<host>.identity.json`."""

    host: str
    launch: int
    wrapper: Identity | None = None
    worker: Identity | None = None
    incarnation: str | None = None
