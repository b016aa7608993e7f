"""Whether there are compiled loops for a merge, and for which types.

They are worth their import (less than a second, and some seconds of compiling the first time ever)
for what takes longer than that. Whether a merge uses them changes none of its bytes.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedavg.arithmetic import shares
from fedavg.engine import selfcheck
from fedavg.engine.inputs import Inputs
from fedavg.engine.reading import Reader
from fedavg.formats.base import Checkpoint
from fedavg.formats.places import at_once
from fedavg.formats.source import lent
from fedavg.policy import Action
from fedavg.rule import Kind
from fedavg.strategies import applied

log = logging.getLogger(__name__)

WORTH = 256 << 20
"""Bytes of all models of a merge from which on the loops are loaded."""

ROOM = 512 << 10
"""Bytes of all models together that a loop reads at once: they stay in a second-level cache."""

LEAST_READ = 16 << 10
"""Bytes of one model that it reads at least."""

AHEAD = 3
"""Pieces of a file that are to be in memory when one is begun: it, and those that come next."""

MOST_MODELS = 128
"""Models whose files may be open all at once; a process may often hold no more than 1,024."""

BITS = {torch.float32: 24, torch.bfloat16: 8}
"""Significant bits of the numbers of each type."""

FLOAT64_BITS = 53
"""Those of the sums."""

LEAST_WEIGHT = 2.0**-512
"""With this one, of 1 at most, all products with normal or subnormal numbers are normal ones."""

MeanOf = Callable[[Any, Any, Any, Any, Any, float, Any], bool]
"""(descriptors, offsets, lengths to fetch, room (K, any), weights (K,), factor, out (n,)): see
`kernels`."""

SEEN_AS = {torch.float32: torch.float32, torch.bfloat16: torch.uint16}
"""The types that have a loop, and what numpy knows them by."""


@functools.cache
def loops() -> Mapping[torch.dtype, MeanOf]:
    """The loop for each type; none where numba is missing or does not work here."""
    try:
        from fedavg.engine import kernels

        found = {torch.float32: kernels.mean_of_floats, torch.bfloat16: kernels.mean_of_bfloats}
        wrong = selfcheck.differing(found, _array)
    except ImportError:
        return {}
    except Exception as error:  # a compiler that does not know this machine must stop no merge
        log.warning("numba is installed but does not work here, merges do without: %s", error)
        return {}
    if wrong is not None:
        log.warning("numba's loops do not give torch's bytes here, merges do without: %s", wrong)
    return found if wrong is None else {}


def streamed_keys(kind: Kind, inputs: Inputs, actions: Mapping[str, Action]) -> frozenset[str]:
    """The keys that loops merge: plain means of a type that has one, a row of bytes in each file.

    None where the models are too small to load the loops for, too many to have all of them open, or
    have to be moved to one base; and none of a type for which a product of a weight and a number
    may need rounding: one library rounds it before it is added, another does not.
    """
    entries, count = inputs.models[0].entries, len(inputs.models)
    size = sum(entry.nbytes for entry in entries.values()) * count
    if size < WORTH or count > MOST_MODELS or inputs.bases or min(inputs.weights) < LEAST_WEIGHT:
        return frozenset()
    left = FLOAT64_BITS - max(map(significant_bits, inputs.weights))
    types = {str(dtype).removeprefix("torch.") for dtype in loops() if BITS[dtype] <= left}
    return frozenset(
        key
        for key, action in actions.items()
        if action in ("rule", "mean")
        and applied(kind, action).mean
        and entries[key].dtype in types
        and all(at_once(model.entries[key]) for model in inputs.models)
    )


def significant_bits(number: float) -> int:
    """How many bits a positive number's fraction has, from the first one to the last."""
    whole = int(math.ldexp(math.frexp(number)[0], FLOAT64_BITS))
    return FLOAT64_BITS - (whole & -whole).bit_length() + 1


class _Rows:
    """Where one tensor lies in the files of all models."""

    def __init__(self, models: Sequence[Checkpoint], key: str) -> None:
        places = [place for model in models if (place := at_once(model.entries[key]))]
        assert len(places) == len(models), "only keys that lie in a row are streamed"
        self.sources = [place.source for place in places]
        self.offsets = np.array([place.offset for place in places], np.int64)
        self._ends = np.array([place.source.size for place in places], np.int64)

    def ahead(self, first: int, size: int) -> Any:
        """How many bytes of each file are to be in memory soon, as `size` from `first` on begin."""
        return np.minimum(AHEAD * size, self._ends - self.offsets - first)


class Streams:
    """Takes weighted means of pieces straight from their files; one a thread."""

    def __init__(self, inputs: Inputs, keys: Set[str], reader: Reader) -> None:
        self._models, self._keys, self._reader = inputs.models, keys, reader
        self._weights, self._factor = shares(inputs.weights)
        self._last: tuple[str, _Rows] | None = None

    def take(self, key: str, start: int, out: Tensor) -> bool:
        """Write the mean of the elements from `start` on to `out`, as `Means.take` does.

        False, and `out` is of no use, where `key` is none of the keys, a file cannot be read so, or
        a result is not finite: the usual way says what is wrong.
        """
        if key not in self._keys:
            return False
        itemsize, loop = out.dtype.itemsize, loops()[out.dtype]
        width = max(ROOM // len(self._models), LEAST_READ) // itemsize
        room = self._reader.space("room of a loop", len(self._models), width, out.dtype)
        rows, first = self._rows(key), start * itemsize
        with lent(rows.sources) as fds:
            return loop(
                np.array(fds, np.int64),
                rows.offsets + first,
                rows.ahead(first, out.nbytes),
                _array(room),
                self._weights.numpy(),
                self._factor,
                _array(out),
            )

    def _rows(self, key: str) -> _Rows:
        """Of a key; its pieces mostly follow each other."""
        if self._last is None or self._last[0] != key:
            self._last = key, _Rows(self._models, key)
        return self._last[1]


def _array(values: Tensor) -> Any:
    """A tensor of one of the types as the array that its loop takes, not copied."""
    return values.view(SEEN_AS[values.dtype]).numpy()
