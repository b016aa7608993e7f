"""Jobs: what lies in `outbox/jobs/<job>/`, and the numbers of episodes as parts of names.

The number of an episode is written with at least four digits (`after_ep_0001`), as scripts that
read these folders expect; one number has one spelling, so that nothing is published twice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fsworker.protocol.layout.names import INC, NAME, NUM, OUTBOX, decode, encode

JOBS = OUTBOX + "/jobs"
AFTER, BEFORE = "after_ep_", "before_ep_"
JOB_FILE, RESULT_FILE, LOG_FILE = "job.json", "result.json", "train.log"
FINAL_STEM = "checkpoint_final"
RESERVED_STREAMS = ("jobs", "federation")
"""Folders of the outbox that are not streams, so no stream can be called so."""

FOUR = r"(?:[0-9]{4}|[1-9][0-9]{4,9})"
_EPISODE = re.compile(rf"(?P<when>{AFTER}|{BEFORE})(?P<number>{FOUR})")
_ATTEMPT = re.compile(rf"(?P<attempt>{NUM})~(?P<inc>{INC})")
_TOKEN = re.compile(rf"(?P<batch>{NAME}-{INC}-{NUM})\.{_ATTEMPT.pattern}\.done")
_SUFFIX = re.compile(r"\.[A-Za-z0-9_.-]{1,40}")


@dataclass(frozen=True, slots=True, order=True)
class Attempt:
    """One attempt at a job: how often its batch was claimed, and by which life of a worker."""

    number: int
    incarnation: str

    @property
    def name(self) -> str:
        """Its part of a path."""
        return f"{self.number}~{self.incarnation}"


def four(number: int) -> str:
    """A number of an episode or a round as a part of a name: four digits, or more if it has."""
    return f"{number:04d}"


def job_dir(job: str) -> str:
    """A job's folder. `job` is its id as its user gave it."""
    return f"{JOBS}/{encode(job)}"


def parse_job_name(name: str) -> str | None:
    """The job whose folder has this name, in `outbox/jobs/` or among a round's uploads."""
    try:
        return decode(name) if re.fullmatch(NAME, name) else None
    except ValueError:
        return None


def job_file(job: str) -> str:
    """What was asked."""
    return f"{job_dir(job)}/{JOB_FILE}"


def job_result(job: str) -> str:
    """The copy of the result of the attempt that counts."""
    return f"{job_dir(job)}/{RESULT_FILE}"


def job_log(job: str) -> str:
    """The copy of its log."""
    return f"{job_dir(job)}/{LOG_FILE}"


def job_final(job: str, suffix: str) -> str:
    """The copy of its last checkpoint; `suffix` with its dot, or empty for a folder of shards."""
    if suffix and not _SUFFIX.fullmatch(suffix):
        raise ValueError(f"{suffix!r:.60} cannot be the ending of a file name")
    return f"{job_dir(job)}/{FINAL_STEM}{suffix}"


def attempts_dir(job: str) -> str:
    """The folder of all its attempts."""
    return f"{job_dir(job)}/attempts"


def attempt_dir(job: str, attempt: Attempt) -> str:
    """The only folder that an attempt writes to."""
    return f"{attempts_dir(job)}/{attempt.name}"


def parse_attempt_name(name: str) -> Attempt | None:
    """The attempt whose folder has this name."""
    m = _ATTEMPT.fullmatch(name)
    return Attempt(int(m["attempt"]), m["inc"]) if m else None


def job_token(job: str, batch: str, attempt: Attempt) -> str:
    """The token of a job at its end: this attempt is the one that counts."""
    return f"{job_dir(job)}/{batch}.{attempt.name}.done"


def parse_job_token(name: str) -> tuple[str, Attempt] | None:
    """(batch, attempt) that a file of a job's folder commits."""
    m = _TOKEN.fullmatch(name)
    return (m["batch"], Attempt(int(m["attempt"]), m["inc"])) if m else None


def after_name(episode: int) -> str:
    """The folder of what an episode left; episodes count from 1."""
    return AFTER + four(episode)


def before_name(episode: int) -> str:
    """The folder of what an episode starts from."""
    return BEFORE + four(episode)


def parse_after_name(name: str) -> int | None:
    """The episode after which this was left."""
    return _episode(name, AFTER)


def parse_before_name(name: str) -> int | None:
    """The episode that starts from this."""
    return _episode(name, BEFORE)


def episode_dir(job: str, episode: int) -> str:
    """A finished episode of a job: its checkpoint and `done.json`."""
    return f"{job_dir(job)}/{after_name(episode)}"


def _episode(name: str, when: str) -> int | None:
    m = _EPISODE.fullmatch(name)
    return int(m["number"]) if m and m["when"] == when else None
