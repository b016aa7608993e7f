"""Results on their way to the file that was asked for, kept so that nothing can undo it.

Results are kept before they are forgotten on the run root: appended to `OUT.partial` and fsynced, a
line a batch. What an interrupted command had kept is read back by the next one; half a line at the
end was never kept, so its batch is still on the root. When all batches are there, OUT is written in
the order of the input and takes its name at once.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from typing import Any, BinaryIO

from ctl.streams import Submission
from ctl.taskfile import to_json
from fsworker import outcomes
from fsworker.client.receivers import MISSING
from fsworker.errors import FleetError, FormatError, StorageError, UsageError
from fsworker.protocol.fsops import storage_error


class Spool:
    """The results of a submission that are kept for the file `out`."""

    def __init__(self, out: str, submission: Submission) -> None:
        self.out = out
        self.path = out + ".partial"
        self.failed = 0
        self.tasks = 0
        self._submission = submission
        self._places: dict[int, int] = {}
        self._file = self._open()

    def __contains__(self, number: int) -> bool:
        return number in self._places

    def __len__(self) -> int:
        return len(self._places)

    @property
    def complete(self) -> bool:
        """Whether every batch is kept."""
        return len(self._places) == len(self._submission.ends)

    def keep(self, number: int, rows: list[Any]) -> None:
        """Append a batch's result rows. They are kept once `sync` returns."""
        wanted = self._submission.ends[number] - self._submission.start(number)
        told = _complete(rows, wanted)
        failed = sum(status != outcomes.OK for _, status, _ in told)
        texts = (f"[{json.dumps(i)}, {json.dumps(s)}, {to_json(v)}]" for i, s, v in told)
        line = f'{{"batch": {number}, "failed": {failed}, "rows": [{", ".join(texts)}]}}\n'
        try:
            place = self._file.seek(0, os.SEEK_END)
            self._file.write(line.encode())
        except OSError as error:
            raise storage_error(error, "write", self.path) from None
        self._note(number, place, wanted, failed)

    def sync(self) -> None:
        """Make everything that was appended outlive a crash."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise storage_error(error, "write", self.path) from None

    def finish(self) -> None:
        """Write the results in the order of the input, at once and for good."""
        temp = f"{self.out}.{secrets.token_hex(4)}.tmp"
        try:
            with open(temp, "xb") as file:
                file.writelines(self._lines())
                file.flush()
                os.fsync(file.fileno())
            os.replace(temp, self.out)
            _sync_folder(self.out)
        except OSError as error:
            raise storage_error(error, "write", self.out) from None
        finally:
            if os.path.lexists(temp):
                os.unlink(temp)

    def remove(self) -> None:
        """Remove the partial file, which is worth nothing once `out` is noted to be complete."""
        self.close()
        os.unlink(self.path)

    def close(self) -> None:
        """Close the file; what is kept stays."""
        self._file.close()

    def _lines(self) -> Iterator[bytes]:
        for number, place in sorted(self._places.items()):
            self._file.seek(place)
            batch = json.loads(self._file.readline())
            for index, (task_id, status, value) in enumerate(
                batch["rows"], self._submission.start(number)
            ):
                field = "value" if status == outcomes.OK else "error"
                row = {"index": index, "id": task_id, "status": status, field: value}
                yield to_json(row).encode() + b"\n"

    def _header(self) -> dict[str, Any]:
        return {"results_of": self._submission.stream, "incarnation": self._submission.incarnation}

    def _open(self) -> BinaryIO:
        try:
            file = open(self.path, "a+b")  # noqa: SIM115 - closed by `close`
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            what = f"cannot write {self.path}: {error.strerror}"
            raise UsageError(what, path=self.path) from None
        except OSError as error:
            raise storage_error(error, "write", self.path) from None
        try:
            self._begin(file)
        except OSError as error:
            file.close()
            raise storage_error(error, "write", self.path) from None
        except FleetError:
            file.close()
            raise
        return file

    def _begin(self, file: BinaryIO) -> None:
        """Read back what an earlier command kept, or begin a file."""
        file.seek(0)
        if self._load(file):
            return
        file.truncate(0)
        file.write(json.dumps(self._header()).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
        _sync_folder(self.path)

    def _load(self, file: BinaryIO) -> int:
        """Read what is kept, and cut off half a line at the end; where the end is."""
        end = 0
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                file.truncate(end)
                break
            self._load_line(line, number, end)
            end += len(line)
        return end

    def _load_line(self, line: bytes, number: int, place: int) -> None:
        try:
            value = json.loads(line)
            if number > 1:
                self._note(value["batch"], place, len(value["rows"]), value["failed"])
        except (ValueError, KeyError, TypeError):
            raise FormatError(
                f"{self.path}, line {number}: this is no kept batch: give another -o",
                path=self.path,
            ) from None
        if number == 1 and value != self._header():
            raise UsageError(
                f"{self.path} does not hold results of stream {self._submission.stream!r}: "
                "remove it or give another -o",
                path=self.path,
            )

    def _note(self, number: int, place: int, tasks: int, failed: int) -> None:
        self._places[number] = place
        self.tasks += tasks
        self.failed += failed


def _complete(rows: list[Any], wanted: int) -> list[tuple[Any, str, Any]]:
    """(id, status, value) of each task of a batch, in order; the first result of a task counts."""
    found: dict[int, tuple[Any, str, Any]] = {}
    for row in rows:
        try:
            index, task_id, status, value = row[:4]
        except (TypeError, ValueError):
            continue
        if type(index) is int and isinstance(status, str):
            found.setdefault(index, (task_id, status, value))
    missing = (None, outcomes.INVALID, outcomes.cause("MissingResult", MISSING))
    return [found.get(index, missing) for index in range(wanted)]


def lost_rows(why: str, wanted: int) -> list[Any]:
    """Result rows for a batch whose results cannot be had."""
    cause = outcomes.cause("DamagedFile", why)
    return [[index, None, outcomes.INVALID, cause] for index in range(wanted)]


def _sync_folder(path: str) -> None:
    fd = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def place_of(out: str, tasks: str) -> str:
    """The file that `out` means, links followed; UsageError when results must not replace it."""
    real = os.path.realpath(out)
    for path in (os.path.abspath(out), real + ".partial"):
        if os.path.isdir(path) or (os.path.exists(path) and not os.path.isfile(path)):
            raise UsageError(
                f"{path} is there and is no regular file: give another -o for the results",
                path=path,
            )
        if os.path.exists(path) and os.path.exists(tasks) and os.path.samefile(path, tasks):
            raise UsageError(
                f"{path} is the file of the tasks: give another -o for the results", path=path
            )
    return real


def check_there(path: str) -> None:
    """StorageError when the partial file that a stream's results went to is gone."""
    if not os.path.exists(path):
        raise StorageError(f"{path} is gone, and with it results that were taken", path=path)
