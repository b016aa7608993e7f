"""The environment of a training process: pure.

It is the worker's own, so that secrets that its host was given reach the process without being
written anywhere; but only those that the job asks for by name. What would tie the process to the
worker's own pipes is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fsworker.jobs.templates import Turn
from fsworker.protocol.records.job import Job

PASS_ENV = "FLEET_PASS_ENV"  # noqa: S105  # the name of a variable, no secret
"""The names of variables that a host was given for jobs that ask for them, with commas between."""
_PRIVATE = ("FLEET_LIFE_FD", "FLEET_LOCK_FD", PASS_ENV)


def given_names(environ: Mapping[str, str]) -> set[str]:
    """The names that only jobs that ask for them may have."""
    return {name for name in environ.get(PASS_ENV, "").split(",") if name}


def missing(job: Job, environ: Mapping[str, str]) -> list[str]:
    """Which of the variables that a job asks for this host does not have."""
    return sorted(name for name in job.pass_env if name not in environ)


def of_host(job: Job, environ: Mapping[str, str], pythonpath: Iterable[str] = ()) -> dict[str, str]:
    """What every process of a job finds, its checks before and after included."""
    withheld = given_names(environ) - set(job.pass_env)
    env = {k: v for k, v in environ.items() if k not in withheld and k not in _PRIVATE}
    path = [p for p in env.get("PYTHONPATH", "").split(":") if p]
    path += [p for p in pythonpath if p not in path]
    if path:
        env["PYTHONPATH"] = ":".join(path)
    env.setdefault("PYTHONUNBUFFERED", "1")  # or the log shows nothing while it runs
    env["FLEET_JOB"] = job.job_id
    env["FLEET_EPISODES"] = str(job.episodes)
    for name, value in (("TRACE", job.trace), ("GROUP", job.federation_group_id)):
        if value is not None:
            env[f"FLEET_{name}"] = value
    for name, value in job.params.items():
        env["FLEET_PARAM_" + name.upper().replace("-", "_")] = value
    return env


def of_turn(base: Mapping[str, str], turn: Turn, attempt: int) -> dict[str, str]:
    """What one training process finds besides."""
    env = {
        **base,
        "FLEET_EPISODE": str(turn.episode),
        "FLEET_TURN_EPISODES": str(turn.episodes),
        "FLEET_CHECKPOINT": turn.checkpoint,
        "FLEET_JOB_ATTEMPT": str(attempt),
    }
    env.pop("FLEET_WEIGHTS", None)
    if turn.weights:
        env["FLEET_WEIGHTS"] = turn.weights
    return env
