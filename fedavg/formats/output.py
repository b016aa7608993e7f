"""Writing a checkpoint piece by piece, in any order, from several threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Self, TypeVar

from fedavg.formats.base import Checkpoint, Plan
from fedavg.formats.contents import Put
from fedavg.formats.storing import Storing
from fsworker.protocol.fsops import Store, close_quietly, storage_error

T = TypeVar("T")


class Writer:
    """A checkpoint that is being written: the template's format, nesting, names and dtypes.

    keys: the tensors that have to be written: the template's entries that own their bytes. Each
        byte of them must be written once, in any order. For an entry that another owns nothing is
        written: it is a view of its owner in the output too.

    A context manager: it closes, or aborts when an error came.
    """

    def __init__(self, path: str, plan: Plan) -> None:
        self.path = path
        self.keys = tuple(plan.regions)
        self._plan = plan
        folder, _, self._name = os.path.abspath(path).rpartition("/")
        self._store = Store(folder or "/")
        self._files: dict[str, int] = {}
        self._puts: dict[str, Put] = {}
        self._storing = Storing()

    @classmethod
    def create(
        cls, path: str, template: Checkpoint, *, replace: Mapping[str, object] | None = None
    ) -> Self:
        """Begin a checkpoint at `path`, which must not exist; the folder above it must.

        `replace` gives other values for keys of `template.rest`. The template may be closed when
        this has returned. Files are open to the group where the folder above is group-writable,
        else private, whatever the umask. Raises StorageError; KeyError for a key in `replace` that
        the template lacks, TypeError for a value that its format cannot hold.
        """
        values = dict(replace or {})
        unknown = [key for key in values if key not in template.rest]
        if unknown:
            raise KeyError(f"{template.path} has no {unknown[0]!r} beside its tensors")
        writer = cls(path, template.plan(values))
        try:
            writer._begin()
        except BaseException:
            writer.abort()
            raise
        return writer

    def write(self, key: str, start: int, buffer: bytes | bytearray | memoryview) -> None:
        """Write bytes of a tensor's row-major elements from byte `start` on. From any thread.

        KeyError for a key that the template has not, ValueError beyond the tensor's end.
        """
        region = self._plan.regions.get(key)
        if region is None:
            if key not in self._plan.owned:
                raise KeyError(f"{self.path} has no tensor {key!r}")
            return
        if not self._puts:
            raise ValueError(f"{self.path} was closed")
        view = memoryview(buffer)
        region.write(self._puts[self._plan.place[key]], start, view.cast("B"))

    def close(self) -> None:
        """Finish: headers and checksums, then fsync and close of every file.

        ValueError if bytes of a tensor were not written, StorageError. Then nothing is left.
        A second time does nothing.
        """
        if not self._puts:
            return
        try:
            for name, content in self._plan.files.items():
                content.finish(self._puts[name])
            self._try(self._storing.end)
            while self._files:
                name, fd = self._files.popitem()
                self._try(self._store.seal, fd)
            if self._plan.folder:
                self._try(self._store.sync_folder, self._name)
            self._puts.clear()  # a descriptor's number may be another file's from now on
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Give up: close, and remove what was made. After `close` there is nothing to give up."""
        with suppress(OSError):
            self._storing.end()
        while self._files:
            close_quietly(self._files.popitem()[1])
        for name in self._puts:
            self._store.remove_quietly(self._rel(name))
        if self._plan.folder and self._puts:
            try:
                self._store.rmdir(self._name)
            except OSError:
                pass  # somebody put a file there; it is not ours to remove
        self._puts.clear()

    def _begin(self) -> None:
        if self._plan.folder and not self._try(self._store.mkdir, self._name):
            raise storage_error(FileExistsError(17, "File exists"), "create", self.path)
        for name, content in self._plan.files.items():
            fd = self._try(self._store.create, self._rel(name))
            self._files[name] = fd
            self._puts[name] = self._putter(fd)
            content.place(0)

    def _putter(self, fd: int) -> Put:
        def put(offset: int, data: bytes | memoryview) -> None:
            left = memoryview(data)
            while len(left):
                count = self._try(os.pwrite, fd, left, offset)
                self._try(self._storing.wrote, fd, count)
                offset += count
                left = left[count:]

        return put

    def _rel(self, name: str) -> str:
        return f"{self._name}/{name}" if self._plan.folder else self._name

    def _try(self, function: Callable[..., T], *args: object) -> T:
        try:
            return function(*args)
        except OSError as error:
            raise storage_error(error, "write", self.path) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()
