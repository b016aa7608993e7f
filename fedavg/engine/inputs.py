"""Who takes part in a merge, and what a rule sees of them: block by block, widened, on one base.

A block is small enough to stay in the processor's caches while it is widened, merged and cast. All
that takes some dozen microseconds, and making a view of a tensor takes one: so the views of a
thread's buffers are made once for pieces of the same length, which most are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedavg.engine.pieces import Piece, blocks
from fedavg.engine.reading import Copies, Reader
from fedavg.formats.base import Checkpoint


@dataclass(frozen=True)
class Inputs:
    """Who takes part in a merge, in the order of their names, and what they started from.

    `own_bases[k]` is the base of model k where it is not `base`; `weights` are positive.
    """

    names: tuple[str, ...]
    models: tuple[Checkpoint, ...]
    weights: tuple[float, ...]
    staleness: tuple[int, ...]
    own_bases: tuple[Checkpoint | None, ...]
    base: Checkpoint | None = None
    state: Checkpoint | None = None

    @property
    def bases(self) -> tuple[Checkpoint, ...]:
        """The distinct own bases."""
        return tuple({id(b): b for b in self.own_bases if b is not None}.values())

    def only(self, indices: Sequence[int]) -> Inputs:
        """Some of them, all with the same weight."""
        return Inputs(
            tuple(self.names[i] for i in indices),
            tuple(self.models[i] for i in indices),
            (1.0,) * len(indices),
            tuple(self.staleness[i] for i in indices),
            tuple(self.own_bases[i] for i in indices),
            self.base,
            self.state,
        )


@dataclass(frozen=True)
class Block:
    """Elements `part` of a piece: `models` (K, n) and, where it is wanted, `base` (n,), in float64.

    These are buffers that all blocks of a thread share: they hold this one from `widen` on, until
    the next is widened.
    """

    part: slice
    models: Tensor
    base: Tensor | None
    copies: Copies
    moved: Sequence[tuple[Tensor, Tensor]]

    def widen(self) -> None:
        """Fill the buffers with what was read, and move the models onto the common base."""
        for wide, values in self.copies:
            wide.copy_(values)
        for model, own in self.moved:
            assert self.base is not None
            model.sub_(own).add_(self.base)


@dataclass(frozen=True)
class Rows:
    """A piece as it was read, a row each: the models, the base if it is wanted, their own bases.

    Without own bases, where a model that started from another one counts as it is.
    """

    models: Tensor
    base: Tensor | None
    own: Sequence[Tensor]

    @property
    def shape(self) -> tuple[object, ...]:
        """The same for all pieces that are read into the same buffers in the same way."""
        rows = (
            (self.models, *self.own) if self.base is None else (self.models, self.base, *self.own)
        )
        return self.models.shape[1], self.base is None, *(matrix.dtype for matrix in rows)


class Models:
    """Reads pieces of the models, and of their bases; one a thread."""

    def __init__(self, inputs: Inputs, reader: Reader) -> None:
        self._inputs, self._reader = inputs, reader
        bases = inputs.bases
        index = {id(base): i for i, base in enumerate(bases)}
        self._moved = [(k, index[id(b)]) for k, b in enumerate(inputs.own_bases) if b is not None]

    def read(self, piece: Piece, need_base: bool) -> Rows:
        """Read a piece; valid until the next one is read."""
        at = (piece.key, piece.start, piece.stop)
        inputs, reader = self._inputs, self._reader
        models = reader.rows("models", inputs.models, *at)
        # What describes data is no sum of changes: a variance less a change could be negative.
        bases = () if piece.action == "mean" else inputs.bases
        base = None
        if inputs.base is not None and (need_base or bases):
            base = reader.rows("base", [inputs.base], *at)
        own = [reader.rows(f"base {i}", [b], *at) for i, b in enumerate(bases)]
        return Rows(models, base, own)

    def blocks(self, rows: Rows) -> list[Block]:
        """The blocks of a piece in order; of all pieces with the same `shape`."""
        found, reader = [], self._reader
        count, length = rows.models.shape
        for part in blocks(length, count, rows.models.dtype.itemsize):
            wide, copies = reader.widened("models", rows.models[:, part])
            base = None
            if rows.base is not None:
                base, more = reader.widened("base", rows.base[:, part])
                copies += more
            others = []
            for i, matrix in enumerate(rows.own):
                other, more = reader.widened(f"base {i}", matrix[:, part])
                others.append(other[0])
                copies += more
            moved = [(wide[k], others[i]) for k, i in self._moved] if others else []
            found.append(Block(part, wide, None if base is None else base[0], copies, moved))
        return found
