"""How a merge is cut into pieces of work: by the inputs alone, never by who works on it. Pure.

A piece is a range of one tensor that fits into a worker's buffer for all inputs together, or a
longer one where compiled loops read it little by little. Within it a rule is applied block by
block, since sums in float64 are fastest while they fit into the processor's caches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from fedavg.formats.base import Entry
from fedavg.policy import Action

CHUNK = 4 << 20
"""Bytes that a worker reads for one piece, over all inputs together."""

SMALLEST = 64 << 10
"""Bytes of one input that are read at least, however many inputs there are."""

STREAMED = 2 << 20
"""Bytes of one input that a piece has where nothing but its result is held."""

BLOCK = 256 << 10
"""Bytes of all models together, as they were read, that a rule is applied to at once: with the half
or whole MiB that they are as float64 they fit into a second-level cache."""

LEAST_BLOCK = 4096
"""Elements of one model that a block has at least, so that calls do not cost more than numbers."""


@dataclass(frozen=True)
class Piece:
    """Elements [start, stop) of one tensor, and what is done with them."""

    key: str
    start: int
    stop: int
    action: Action


def pieces(
    entries: Mapping[str, Entry],
    actions: Mapping[str, Action],
    inputs: int,
    streamed: Set[str] = frozenset(),
) -> Iterator[Piece]:
    """All pieces of the entries that have an action, in their order, each made when it is due.

    `inputs` is how many tensors are read at once: models, bases, state. `streamed` are the keys
    whose inputs are never in memory as a whole piece.
    """
    for key, action in actions.items():
        entry = entries[key]
        size = entry.itemsize
        step = (STREAMED if key in streamed else max(CHUNK // inputs, SMALLEST)) // size
        count = entry.nbytes // size
        for start in range(0, count, step):
            yield Piece(key, start, min(start + step, count), action)


def blocks(count: int, models: int, itemsize: int) -> Iterator[slice]:
    """The blocks of a piece of `count` elements, for that many models."""
    step = max(BLOCK // (models * itemsize), LEAST_BLOCK)
    return (slice(a, min(a + step, count)) for a in range(0, count, step))
