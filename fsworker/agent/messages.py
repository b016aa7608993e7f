"""What stands in a message: a data file of kind `m`, whose meta holds the fields.

    kind     fields of meta                            records
    task     task_name, task_id                        meta, data
    result   task_name, task_id (may be empty),        meta, data
             return_code
    abort    task_id
    reply    to (incarnation), number, taken, why

Damage (the file is not exactly itself) is told from what is whole and makes no sense: the first may
be better next time, the second never is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fsworker.agent.task import Answer, Task, TaskResult
from fsworker.errors import UsageError
from fsworker.protocol import packing, segment
from fsworker.protocol.segment import DamagedFile, Segment

MESSAGE = b"m"


class Invalid(ValueError):
    """A message that is whole and is not what its kind asks for; the text says why."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A reply: to which message, whether it was taken, and why not."""

    to: str
    number: int
    taken: bool
    why: str = ""


def task_bytes(task_name: str, task_id: str, meta: Any, data: Any) -> bytes:
    """A task. UsageError for names that are no texts and for what cannot be packed."""
    if not isinstance(task_name, str) or not isinstance(task_id, str) or not task_id:
        raise UsageError("task_name and task_id must be texts, and an id must not be empty")
    return _encode({"task_name": task_name, "task_id": task_id}, "the task", meta, data)


def result_bytes(task: Task | None, result: TaskResult) -> bytes:
    """A result; without a task it has no id. UsageError for what cannot be packed."""
    fields = {
        "task_name": task.task_name if task else "",
        "task_id": task.task_id if task else "",
        "return_code": result.return_code,
    }
    return _encode(fields, "the result", result.meta, result.data)


def abort_bytes(task_id: str) -> bytes:
    """An abort of a task."""
    return _encode({"task_id": task_id}, "the abort")


def reply_bytes(verdict: Verdict) -> bytes:
    """An answer to a message."""
    fields = {
        "to": verdict.to,
        "number": verdict.number,
        "taken": verdict.taken,
        "why": verdict.why[:1000],
    }
    return _encode(fields, "the reply")


def read(data: bytes, path: str) -> Segment:
    """The message in `data`. DamagedFile or WrongVersion."""
    return segment.decode(data, MESSAGE, path)


def as_task(message: Segment) -> Task:
    """The task that a message holds. Invalid unless meta and data are dicts that are not empty."""
    name, task_id = _text(message, "task_name"), _text(message, "task_id")
    if not task_id:
        raise Invalid("its task_id is empty")
    parts = dict(zip(("meta", "data"), _two(message), strict=True))
    for part, value in parts.items():
        if not isinstance(value, dict) or not value:
            raise Invalid(f"{part} must be a dict that is not empty, not {value!r:.60}")
    return Task(name, task_id, parts["meta"], parts["data"])


def as_answer(message: Segment) -> Answer:
    """The result that a message holds. Invalid."""
    meta, data = _two(message)
    if not isinstance(meta, dict):
        raise Invalid(f"meta must be a dict, not {meta!r:.60}")
    name, task_id = _text(message, "task_name"), _text(message, "task_id")
    return Answer(name, task_id, meta, data, _text(message, "return_code"))


def as_abort(message: Segment) -> str:
    """The id of the task that is not wanted any more. Invalid."""
    return _text(message, "task_id")


def as_verdict(message: Segment) -> Verdict:
    """The answer that a message holds. Invalid."""
    number, taken = message.meta.get("number"), message.meta.get("taken")
    if type(number) is not int or type(taken) is not bool:
        raise Invalid("a reply needs a number and whether it was taken")
    return Verdict(_text(message, "to"), number, taken, _text(message, "why"))


def _encode(fields: dict[str, Any], what: str, *values: Any) -> bytes:
    try:
        body = segment.encode(Segment(MESSAGE, fields, [packing.pack(v) for v in values]))
    except packing.Unpackable as error:
        raise UsageError(f"{what} cannot be sent: {error}") from None
    if len(body) > segment.MAX_BYTES:
        raise UsageError(
            f"{what} takes {len(body)} bytes, {segment.MAX_BYTES} is the limit: "
            "write it to a file and send its path"
        )
    return body


def _text(message: Segment, name: str) -> str:
    value = message.meta.get(name)
    if not isinstance(value, str):
        raise Invalid(f"{name} must be a text, not {value!r:.60}")
    return value


def _two(message: Segment) -> list[Any]:
    try:
        values = message.values()
    except DamagedFile as error:
        raise Invalid(str(error)) from None
    if len(values) != 2:
        raise Invalid(f"it has {len(values)} records, not meta and data")
    return values
