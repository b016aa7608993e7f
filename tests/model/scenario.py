"""What an exploration covers: how many of everything, and how much may go wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from fsworker.protocol import layout
from tests.model.disk import Disk
from tests.model.programs import (
    OTHER_SHARD,
    OUTBOX,
    SHARD,
    Client,
    Local,
    Programs,
    Reclaimer,
    Worker,
    first_token,
    payload,
)

KINDS = ("faults", "crashes", "reclaims", "returns", "forwards")


class Bounds(NamedTuple):
    """How much may go wrong, in all, in one history."""

    faults: int = 0
    crashes: int = 0
    reclaims: int = 0
    returns: int = 0
    forwards: int = 0


NOTHING = Bounds()


@dataclass(frozen=True)
class Scenario:
    """What is explored: `written` batches lie in the inbox from the start, the others are sent."""

    name: str
    bounds: Bounds
    hosts: tuple[str, ...] = ("a", "b")
    batches: int = 2
    written: int = 0
    programs: Programs = field(default_factory=Programs)
    stream_folder: bool = True
    died: tuple[bool, ...] = (True,)
    capacity: int = 2
    client_crashes: bool = False
    enlisted: bool = True
    prune: bool = True
    rounds: int = 1

    def first_locals(self) -> list[Local]:
        """The processes as they start: the workers, the client, the reclaimer."""
        stages = tuple("sent" if n < self.written else "new" for n in range(self.batches))
        workers = [Worker(h, 1, self.enlisted) for h in self.hosts]
        return [*workers, Client(stages), Reclaimer()]

    def first_disk(self) -> Disk:
        """The run root as the processes find it."""
        ready = [first_token(n) for n in range(self.written)]
        folders = {layout.inbox_dir(SHARD)} | ({OUTBOX} if self.stream_folder else set())
        if self.bounds.forwards:
            folders.add(layout.inbox_dir(OTHER_SHARD))
        if self.enlisted:
            folders |= {Worker(h, 1).owner.folder for h in self.hosts}
        files = {(layout.inbox_path(t), payload(t.batch)) for t in ready}
        return Disk(frozenset(files), frozenset(folders))
