"""What a caller gets for a task that has no value: the remote failure as an exception.

Each way to fail that calls for its own reaction has its own class, so that callers decide by type
and never by text. What the function raised is a TaskError, and also an instance of the built-in
exception of the same name, so that `except ValueError` catches what it would catch at home. The
words of a result's status stay in `outcomes`; here they become exceptions.
"""

from __future__ import annotations

import builtins
from concurrent.futures import CancelledError
from typing import Any

from fsworker import outcomes
from fsworker.errors import FleetError, UsageError


class TaskError(FleetError):
    """A task that was sent and has no value.

    `status` is the result's status, `type` the remote exception's name, `remote_message` its text
    and `traceback` the remote traceback as text (empty when there is none).
    """

    def __init__(
        self,
        message: str,
        *,
        status: str = outcomes.ERROR,
        type: str = "",
        remote_message: str = "",
        traceback: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.type = type
        self.remote_message = remote_message
        self.traceback = traceback
        if traceback:
            self.__cause__ = RemoteTraceback(traceback)

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {
            "short": str(self),
            "type": self.type,
            "message": self.remote_message,
            "traceback": self.traceback,
        }
        return (task_error, (self.status, fields))


class RemoteTraceback(Exception):
    """The cause of a TaskError: the traceback on the worker, so that it is printed with ours."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class TaskTimeout(TaskError):
    """The task was ended because it took longer than its timeout."""


class TaskCrashed(TaskError):
    """The process that executed the task vanished: a signal or an exit that nobody asked for."""


class WorkerDied(TaskError):
    """The task was given up because workers died whenever they executed it."""


class TaskCancelled(TaskError, CancelledError):
    """The task was cancelled after it had been sent: by its client or with `ctl cancel`."""


class TaskExpired(TaskError):
    """The task waited longer than its `queue_limit` allows; it was not executed."""


class TaskOutOfMemory(TaskError, MemoryError):
    """The task wanted more memory than a slot, or its own `memory` option, allows."""


class AlreadyDelivered(FleetError):
    """The answer for an id was handed over before; the stream remembers that, not the answer."""

    def __init__(self, task_id: object) -> None:
        super().__init__(
            f"the task {task_id!r:.80} was answered before: this stream has delivered its result"
        )
        self.task_id = task_id

    def __reduce__(self) -> tuple[Any, ...]:
        return (AlreadyDelivered, (self.task_id,))


class NotSent(UsageError):
    """A task that cannot be packed, or is too large; nobody has seen it but its client."""


_NOT_CAUGHT_BY_TYPE = (StopIteration, StopAsyncIteration, BaseExceptionGroup, UnicodeError)
"""Those end generators when they pass through one, or cannot be made from a sentence."""


def _raised_classes() -> dict[str, type[TaskError]]:
    """A TaskError for each built-in exception; all look like TaskError to whoever reads them."""
    found: dict[str, type[TaskError]] = {}
    space = {"__module__": TaskError.__module__, "__doc__": TaskError.__doc__}
    for name, kind in vars(builtins).items():
        if not isinstance(kind, type) or not issubclass(kind, Exception) or kind is Exception:
            continue
        if not issubclass(kind, (*_NOT_CAUGHT_BY_TYPE, Warning)):
            found[name] = type(TaskError.__name__, (TaskError, kind), space)
    return found


_RAISED = _raised_classes()

_CLASSES: dict[str, type[TaskError]] = {
    outcomes.TIMEOUT: TaskTimeout,
    outcomes.CRASHED: TaskCrashed,
    outcomes.WORKER_DIED: WorkerDied,
    outcomes.CANCELLED: TaskCancelled,
    outcomes.EXPIRED: TaskExpired,
    outcomes.OUT_OF_MEMORY: TaskOutOfMemory,
}


def task_error(status: str, value: Any) -> TaskError:
    """The exception for a result that is not ok; `value` is its map, or whatever came instead."""
    fields = value if isinstance(value, dict) else {"message": repr(value)}
    kind, text = str(fields.get("type", status)), str(fields.get("message", ""))
    sentence = str(fields.get("short") or f"{kind}: {text}".rstrip(": "))
    known = _RAISED.get(kind) if status == outcomes.ERROR else _CLASSES.get(status)
    return (known or TaskError)(
        sentence,
        status=str(status),
        type=kind,
        remote_message=text,
        traceback=str(fields.get("traceback", "")),
    )


def lost(why: str) -> TaskError:
    """The exception for a task whose result was committed but cannot be had."""
    cause = outcomes.cause("DamagedFile", why)
    return task_error(outcomes.INVALID, {**cause, "short": why})
