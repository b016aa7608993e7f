"""One piece of a merge: read its range from every input, apply the action, give the bytes away.

All arithmetic of a merge happens here, block by block, on what `reading` has read and with what
`strategies` says. The checks for values that are not finite are here too: they ride along on
numbers that are in the processor's caches anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedavg.arithmetic import squared_distances
from fedavg.engine.pieces import Piece, blocks
from fedavg.engine.reading import Reader, bytes_of, dtype_of
from fedavg.engine.statefile import state_dtype, state_key
from fedavg.formats.base import Checkpoint
from fedavg.rule import Chunk, Kind, Rule
from fedavg.strategies import RULES

Put = Callable[[str, int, memoryview], None]
"""(key, first byte, bytes) of the output."""
Blocks = Callable[[slice], tuple[Tensor, Tensor | None]]
"""A block of a piece to its models (K, n) and its base (n,)."""
PutState = Callable[[str, str, int, memoryview], None]
"""(value, key, first byte, bytes) of the optimiser state."""


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


class NotFinite(Exception):
    """A piece has a value that is not finite, or the rule made one. `faults` finds out which."""

    def __init__(self, piece: Piece) -> None:
        super().__init__(piece)
        self.piece = piece


class Models:
    """The models of a piece as the rule is to see them: each moved onto the common base."""

    def __init__(self, inputs: Inputs, reader: Reader) -> None:
        self._inputs, self._reader = inputs, reader
        bases = inputs.bases
        index = {id(base): i for i, base in enumerate(bases)}
        self._moved = [(k, index[id(b)]) for k, b in enumerate(inputs.own_bases) if b is not None]

    def read(
        self, piece: Piece, need_base: bool
    ) -> Callable[[slice], tuple[Tensor, Tensor | None]]:
        """Read a piece; the result gives of each block the models (K, n) and the base (n,).

        Both in float64, valid until the next block.
        """
        at = (piece.key, piece.start, piece.stop)
        inputs, reader = self._inputs, self._reader
        models = reader.rows("models", inputs.models, *at)
        base = None
        if inputs.base is not None and (need_base or self._moved):
            base = reader.rows("base", [inputs.base], *at)
        own = [reader.rows(f"base {i}", [b], *at) for i, b in enumerate(inputs.bases)]

        def block(part: slice) -> tuple[Tensor, Tensor | None]:
            wide = reader.wide("models", models[:, part])
            x = None if base is None else reader.wide("base", base[:, part])[0]
            for k, i in self._moved:
                assert x is not None
                wide[k].sub_(reader.wide("own", own[i][:, part])[0]).add_(x)
            return wide, x

        return block


class Merger:
    """Merges pieces; one a thread."""

    def __init__(self, rule: Rule, inputs: Inputs, put: Put, put_state: PutState) -> None:
        self._rule, self._inputs = rule, inputs
        self._put, self._put_state = put, put_state
        self._reader = Reader()
        self._models = Models(inputs, self._reader)
        self._initial = rule.initial_state()

    def __call__(self, piece: Piece) -> None:
        """Merge one piece and write it. NotFinite, and whatever reading and writing raise."""
        averages = piece.action in ("rule", "mean")
        out = self._averaged(piece) if averages else self._copied(piece)
        itemsize = self._inputs.models[0].entries[piece.key].itemsize
        self._put(piece.key, piece.start * itemsize, bytes_of(out))

    def _averaged(self, piece: Piece) -> Tensor:
        kind = self._rule.kind if piece.action == "rule" else without_step(self._rule.kind)
        count = piece.stop - piece.start
        block = self._models.read(piece, kind.needs_base)
        state = self._read_state(piece, kind)
        dtype = dtype_of(self._inputs.models[0].entries[piece.key].dtype)
        reader, inputs = self._reader, self._inputs
        out = reader.space("out", 1, count, dtype)[0]
        # What lies between the models is in the range of their type, and a sum tells the rest.
        steps = kind.needs_base or bool(inputs.bases)
        for part in blocks(count, len(self._inputs.models)):
            models, x = block(part)
            wide = {name: reader.wide(name, kept[None, part])[0] for name, kept in state.items()}
            if kind.robust and not is_finite(models):
                raise NotFinite(piece)
            room = reader.space("room", 1, models.shape[1], torch.float64)[0]
            chunk = Chunk(models, inputs.weights, x, wide, inputs.staleness, room)
            value, kept = kind.apply(chunk, self._rule.numbers)
            if not (fits(value, dtype) if steps else is_finite(value)):
                raise NotFinite(piece)
            out[part].copy_(value)
            for name, values in kept.items():
                if not fits(values, state[name].dtype):
                    raise NotFinite(piece)
                state[name][part].copy_(values)
        self._write_state(piece, state)
        return out

    def _copied(self, piece: Piece) -> Tensor:
        inputs, at = self._inputs, (piece.key, piece.start, piece.stop)
        if piece.action == "max":
            rows = self._reader.rows("models", inputs.models, *at)
            if rows.dtype.is_floating_point and not is_finite(rows):
                raise NotFinite(piece)
            return largest(rows)
        source = inputs.models[0] if piece.action == "first" else inputs.base
        assert source is not None, "the plan has a base where an action takes it"
        return self._reader.rows("models", [source], *at)[0]

    def _read_state(self, piece: Piece, kind: Kind) -> dict[str, Tensor]:
        entry = self._inputs.models[0].entries[piece.key]
        old, count = self._inputs.state, piece.stop - piece.start
        found = {}
        for name in kind.state:
            if old is not None:
                at = (state_key(name, piece.key), piece.start, piece.stop)
                found[name] = self._reader.rows(f"state {name}", [old], *at)[0]
            else:
                dtype = dtype_of(state_dtype(entry))
                found[name] = self._reader.space(f"state {name}", 1, count, dtype)[0]
                found[name].fill_(self._initial[name])
        return found

    def _write_state(self, piece: Piece, state: dict[str, Tensor]) -> None:
        for name, values in state.items():
            place = piece.start * values.dtype.itemsize
            self._put_state(name, piece.key, place, bytes_of(values))


class Measurer:
    """Squared distances between the models within pieces; one a thread."""

    def __init__(self, inputs: Inputs, put: Callable[[int, Tensor], None]) -> None:
        self._count, self._put = len(inputs.models), put
        self._models = Models(inputs, Reader())

    def __call__(self, numbered: tuple[int, Piece]) -> None:
        """Hand on the (K, K) distances of one piece by its number. NotFinite."""
        index, piece = numbered
        block = self._models.read(piece, False)
        total = torch.zeros(self._count, self._count, dtype=torch.float64)
        for part in blocks(piece.stop - piece.start, self._count):
            total += squared_distances(block(part)[0])
        if not is_finite(total):
            raise NotFinite(piece)
        self._put(index, total)


def without_step(kind: Kind) -> Kind:
    """The rule for what no server's step may move: itself if it makes none."""
    return RULES["fedavg"] if kind.needs_base else kind


def largest(rows: Tensor) -> Tensor:
    """Per coordinate; torch has no maximum of the wider unsigned types, so these go by numpy."""
    if rows.dtype in (torch.uint16, torch.uint32, torch.uint64):
        return torch.from_numpy(rows.numpy().max(axis=0))
    return rows.amax(dim=0)


def is_finite(values: Tensor) -> bool:
    """Whether no value is NaN or infinite: by a sum, and by a look at each where that overflows."""
    total = float(values.sum(dtype=torch.float64))
    return math.isfinite(total) or bool(torch.isfinite(values).all())


def fits(values: Tensor, dtype: torch.dtype) -> bool:
    """Whether float64 `values` are finite, and stay so when they are cast."""
    low, high = torch.aminmax(values)  # NaN where there is one
    limit = torch.finfo(dtype).max
    if -limit <= float(low) and float(high) <= limit:
        return True
    return bool(torch.isfinite(values.to(dtype)).all())
