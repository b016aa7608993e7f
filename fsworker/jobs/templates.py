"""The command line of one training process, from the job's template: pure.

Two braces stand for one, so that JSON and shell may be parts of a command. A name that is unknown,
or that has no value for this job, is an error before anything runs; `{weights}` is empty where the
process starts fresh, and an argument that becomes empty by it is left out with nothing in its place
only where the argument is `{transfer}`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fsworker.errors import UsageError
from fsworker.protocol.records.job import FIELD_PARAMS, Job

_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
TRANSFER = "transfer"


@dataclass(frozen=True)
class Turn:
    """One training process: its first episode, how many it is to do, from what, into what.

    Paths are absolute; `weights` is None for a fresh start.
    """

    episode: int
    episodes: int
    checkpoint: str
    weights: str | None = None


def values(job: Job, turn: Turn) -> dict[str, str | None]:
    """What each name stands for; None for what this job does not have."""
    own = {
        "job": job.job_id,
        "episode": str(turn.episode),
        "episodes": str(turn.episodes),
        "total": str(job.episodes),
        "weights": turn.weights or "",
        "checkpoint": turn.checkpoint,
    }
    fields = {name: _text(getattr(job, name)) for name in FIELD_PARAMS}
    return {**job.params, **fields, **own}


def _text(value: str | float | None) -> str | None:
    return f"{value:g}" if isinstance(value, float) else None if value is None else str(value)


def command(job: Job, turn: Turn) -> list[str]:
    """The command line of a process. UsageError names the template that cannot be filled in."""
    known = values(job, turn)
    words: list[str] = []
    for word in job.command:
        if word == "{transfer}":
            words += ["--load", turn.weights, "--transfer"] if turn.weights else []
        else:
            words.append(fill(word, known))
    return words


def fill(template: str, known: Mapping[str, str | None]) -> str:
    """A template with its names filled in."""

    def one(found: re.Match[str]) -> str:
        text = found[0]
        if text in ("{{", "}}"):
            return text[0]
        name = found[1]
        if name is None:
            raise UsageError(f"{template!r:.100} has a single {text!r}: write it twice")
        if name == TRANSFER:
            raise UsageError("{transfer} stands for several arguments: give it as one of its own")
        if name not in known:
            names = ", ".join(sorted((*known, TRANSFER)))
            raise UsageError(f"{template!r:.100}: there is no {{{name}}}, only {names}")
        value = known[name]
        if value is None:
            raise UsageError(f"{template!r:.100}: the job has no {name}: give --{name}")
        return value

    return _PIECE.sub(one, template)


def check(job: Job) -> None:
    """UsageError for a command that can never be filled in, so that submit can say so."""
    command(job, Turn(1, 1, "/checkpoint", "/weights"))


def uses(job: Job, names: Sequence[str]) -> bool:
    """Whether the command has one of these names in it."""
    found = {m[1] for word in job.command for m in _PIECE.finditer(word) if m[1] is not None}
    return not found.isdisjoint(names)
