"""What can become of a task, and the words and records in which it is told.

A result record is `[index, id or None, status, value, elapsed seconds]`. For `ok` the value is what
the function returned; for everything else it is a map of `type`, `message`, `short` and
`traceback`. Most tasks have no id and return; those in a row have one record together, a run:
`["ok", first index, [value, …], elapsed seconds of all]`. Slots make most records; the worker makes
those for tasks whose slot could not, because it was killed or vanished.
"""

from __future__ import annotations

import signal
import struct
import traceback
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any

import msgpack

from fsworker.protocol import packing

OK, ERROR, TIMEOUT, CRASHED = "ok", "error", "timeout", "crashed"
WORKER_DIED, INVALID, REFUSED = "worker died", "invalid", "refused"
CANCELLED, EXPIRED, OUT_OF_MEMORY = "cancelled", "expired", "out of memory"
STATUSES = (
    *(OK, ERROR, TIMEOUT, CRASHED, WORKER_DIED, INVALID, REFUSED, CANCELLED, EXPIRED),
    OUT_OF_MEMORY,
)
"""In the order of the codes by which slots name them to their worker; only ever appended to."""

CODES = {status: code for code, status in enumerate(STATUSES)}
MAX_TEXT = 16_000
"""Characters that an error's message or traceback keeps, the middle left out."""


def cause(kind: str, message: str, trace: str = "") -> dict[str, str]:
    """The value of a result that is not ok."""
    message = clean(message)
    short = f"{kind}: {message.splitlines()[0][:200]}" if message.strip() else kind
    return {"type": kind, "message": message, "short": short, "traceback": clean(trace)}


def raised(error: BaseException) -> dict[str, str]:
    """The value for what user code raised. Never raises, whatever the exception does."""
    kind = type(error).__qualname__
    module = type(error).__module__
    if module not in ("builtins", "__main__"):
        kind = f"{module}.{kind}"
    return cause(kind, _message(error), _trace(error, error.__traceback__))


_plain = msgpack.Packer(strict_types=True, use_bin_type=True)
"""One that lives keeps its buffer, which makes it many times faster; for one thread at a time."""


def record(index: int, task_id: Any, status: str, value: Any, elapsed: float) -> bytes:
    """A result record. Raises packing.Unpackable when the value cannot be sent."""
    fields = [index, task_id, status, value, elapsed]
    try:
        packed: bytes = _plain.pack(fields)
    except Exception:  # not plain data: the careful way carries more, and has words for the rest
        return packing.pack(fields)
    return packed


_RUN_HEAD = struct.Struct(">4scIcI")
_RUN_TAIL = struct.Struct(">cd")
RUN_HEAD, RUN_TAIL = _RUN_HEAD.size, _RUN_TAIL.size
"""Bytes of a run before and behind its values, whatever they are."""


def run_head(first: int, count: int) -> bytes:
    """The part of a run before its values: numbers at their full length."""
    return _RUN_HEAD.pack(b"\x94\xa2ok", b"\xce", first, b"\xdd", count)


def run_tail(elapsed: float) -> bytes:
    """The part of a run behind its values."""
    return _RUN_TAIL.pack(b"\xcb", elapsed)


def run(first: int, values: Sequence[bytes], elapsed: float) -> bytes:
    """The record of tasks in a row that returned these values, packed each."""
    return b"".join((run_head(first, len(values)), *values, run_tail(elapsed)))


def is_run(row: Any) -> bool:
    """Whether a decoded record is a run."""
    return (
        type(row) is list
        and len(row) == 4
        and row[0] == OK
        and type(row[1]) is int
        and row[1] >= 0
        and type(row[2]) is list
    )


def singles(rows: Iterable[Any]) -> Iterator[Any]:
    """Decoded records, runs as a record for each of their tasks."""
    for row in rows:
        if is_run(row):
            _, first, values, elapsed = row
            share = elapsed / len(values) if values else 0.0
            yield from ([first + i, None, OK, value, share] for i, value in enumerate(values))
        else:
            yield row


def task_id(task: bytes) -> Any:
    """The id in a packed task, or None when there is none or it cannot be read."""
    try:
        return packing.unpack(task)[0]
    except Exception:  # whoever asks has nothing better than None to answer with
        return None


def exit_words(how: str, code: int) -> str:
    """How a process ended, as people say it; `how` is `signal` or `exit`."""
    if how == "exit":
        return f"exit code {code}"
    try:
        return f"signal {code} ({signal.Signals(code).name})"
    except ValueError:
        return f"signal {code}"


def clean(text: str) -> str:
    """A text that can be packed and is not too long."""
    if len(text) > MAX_TEXT:
        half = MAX_TEXT // 2
        text = f"{text[:half]}\n[… {len(text) - 2 * half} characters …]\n{text[-half:]}"
    return text.encode("utf-8", "backslashreplace").decode()


def _message(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"the task called for exit with {error.code!r:.200}"
    try:
        return str(error)
    except BaseException as problem:  # a __str__ of the user may raise anything
        return f"(its text cannot be had: str() raised {type(problem).__name__})"


def _trace(error: BaseException, where: TracebackType | None) -> str:
    try:
        inner = where.tb_next if where else None  # the first frame is the slot's own
        return "".join(traceback.format_exception(type(error), error, inner))
    except BaseException as problem:
        return f"(the traceback cannot be had: {type(problem).__name__})"
