"""What a line asks of who speaks over it, and the times that it keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from fsworker.agent.link import Limits, Link, News
from fsworker.agent.parcels import Parcel
from fsworker.protocol.layout.agents import Letter, Life
from fsworker.protocol.segment import Segment


class Party(Protocol):
    """Who speaks over a line. Called by its thread; nothing here may block."""

    def wants(self, kind: str) -> bool:
        """Whether messages of this kind may be read now."""

    def heard(self, letter: Letter, message: Segment) -> Callable[[], None] | None:
        """A message came. Raises Invalid, with the reason for which it is refused.

        What is returned is called once the other side was told that it is taken: until then a
        crash must find nobody who acts on it.
        """

    def answered(self, parcel: Parcel, life: Life, taken: bool, why: str) -> None:
        """The other side replied to a parcel, which is off the line by now."""

    def posted(self, parcel: Parcel) -> None:
        """A parcel lies before the other side."""

    def looked(self, link: Link, news: News) -> None:
        """There was a look at the other side."""

    def closed(self, why: str) -> None:
        """The line has ended."""

    def mood(self) -> str:
        """How this side is, one of `layout.agents.MOODS`."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Times of a line, in seconds: see `Agent` and `parcels.due`."""

    limits: Limits
    again: float
    patience: float

    @property
    def shortest(self) -> float:
        """The shortest silence that has to be noticed."""
        return min(self.limits.connection, self.limits.heartbeat or self.limits.connection)
