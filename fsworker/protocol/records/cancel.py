"""The record of a request to cancel: what is meant, and nothing that is sent later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fsworker.protocol import turns
from fsworker.protocol.records import coding


@dataclass(frozen=True)
class CancelRequest:
    """A file of `ctl/cancel/`.

    Means the batch `batch`, of it only the tasks with the indexes `tasks` if there are any; and
    the batches of each client that `upto` names (`<stream>-<incarnation>`), up to that number: a
    stream lives on, and what it sends after the request is not meant. `id` is what was asked for,
    in the words of who asked.
    """

    id: str
    batch: str | None = None
    tasks: tuple[int, ...] = ()
    upto: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """The record as the bytes of its file."""
        return coding.encode(self)

    @classmethod
    def from_json(cls, data: bytes, path: str) -> CancelRequest:
        """The record in `data`; FormatError names `path` and the field."""
        return coding.decode(cls, data, path)

    def covers(self, batch: str) -> bool:
        """Whether anything of a batch is meant."""
        client, _, _ = batch.rpartition("-")
        return batch == self.batch or turns.turn_of(batch)[1] <= self.upto.get(client, -1)

    def indexes(self, batch: str, count: int) -> Sequence[int]:
        """Which of the `count` tasks of a batch are meant."""
        if not self.covers(batch):
            return ()
        if batch == self.batch and self.tasks:
            return [i for i in self.tasks if 0 <= i < count]
        return range(count)
