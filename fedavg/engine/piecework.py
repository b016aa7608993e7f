"""One piece of a merge: read its range from every input, apply the action, give the bytes away.

All arithmetic of a merge happens here, block by block, on what `reading` has read and with what
`strategies` says. The checks for values that are not finite are here too: they ride along on
numbers that are in the processor's caches anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

import torch
from torch import Tensor

from fedavg.arithmetic import squared_distances
from fedavg.engine.compiled import Streams
from fedavg.engine.inputs import Block, Inputs, Models, Rows
from fedavg.engine.means import Means
from fedavg.engine.pieces import Piece
from fedavg.engine.reading import Copies, Reader, bytes_of, dtype_of
from fedavg.engine.statefile import state_dtype, state_key
from fedavg.rule import Chunk, Kind, Rule
from fedavg.strategies import applied

Put = Callable[[str, int, memoryview], None]
"""(key, first byte, bytes) of the output."""
PutState = Callable[[str, str, int, memoryview], None]
"""(value, key, first byte, bytes) of the optimiser state."""


class NotFinite(Exception):
    """A piece has a value that is not finite, or the rule made one. `faults` finds out which."""

    def __init__(self, piece: Piece) -> None:
        super().__init__(piece)
        self.piece = piece


@dataclass(frozen=True)
class _Task:
    """A block with what the rule sees of it, and where its results go."""

    block: Block
    copies: Copies
    chunk: Chunk
    out: Tensor
    state: Mapping[str, Tensor]


class Merger:
    """Merges pieces; one a thread. Those of keys in `streamed` by way of compiled loops."""

    def __init__(
        self, rule: Rule, inputs: Inputs, streamed: Set[str], put: Put, put_state: PutState
    ) -> None:
        self._rule, self._inputs = rule, inputs
        self._put, self._put_state = put, put_state
        self._reader = Reader()
        self._models = Models(inputs, self._reader)
        self._means = Means(self._models, self._reader, inputs.weights)
        self._streams = Streams(inputs, streamed, self._reader)
        self._initial = rule.initial_state()

    def __call__(self, piece: Piece) -> None:
        """Merge one piece and write it. NotFinite, and whatever reading and writing raise."""
        averages = piece.action in ("rule", "mean")
        out = self._averaged(piece) if averages else self._copied(piece)
        itemsize = self._inputs.models[0].entries[piece.key].itemsize
        self._put(piece.key, piece.start * itemsize, bytes_of(out))

    def _averaged(self, piece: Piece) -> Tensor:
        kind = applied(self._rule.kind, piece.action)
        count = piece.stop - piece.start
        dtype = dtype_of(self._inputs.models[0].entries[piece.key].dtype)
        out = self._reader.space("out", 1, count, dtype)[0]
        if self._streams.take(piece.key, piece.start, out):
            return out
        state = self._read_state(piece, kind)
        rows = self._models.read(piece, kind.needs_base)
        if kind.mean and not rows.own:
            self._means.take(rows, out)
        else:
            self._apply(piece, kind, rows, out, state)
        if not all(is_finite(values) for values in (out, *state.values())):
            raise NotFinite(piece)
        self._write_state(piece, state)
        return out

    def _apply(
        self, piece: Piece, kind: Kind, rows: Rows, out: Tensor, state: dict[str, Tensor]
    ) -> None:
        """Apply the rule block by block. NotFinite for a rule that would hide what is not."""
        numbers = self._rule.numbers
        key = (kind.name, *rows.shape, *(kept.dtype for kept in state.values()))
        for task in self._reader.once(key, lambda: self._tasks(rows, out, state)):
            task.block.widen()
            for wide, values in task.copies:
                wide.copy_(values)
            if kind.robust and not is_finite(task.chunk.models):
                raise NotFinite(piece)
            value, new = kind.apply(task.chunk, numbers)
            task.out.copy_(value)
            for name, values in new.items():
                task.state[name].copy_(values)

    def _tasks(self, rows: Rows, out: Tensor, state: dict[str, Tensor]) -> list[_Task]:
        reader, inputs, tasks = self._reader, self._inputs, []
        for block in self._models.blocks(rows):
            part, wide = block.part, {}
            copies: Copies = ()
            for name, kept in state.items():
                values, more = reader.widened(name, kept[None, part])
                wide[name] = values[0]
                copies += more
            room = reader.space("room", 1, block.models.shape[1], torch.float64)[0]
            chunk = Chunk(block.models, inputs.weights, block.base, wide, inputs.staleness, room)
            places = {name: kept[part] for name, kept in state.items()}
            tasks.append(_Task(block, copies, chunk, out[part], places))
        return tasks

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
            kept = state_key(name, piece.key)
            if old is not None and kept in old.entries:
                at = (kept, piece.start, piece.stop)
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
        self._reader = Reader()
        self._models = Models(inputs, self._reader)

    def __call__(self, numbered: tuple[int, Piece]) -> None:
        """Hand on the (K, K) distances of one piece by its number. NotFinite."""
        index, piece = numbered
        total = torch.zeros(self._count, self._count, dtype=torch.float64)
        rows = self._models.read(piece, False)
        for block in self._reader.once(rows.shape, lambda: self._models.blocks(rows)):
            block.widen()
            total += squared_distances(block.models)
        if not is_finite(total):
            raise NotFinite(piece)
        self._put(index, total)


def largest(rows: Tensor) -> Tensor:
    """Per coordinate; torch has no maximum of the wider unsigned types, so these go by numpy."""
    if rows.dtype in (torch.uint16, torch.uint32, torch.uint64):
        return torch.from_numpy(rows.numpy().max(axis=0))
    return rows.amax(dim=0)


def is_finite(values: Tensor) -> bool:
    """Whether no value is NaN or infinite: by a sum, and by a look at each where that overflows."""
    total = float(values.sum())
    return math.isfinite(total) or bool(torch.isfinite(values).all())


def fits(values: Tensor, dtype: torch.dtype) -> bool:
    """Whether float64 `values` are finite, and stay so when they are cast."""
    low, high = torch.aminmax(values)  # NaN where there is one
    limit = torch.finfo(dtype).max
    if -limit <= float(low) and float(high) <= limit:
        return True
    return bool(torch.isfinite(values.to(dtype)).all())
