"""How an agent and its peer learn where to meet: from arguments, else from the environment.

A training process that the fleet started finds in its environment

    FLEET_RUN_ROOT    the run root (FLEET_ROOT is read where it is missing)
    FLEET_AGENT       the id of its agent
    FLEET_JOB         its job, which is the id where FLEET_AGENT is missing
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from os import PathLike, fspath

from fsworker.errors import UsageError
from fsworker.protocol.layout import agents

ROOT, ROOT_TOO, AGENT, JOB = "FLEET_RUN_ROOT", "FLEET_ROOT", "FLEET_AGENT", "FLEET_JOB"


def root_of(root: str | PathLike[str] | None, environ: Mapping[str, str]) -> str:
    """The run root. UsageError where nothing says it."""
    if root is not None:
        return fspath(root)
    found = environ.get(ROOT) or environ.get(ROOT_TOO)
    if not found:
        raise UsageError(f"which run? Give root=…, or set {ROOT}")
    return found


def id_of(environ: Mapping[str, str]) -> str:
    """The agent's id. UsageError where nothing says it."""
    found = environ.get(AGENT) or environ.get(JOB)
    if not found:
        raise UsageError(
            f"which agent? {AGENT} and {JOB} are not set: was this process started by a fleet?"
        )
    return found


def checked_id(agent_id: str) -> str:
    """Itself. UsageError for an id that cannot be used."""
    try:
        agents.agent_dir(agent_id)
    except (ValueError, AttributeError) as error:
        raise UsageError(f"agent_id {agent_id!r:.80} cannot be used: {error}") from None
    return agent_id


def seconds(name: str, value: float | None, *, optional: bool = False) -> None:
    """UsageError for what is no number of seconds above 0."""
    if value is None and optional:
        return
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not math.isfinite(value or 0) or not (value or 0) > 0:
        raise UsageError(f"{name} must be a number of seconds above 0, not {value!r:.60}")


def checked_timeout(timeout: float | None) -> None:
    """TypeError for a timeout that is no number, ValueError for one that is not above 0."""
    if timeout is None:
        return
    if not isinstance(timeout, Real) or isinstance(timeout, bool):
        raise TypeError(f"timeout must be a number of seconds, not {type(timeout).__name__}")
    if not timeout > 0:
        raise ValueError(f"timeout must be above 0, not {timeout}")
