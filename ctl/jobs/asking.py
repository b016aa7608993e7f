"""From options or a `job.toml` to jobs: the same fields, whoever names them.

Keys of the file are the options' names or those of `job.json`; what is said on the command line
wins. Paths are made absolute here, since they are used on another host, in another folder.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ctl import units
from ctl.tomlfile import read_toml
from fsworker.errors import FormatError, UsageError
from fsworker.jobs import templates
from fsworker.protocol.records import coding, slots
from fsworker.protocol.records.job import JSON_AGENTS, Job, new_job_id, utc_now
from fsworker.protocol.records.needs import parse_needs, read_needs

MOST_JOBS = 10_000
"""Jobs of one submit."""

OPTIONS = {
    "id": "job_id",
    "timeout": "timeout_seconds",
    "sync_timeout": "sync_server_weights_timeout_seconds",
    "federation_group": "federation_group_id",
}
"""Options whose names are shorter than the fields'."""
_DURATIONS = ("timeout_seconds", "sync_server_weights_timeout_seconds", "grace", "duration")
_PATHS = ("weights", "trace", "cwd")
_FIELDS = {f.name for f in dataclasses.fields(Job)}


def read_file(path: str) -> dict[str, Any]:
    """The fields in a `job.toml`, `count` among them. UsageError names file and key."""
    fields = {}
    for key, value in read_toml(path).items():
        name = key.replace("-", "_")
        name = OPTIONS.get(name, name)
        if name not in _FIELDS and name not in ("count", "param"):
            import difflib

            near = difflib.get_close_matches(key, [*_FIELDS, *OPTIONS, "count"], 1)
            hint = f"did you mean {near[0]}?" if near else "see ctl job submit --help"
            raise UsageError(f"{path}: a job has no {key!r}: {hint}", path=path)
        fields["params" if name == "param" else name] = value
    for name in ("params", "needs"):
        if not isinstance(fields.get(name, {}), dict):
            raise UsageError(f"{path}: {name!r} must be a table, as in [{name}]", path=path)
    base = os.path.dirname(os.path.abspath(path))
    fields.setdefault("cwd", base)
    return {**fields, **_absolute(fields, base)}


def make(told: Mapping[str, Any], source: str) -> list[Job]:
    """The jobs that are asked for: `count` of them, alike but for their ids. UsageError."""
    fields = {k: v for k, v in told.items() if v is not None}
    count = fields.pop("count", 1)
    if type(count) is not int or not 1 <= count <= MOST_JOBS:
        raise UsageError(f"{source}: count must be 1 to {MOST_JOBS}, not {count!r}")
    for name in _DURATIONS:
        if name in fields:
            fields[name] = _duration(fields[name], name, source)
    if "log_limit" in fields:
        fields["log_limit"] = _size(fields["log_limit"], source)
    for name in _PATHS:
        if fields.get(name) == "":
            raise UsageError(f"{source}: field {name!r} is empty: name a file, or leave it out")
    fields["params"] = {k: _text(v) for k, v in dict(fields.get("params", {})).items()}
    fields["needs"] = needs_of(fields.get("needs", {}), source)
    fields.setdefault("created_at", utc_now())
    if "checkpoint" not in fields:
        json_agent = fields.get("agent") in JSON_AGENTS
        fields["checkpoint"] = "checkpoint.json" if json_agent else "checkpoint.pt"
    given = fields.pop("job_id", None)
    jobs = []
    for number in range(1, count + 1):
        if given is None:
            job_id = new_job_id()
        else:
            job_id = str(given) if count == 1 else f"{given}-{number}"
        jobs.append(_job({**fields, "job_id": job_id}, source))
    templates.check(jobs[0])
    return jobs


def needs_of(told: Mapping[str, Any] | Sequence[str], source: str) -> dict[str, Any]:
    """The field `needs` from a table, or from words as in --need."""
    try:
        found = read_needs(told) if isinstance(told, Mapping) else parse_needs(told)
    except ValueError as error:
        raise UsageError(f"{source}: needs: {error}") from None
    return found.fields()


def _job(fields: dict[str, Any], source: str) -> Job:
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}
    try:
        job = coding.from_object(Job, plain, source)
    except FormatError as error:
        raise UsageError(str(error)) from None
    if (problem := job.problem()) is not None:
        raise UsageError(f"{source}: {problem}")
    if job.agent_loop and job.per_episode_sync:
        raise UsageError(
            f"{source}: agent_loop trains all episodes in one process, per_episode_sync starts a "
            "process for each: choose one"
        )
    return job


def absolute(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the command line, their paths as seen from here."""
    return {**fields, **_absolute(fields, os.getcwd())}


def _absolute(fields: Mapping[str, Any], base: str) -> dict[str, str]:
    found = {name: fields.get(name) for name in _PATHS}
    return {
        name: os.path.normpath(os.path.join(base, os.path.expanduser(value)))
        for name, value in found.items()
        if isinstance(value, str) and value
    }


def _duration(value: object, name: str, source: str) -> float:
    try:
        return units.duration(value)
    except ValueError as error:
        raise UsageError(f"{source}: {name}: {error}") from None


def _size(value: object, source: str) -> int:
    try:
        return 0 if str(value).strip() == "0" else slots.size(value)
    except ValueError as error:
        raise UsageError(f"{source}: log_limit: {error}, or 0 for all of it") from None


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)
