"""What is on its way to the other side, and when to write it again. Pure.

A message lies in the mailbox until the other side took it, so sending again is needed only where it
is gone and nobody answered: its reader died, or it was damaged. One that lies there for long though
the other side is alive may be unreadable, and is then written anew under a new number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Do(Enum):
    """What to do about a parcel."""

    WAIT = "wait"
    WRITE = "write"
    RENEW = "renew"
    """Write it anew and remove the one that lies there."""


@dataclass(slots=True, eq=False)
class Parcel:
    """A message to the other side until it is answered.

    `numbers` are those that it was written under; an answer may be to any of them. `about` is the
    id of the task.
    """

    kind: str
    about: str
    data: bytes
    numbers: list[int] = field(default_factory=list)
    written: float = 0.0
    missing_since: float | None = None
    cancelled: bool = False


def due(
    parcel: Parcel, lying: bool, now: float, *, again: float, patience: float, heard: bool
) -> Do:
    """What to do about `parcel`, of which the last writing is `lying` in the mailbox or not.

    `again`, `patience`: seconds until it is written again when gone, and when nobody takes it;
    `heard`: the other side is alive.
    """
    if not parcel.numbers:
        return Do.WRITE
    if lying:
        parcel.missing_since = None
        return Do.RENEW if heard and now - parcel.written >= patience else Do.WAIT
    if parcel.missing_since is None:
        parcel.missing_since = now
    return Do.WRITE if now - parcel.missing_since >= again else Do.WAIT


def noted(parcel: Parcel, number: int, now: float) -> None:
    """It was written under `number`."""
    parcel.numbers = [*parcel.numbers[-15:], number]
    parcel.written, parcel.missing_since = now, None
