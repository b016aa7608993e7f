"""What travels between an agent and its peer, as its users see it, and what may go wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from fsworker.errors import FleetError, NotRunning

OK, REJECTED = "OK", "REJECTED"


class AgentClosed(NotRunning):
    """There will be no more tasks, or no more results; the sentence says why."""


class CallStateError(FleetError):
    """A method was called in a state in which it makes no sense. Nothing was changed."""


class Status(StrEnum):
    """How far a task is: received, handed to the application, its result submitted."""

    NEW = "NEW"
    FETCHED = "FETCHED"
    PROCESSED = "PROCESSED"


@dataclass(eq=False)
class Task:
    """A task as `get_task` returns it.

    `aborted` turns true while the application works on it, when the result is not wanted any more:
    look at it now and then. `data` and `meta` are non-empty dicts of plain values and arrays.
    """

    task_name: str
    task_id: str
    meta: dict[Any, Any]
    data: dict[Any, Any]
    status: Status = Status.NEW
    aborted: bool = False

    NEW = Status.NEW
    FETCHED = Status.FETCHED
    PROCESSED = Status.PROCESSED

    def __str__(self) -> str:
        return f"task {self.task_id!r} ({self.task_name})"


@dataclass
class TaskResult:
    """What came of a task. TypeError for a `meta` that is no dict and a code that is no text."""

    meta: dict[Any, Any] | None = None
    data: Any = None
    return_code: str = OK

    def __post_init__(self) -> None:
        self.meta = {} if self.meta is None else self.meta
        self.data = {} if self.data is None else self.data
        if not isinstance(self.meta, dict):
            raise TypeError(f"meta must be a dict, not {type(self.meta).__name__}")
        if not isinstance(self.return_code, str):
            raise TypeError(f"return_code must be a text, not {type(self.return_code).__name__}")


@dataclass
class Answer:
    """What a peer gets for a task that it sent.

    `return_code` is what the agent's application said, or "REJECTED" where the agent did not take
    the task; `why` then says the reason.
    """

    task_name: str
    task_id: str
    meta: dict[Any, Any] = field(default_factory=dict)
    data: Any = field(default_factory=dict)
    return_code: str = OK
    why: str = ""

    @property
    def rejected(self) -> bool:
        """Whether the agent refused the task, so that nobody worked on it."""
        return bool(self.why)
