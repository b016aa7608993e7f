"""Operations on a run root as values, and the protocol verbs that are made of them.

A verb is a generator that yields operations and is sent what they gave, or thrown their OSError.
`Store.run` performs them on a disk; the exhaustive test performs them on a simulated store, one at
a time, in every order.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from fsworker.protocol.fsops import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Scan:
    """List a folder from a fresh open; answers the names."""

    folder: str
    mutates: ClassVar[bool] = False

    def perform(self, store: Store) -> list[str]:
        """Do it."""
        return store.scan(self.folder)


@dataclass(frozen=True, slots=True)
class Read:
    """Read a whole file from a fresh open; answers its bytes."""

    path: str
    mutates: ClassVar[bool] = False

    def perform(self, store: Store) -> bytes:
        """Do it."""
        return store.read(self.path)


@dataclass(frozen=True, slots=True)
class Put:
    """Write a file under its own name, fsync (unless it need not last) and close it."""

    path: str
    data: bytes
    durable: bool = True
    mutates: ClassVar[bool] = True

    def perform(self, store: Store) -> None:
        """Do it."""
        store.put(self.path, self.data, durable=self.durable)


@dataclass(frozen=True, slots=True)
class Rename:
    """One rename request."""

    source: str
    target: str
    mutates: ClassVar[bool] = True

    def perform(self, store: Store) -> None:
        """Do it."""
        store.rename(self.source, self.target)


@dataclass(frozen=True, slots=True)
class Remove:
    """Unlink a file; answers whether it was there."""

    path: str
    mutates: ClassVar[bool] = True

    def perform(self, store: Store) -> bool:
        """Do it."""
        return store.remove(self.path)


@dataclass(frozen=True, slots=True)
class MakeFolder:
    """Make a folder; answers False when it was there."""

    folder: str
    mutates: ClassVar[bool] = True

    def perform(self, store: Store) -> bool:
        """Do it."""
        return store.mkdir(self.folder)


@dataclass(frozen=True, slots=True)
class RemoveFolder:
    """Remove an empty folder."""

    folder: str
    mutates: ClassVar[bool] = True

    def perform(self, store: Store) -> None:
        """Do it."""
        store.rmdir(self.folder)


Op = Scan | Read | Put | Rename | Remove | MakeFolder | RemoveFolder
"""Any of them."""

Verb = Generator[Op, Any, T]
"""A protocol verb that returns T."""
