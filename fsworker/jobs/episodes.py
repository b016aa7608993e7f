"""What a job does next: a pure state machine, episode by episode.

The runner performs one step, tells what became of it, and asks again. Everything that a job must
survive is a row of a table here: a process that is killed, one that fails, time that runs out, a
global model that does not come.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from fsworker.protocol.records.job import CANCELLED, FAILED, SUCCESS, TIMEOUT, Job

MOST_CRASHES = 3
"""How often in a row the processes of one episode may be ended by a signal that is not ours."""


@dataclass(frozen=True, slots=True)
class Train:
    """Run a process for `count` episodes, the first of which is `first`."""

    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Upload:
    """Give the group what an episode left."""

    episode: int


@dataclass(frozen=True, slots=True)
class Await:
    """Wait for the global model that an episode starts from."""

    episode: int


@dataclass(frozen=True, slots=True)
class End:
    """The job is over."""

    status: str
    error: str | None = None


Step = Train | Upload | Await | End
What = Literal[
    "trained",
    "finished",
    "crashed",
    "failed",
    "timeout",
    "uploaded",
    "arrived",
    "late",
    "cancelled",
]


@dataclass(frozen=True, slots=True)
class Event:
    """What became of a step. `episode`: the last that is finished, uploaded, or may start.

    `finished`: the one process of a job without episodes of its own ended well.
    """

    what: What
    episode: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is: the last finished episode, the last uploaded, the one that may start.

    In a group `ready` is that of the newest global model. It is more than one ahead of `done` where
    rounds closed without the job: what it would train for them would come too late to count.
    """

    done: int = 0
    uploaded: int = 0
    ready: int = 1
    crashes: int = 0
    end: End | None = None


def begin(job: Job, done: int, uploaded: int, ready: int) -> Progress:
    """Where an attempt starts, by what is verified on disk."""
    return Progress(min(done, job.episodes), uploaded, max(1, ready))


def next_step(job: Job, at: Progress) -> Step:
    """What to do now."""
    if at.end is not None:
        return at.end
    grouped = job.federation_group_id is not None
    if grouped and at.done > at.uploaded:
        return Upload(at.done)
    if at.done >= job.episodes:
        return End(SUCCESS)
    if grouped and at.done and at.ready <= at.done:
        return Await(at.done + 1)
    first = at.done + 1
    if grouped:  # it goes on with the others, at the last episode if these are through
        first = max(first, min(at.ready, job.episodes))
    return Train(first, 1 if job.by_episode else job.episodes - first + 1)


def after(job: Job, at: Progress, event: Event) -> Progress:
    """How far the job is after a step."""
    match event.what:
        case "trained":
            return replace(at, done=max(at.done, event.episode), crashes=0)
        case "finished":
            return replace(at, done=max(at.done, event.episode), end=End(SUCCESS))
        case "uploaded":
            return replace(at, uploaded=event.episode)
        case "arrived":
            return replace(at, ready=event.episode)
        case "crashed":
            moved = event.episode > at.done
            crashes = 1 if moved else at.crashes + 1
            at = replace(at, done=max(at.done, event.episode), crashes=crashes)
            if crashes < MOST_CRASHES:
                return at
            return replace(at, end=End(FAILED, f"{event.why}, {crashes} times in a row"))
        case "timeout":
            return replace(at, end=End(TIMEOUT, event.why))
        case "cancelled":
            return replace(at, end=End(CANCELLED, event.why or "cancelled on request"))
        case "failed" | "late":
            return replace(at, end=End(FAILED, event.why))
