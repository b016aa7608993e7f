"""From the packed records of a range to calls: fast for the many, exact for the odd one out.

This runs once for every task that a slot executes. So tasks are decoded several at once, and the
common shape takes the short way; what is not a task is told apart from its neighbours all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fsworker.protocol import packing

AHEAD, AHEAD_BYTES = 64, 1 << 16
"""Tasks, and bytes of them, that are decoded at once at most."""


def read_ahead(records: Sequence[bytes]) -> Iterator[bytes | list[Any]]:
    """The tasks, several decoded at once, which is many times faster than one by one.

    Where that does not work, they come as they are, so that each is answered for itself.
    """
    at = 0
    while at < len(records):
        group, room = [records[at]], AHEAD_BYTES - len(records[at])
        for record in records[at + 1 : at + AHEAD]:
            room -= len(record)
            if room < 0:
                break
            group.append(record)
        at += len(group)
        yield from _decoded(group) if len(group) > 1 else group


def _decoded(group: list[bytes]) -> Sequence[bytes | list[Any]]:
    head = b"\xdc" + len(group).to_bytes(2, "big")
    try:
        values = packing.unpack(head + b"".join(group))
    except packing.NotPacked:
        return group
    return [v if type(v) is list else r for v, r in zip(values, group, strict=True)]


def parse_task(
    task: bytes | list[Any],
) -> tuple[Any, list[Any], dict[str, Any], dict[str, Any]]:
    """(id, args, kwargs, options) of a task. Raises ValueError saying what is wrong."""
    fields: Any = task
    if isinstance(task, bytes):
        try:
            fields = packing.unpack(task)
        except packing.NotPacked as error:
            raise ValueError(f"the task cannot be unpacked: {error}") from None
    if type(fields) is list and len(fields) == 2 and type(fields[1]) is list:
        return fields[0], fields[1], {}, {}
    if not isinstance(fields, list) or not 1 <= len(fields) <= 4:
        raise ValueError("the task is not a list of id, args, kwargs and options")
    task_id, args, kwargs, options = (*fields, None, None, None)[:4]
    args, kwargs, options = args or [], kwargs or {}, options or {}
    if not isinstance(args, (list, tuple)) or not isinstance(kwargs, dict):
        raise ValueError("the task's args must be a list and its kwargs a map")
    if not isinstance(options, dict):
        raise ValueError("the task's options must be a map")
    return task_id, list(args), kwargs, options


def limit_of(value: Any) -> float:
    """A task's timeout option in seconds, 0 for none. Raises ValueError."""
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ValueError(f"the timeout must be a number of seconds above 0, not {value!r:.40}")
    return float(value)
