"""Task files: JSON lines in, one task a line; and how a value is written as JSON again.

A line is either a task object, which has `args`, `kwargs` or both and may have `id` and `timeout`,
or any other JSON value, which is then the one positional argument (a reward function that takes a
dict gets the dict). With `keywords` every line is an object and holds the keyword arguments. The
file is read twice: before anything is submitted, to find every bad line, and while it is.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator
from typing import Any, BinaryIO, NoReturn

from fsworker.errors import StorageError, UsageError
from fsworker.remote import NotSent
from fsworker.taskpack import TaskPacker

_FIELDS = {"args", "kwargs", "id", "timeout"}
_BOM = b"\xef\xbb\xbf"


class TaskFile:
    """A file of tasks, open while it is used. Raises UsageError naming file and line."""

    def __init__(self, path: str, *, keywords: bool = False) -> None:
        self.path = path
        self._keywords = keywords
        self._packer = TaskPacker()
        self._file = _open(path)
        self._before = self._state()

    def close(self) -> None:
        """Close it."""
        self._file.close()

    def count(self) -> int:
        """How many tasks there are, bad ones included: quick, since it looks at no line closely."""
        self._file.seek(0)
        return sum(1 for line in self._file if line.strip())

    def digest(self) -> str:
        """What the file holds, and how it is read, as hex digits."""
        self._file.seek(0)
        total = hashlib.sha256(b"keywords" if self._keywords else b"")
        while chunk := self._file.read(1 << 20):
            total.update(chunk)
        return total.hexdigest()

    def cut(self, size: int, max_bytes: int) -> tuple[int, ...]:
        """Where batches of at most `size` tasks and `max_bytes` bytes end. Reads every line."""
        ends: list[int] = []
        start, held, index = 0, 0, 0
        for index, record in enumerate(self.records(), 1):
            if index - start > size or (held + len(record) > max_bytes and index - start > 1):
                ends.append(index - 1)
                start, held = index - 1, 0
            held += len(record)
        if index > start:
            ends.append(index)
        if not ends:
            raise UsageError(f"{self.path} holds no task", path=self.path)
        return tuple(ends)

    def records(self) -> Iterator[bytes]:
        """Every task, packed."""
        self._file.seek(0)
        if self._file.read(len(_BOM)) != _BOM:
            self._file.seek(0)
        for number, line in enumerate(self._file, 1):
            if line.strip():
                yield self._record(line, number)

    def check_unchanged(self) -> None:
        """UsageError when somebody wrote to the file since it was opened."""
        if self._state() != self._before:
            raise UsageError(
                f"{self.path} changed while it was read: submit it again", path=self.path
            )

    def _state(self) -> tuple[int, int]:
        state = os.fstat(self._file.fileno())
        return state.st_size, state.st_mtime_ns

    def _record(self, line: bytes, number: int) -> bytes:
        try:
            value = json.loads(line.decode(), parse_constant=_no_constant)
            return self._packer.record(fields_of(value, keywords=self._keywords))
        except (ValueError, RecursionError, NotSent) as error:
            why = str(error) or "it is nested too deep"
            raise UsageError(f"{self.path}, line {number}: {why}", path=self.path) from None


def fields_of(value: Any, *, keywords: bool = False) -> list[Any]:
    """`[id, args, kwargs, options]` of a line's value, without empty ones at the end.

    Raises ValueError with what is wrong.
    """
    if keywords:
        if not isinstance(value, dict):
            raise ValueError("with --kwargs each line must be an object of keyword arguments")
        return [None, [], value]
    if not isinstance(value, dict) or not ("args" in value or "kwargs" in value):
        return [None, [value]]
    strange = sorted(set(value) - _FIELDS)
    if strange:
        raise ValueError(
            f"an object with `args` or `kwargs` is a task and cannot have {strange[0]!r}; "
            'to pass the object itself write {"args": [{…}]}'
        )
    args, kwargs = value.get("args", []), value.get("kwargs", {})
    task_id, timeout = value.get("id"), value.get("timeout")
    if not isinstance(args, list):
        raise ValueError("`args` must be a list")
    if not isinstance(kwargs, dict):
        raise ValueError("`kwargs` must be an object")
    if task_id is not None and type(task_id) not in (str, int):
        raise ValueError("`id` must be a text or a whole number")
    if isinstance(task_id, str) and "\0" in task_id:
        raise ValueError("`id` holds a NUL character, which the environment of a task cannot hold")
    if timeout is not None and not _is_duration(timeout):
        raise ValueError("`timeout` must be a number of seconds above 0")
    if timeout is not None:
        return [task_id, args, kwargs, {"timeout": timeout}]
    return [task_id, args, kwargs] if kwargs else [task_id, args]


def to_json(value: Any) -> str:
    """A value as JSON on one line.

    Tuples become lists, numpy arrays nested lists and numpy scalars numbers. What JSON cannot hold
    (bytes, NaN and infinities, …) becomes `{"__repr__": "…"}`, wherever it stands; a key that is no
    text becomes its repr.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
        return text
    except (TypeError, ValueError, RecursionError):
        return json.dumps(_plain(value), allow_nan=False)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, dict):
        return {k if isinstance(k, str) else repr(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return _plain(value.tolist())
    return {"__repr__": repr(value)}


def _is_duration(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value) and value > 0


def _open(path: str) -> BinaryIO:
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed by `close`
    except (FileNotFoundError, IsADirectoryError) as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", path=path) from None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}", path=path) from None
    if not file.seekable():
        file.close()
        raise UsageError(
            f"{path} is not a regular file, but it is read twice: write it to a file first",
            path=path,
        )
    return file


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON value")
