"""From the packed records of a range to calls: fast for the many, exact for the odd one out.

This runs once for every task that a slot executes. So a range is decoded at once, and what is
nothing but a call goes on in stretches; what is more than that, or no task at all, is told apart
from its neighbours all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from fsworker.protocol import packing
from fsworker.protocol.segment import ARG, Records
from fsworker.slots.wire import Range

Calls = Iterator[tuple[Sequence[Any], dict[str, Any]]]
"""Arguments by position and by name, a call each."""

_NAMELESS: dict[str, Any] = {}


class Stretch(NamedTuple):
    """Tasks in a row, from index `first` on. `calls`: theirs; None for one that has more to it, or
    may be none: that one is `task`, decoded if it can be."""

    first: int
    calls: Calls | None
    task: bytes | list[Any] = b""


def one_by_one(work: Range) -> Iterator[Stretch]:
    """The tasks of a range, each to be taken for itself."""
    return (Stretch(i, None, record) for i, record in enumerate(work.records, work.first))


def stretches(work: Range) -> Iterator[Stretch]:
    """The tasks of a range: calls in a row where there are any."""
    records, first, form = work.records, work.first, work.meta.get("form")
    head = b"\xdd" + len(records).to_bytes(4, "big")
    try:
        values = packing.unpack(b"".join((head, records.body))) if form in (None, ARG) else None
    except packing.NotPacked:
        values = None  # one by one, so that each is answered for itself
    if values is None:
        yield from one_by_one(work)
    elif form == ARG:
        yield Stretch(first, zip(zip(values, strict=False), repeat(_NAMELESS), strict=False))
    else:
        yield from _plain_calls(records, values, first)


def _plain_calls(records: Records, values: list[Any], first: int) -> Iterator[Stretch]:
    calls: list[tuple[Sequence[Any], dict[str, Any]]] = []
    for index, fields in enumerate(values, first):
        if type(fields) is list and 1 < len(fields) < 4 and fields[0] is None:
            args, kwargs = fields[1], fields[2] if len(fields) == 3 else _NAMELESS
            if type(args) is list and type(kwargs) is dict:
                calls.append((tuple(args), kwargs))  # here, since the call is timed
                continue
        if calls:
            yield Stretch(index - len(calls), iter(calls))
            calls = []
        yield Stretch(index, None, fields if type(fields) is list else records[index - first])
    if calls:
        yield Stretch(first + len(values) - len(calls), iter(calls))


def parse_task(
    task: bytes | list[Any], form: str | None = None
) -> tuple[Any, list[Any], dict[str, Any], dict[str, Any]]:
    """(id, args, kwargs, options) of a task. Raises ValueError saying what is wrong."""
    fields: Any = task
    if form not in (None, ARG):
        raise ValueError(f"the form of its batch, {form!r:.40}, is not one that this release knows")
    if isinstance(task, bytes):
        try:
            fields = packing.unpack(task)
        except packing.NotPacked as error:
            raise ValueError(f"the task cannot be unpacked: {error}") from None
        if form == ARG:
            return None, [fields], {}, {}
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
