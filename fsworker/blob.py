"""Arguments too large for a batch: files beside the results, passed by reference.

A batch is read, checked and handed on as a whole, by a worker that may hold many; data of hundreds
of megabytes would make it wait and swell. So the data goes into a file of its own, the task names
it, and the slot reads it when that task begins. Whoever sent it removes it once the task is over.
"""

from __future__ import annotations

import itertools
import logging
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from fsworker.protocol import layout, packing
from fsworker.protocol.fsops import Store
from fsworker.protocol.packing import Reference
from fsworker.remote import NotSent
from fsworker.taskpack import TaskPacker

log = logging.getLogger(__name__)

OPTION = "blobs"
"""The option of a task that has references among its arguments."""

_PATH = re.compile(r"outbox/(?:[A-Za-z0-9_-]|%[0-9A-F]{2})+/\.blob~[0-9a-f]{12}~[0-9]+")


class Blob:
    """An argument of `submit` that travels in a file of its own; the function gets `value`.

    For any value that could be sent otherwise; it must be an argument itself, not a part of one.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def among(args: Iterable[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether there are blobs among the arguments of a call."""
    return any(type(value) is Blob for value in (*args, *kwargs.values()))


class Shelf:
    """Where one incarnation of a client puts its blobs."""

    def __init__(self, store: Store, stream: str, incarnation: str) -> None:
        self._store = store
        self._folder = layout.outbox_dir(stream)
        self._incarnation = incarnation
        self._numbers = itertools.count()

    def put_all(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any], list[str]]:
        """(args, kwargs, paths) with blobs written and replaced by references.

        Raises packing.Unpackable and OSError; then nothing is left behind.
        """
        paths: list[str] = []
        try:
            self._store.mkdir(self._folder)
            found = [self._put(value, paths) for value in args]
            named = {name: self._put(value, paths) for name, value in kwargs.items()}
        except BaseException:
            self.remove(paths)
            raise
        return found, named, paths

    def remove(self, paths: Iterable[str]) -> None:
        """Remove blobs whose task is over."""
        for path in paths:
            self._store.remove_quietly(path)

    def _put(self, value: Any, paths: list[str]) -> Any:
        if type(value) is not Blob:
            return value
        data = packing.pack(value.value)
        path = f"{self._folder}/.blob~{self._incarnation}~{next(self._numbers)}"
        paths.append(path)
        self._store.put(path, data)
        return Reference(path, len(data), zlib.crc32(data))


def pack(
    packer: TaskPacker,
    shelf: Shelf,
    future: Future[Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    task_id: Any,
) -> bytes:
    """The record of a call with blobs, which go when `future` is done. Raises NotSent."""
    try:
        found, named, paths = shelf.put_all(args, kwargs)
    except (packing.Unpackable, OSError) as error:
        raise NotSent(f"the task was not sent: {error}") from None
    future.add_done_callback(lambda _: shelf.remove(paths))
    return packer.record([task_id, found, named, {OPTION: True}])


def fetch_all(
    root: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a task with what references lead to. Raises ValueError."""
    store = Store(root)
    found = [_fetch(store, value) for value in args]
    return found, {name: _fetch(store, value) for name, value in kwargs.items()}


def _fetch(store: Store, value: Any) -> Any:
    if type(value) is not Reference:
        return value
    if not _PATH.fullmatch(value.path):
        raise ValueError(f"{value.path!r:.100} is not the place of a blob")
    try:
        data = store.read(value.path)
    except OSError as error:
        why = error.strerror or error
        raise ValueError(f"the blob {store.path(value.path)} cannot be read: {why}") from None
    if (len(data), zlib.crc32(data)) != (value.size, value.checksum):
        raise ValueError(f"the blob {store.path(value.path)} is not what was sent")
    try:
        return packing.unpack(data)
    except packing.NotPacked as error:
        raise ValueError(f"the blob {store.path(value.path)} is {error}") from None
