"""The order in which batches are meant to be executed, which their names tell.

A listing gives names and nothing else, so a priority that stood anywhere but in the name would cost
a read of each batch before one is chosen. It is a digit of the sequence number: workers that know
nothing of priorities execute the same batches, only in another order.
"""

from __future__ import annotations

PRIORITIES = 4
"""Priorities go from minus to plus this; higher ones come first."""

_LANE, _NORMAL = 10**9, 5


def prior(number: int, priority: int) -> int:
    """The sequence number of a client's `number`-th batch when it has this priority.

    Numbers of ten digits begin with their lane, 1 (first) to 9; all others are in lane 5.
    """
    lane = _NORMAL - priority
    return number if lane == _NORMAL else lane * _LANE + number


def turn_of(batch: str) -> tuple[int, int]:
    """(lane, number) of a batch id: what has the lowest is to be executed first."""
    lane, number = divmod(int(batch.rpartition("-")[2]), _LANE)
    return lane or _NORMAL, number
