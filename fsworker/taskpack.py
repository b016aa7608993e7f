"""Tasks as packed records, fast: this runs once for every task that a client sends.

A packer that lives keeps its buffer, which makes it several times faster than one made for each
value; what it cannot carry goes the way that says so by name. Most calls have one argument and
nothing else. A batch of such calls has a form of its own, whose records are the arguments; a call
among others is widened to the form that carries everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fsworker.protocol import packing, segment
from fsworker.protocol.segment import ARG
from fsworker.remote import NotSent

MAX_RECORD = segment.MAX_BYTES // 8
"""Bytes of the largest task: a batch holds it with room to spare."""


class TaskPacker:
    """Packs tasks; for one thread at a time."""

    def __init__(self) -> None:
        self._pack = packing.packer()

    def call(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], task_id: Any = None
    ) -> tuple[bytes, str | None]:
        """(record, form) of a call. Raises NotSent."""
        form, fields = None, args[0] if len(args) == 1 else None
        if len(args) == 1 and not kwargs and task_id is None:
            form = ARG
        else:
            fields = [task_id, list(args), dict(kwargs)]
        try:
            record = self._pack(fields)
        except Exception:  # whatever it is, the careful way has the words for it
            record = _pack_carefully(fields)
        return record if len(record) <= MAX_RECORD else _too_large(record), form

    def record(self, fields: Any) -> bytes:
        """`[id, args, kwargs, options]`, of which the last may be missing, or an only argument as
        a record. Raises NotSent."""
        try:
            record = self._pack(fields)
        except Exception:  # whatever it is, the careful way has the words for it
            record = _pack_carefully(fields)
        return record if len(record) <= MAX_RECORD else _too_large(record)

    def only_arguments(self, values: Iterable[Any]) -> list[bytes]:
        """The records of calls with one argument each. Raises whatever comes when one of them
        cannot be sent."""
        records = list(map(self._pack, values))
        if max(map(len, records), default=0) > MAX_RECORD:
            _too_large(max(records, key=len))
        return records


def _pack_carefully(fields: Any) -> bytes:
    try:
        return packing.pack(fields)
    except packing.Unpackable as error:
        raise NotSent(f"the task was not sent: {error}") from None


def _too_large(record: bytes) -> bytes:
    raise NotSent(
        f"the task was not sent: it takes {len(record)} bytes, {MAX_RECORD} is the limit; "
        "send large arguments as fsworker.Blob(value)"
    )
