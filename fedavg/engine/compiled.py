"""Whether there are compiled loops for a merge, and for which types.

They are worth their import (half a second, and a second of compiling the first time ever) for what
takes longer than that. Whether a merge uses them changes none of its bytes.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedavg.engine.reading import Reader
from fedavg.formats.base import Checkpoint
from fedavg.formats.places import at_once

log = logging.getLogger(__name__)

WORTH = 256 << 20
"""Bytes of all models of a merge from which on the loops are loaded."""

ROOM = 512 << 10
"""Bytes of all models together that a loop reads at once: they stay in a second-level cache."""

LEAST_READ = 16 << 10
"""Bytes of one model that it reads at least."""

MeanOf = Callable[[Any, Any, Any, Any, float, Any], bool]
"""(descriptors, offsets, room (K, any), weights (K,), factor, out (n,)): see `kernels`."""

SEEN_AS = {torch.float32: torch.float32, torch.bfloat16: torch.uint16}
"""The types that have a loop, and what numpy knows them by."""


@functools.cache
def loops() -> Mapping[torch.dtype, MeanOf]:
    """The loop for each type; none where numba is missing or does not work here."""
    try:
        from fedavg.engine import kernels
    except ImportError:
        return {}
    except Exception as error:  # a compiler that does not know this machine must stop no merge
        log.warning("numba is installed but does not work here, merges do without: %s", error)
        return {}
    return {torch.float32: kernels.mean_of_floats, torch.bfloat16: kernels.mean_of_bfloats}


class CompiledMeans:
    """Takes weighted means of pieces straight from their files; one a thread."""

    def __init__(
        self, models: Sequence[Checkpoint], weights: Tensor, factor: float, reader: Reader
    ) -> None:
        self._models, self._reader = models, reader
        self._weights, self._factor = weights.numpy(), factor
        size = sum(entry.nbytes for entry in models[0].entries.values())
        self._loops = loops() if size * len(models) >= WORTH else {}

    def take(self, key: str, start: int, out: Tensor) -> bool:
        """Write the mean of the elements from `start` on to `out`, as `Means.take` does.

        False, and `out` is of no use, where there is no loop for them or a file cannot be read so:
        the usual way says what is wrong with it.
        """
        loop = self._loops.get(out.dtype)
        if loop is None:
            return False
        count, itemsize = len(self._models), out.dtype.itemsize
        width = max(ROOM // count, LEAST_READ) // itemsize
        room = self._reader.space("room of a loop", count, width, out.dtype)
        with ExitStack() as stack:
            spots = []
            for model in self._models:
                place = at_once(model.entries[key])
                if place is None:
                    return False
                fd = stack.enter_context(place.source.lent())
                spots.append((fd, place.offset + start * itemsize))
            fds, offsets = np.array(spots, np.int64).T.copy()
            return loop(fds, offsets, _array(room), self._weights, self._factor, _array(out))


def _array(values: Tensor) -> Any:
    """A tensor of one of the types as the array that its loop takes, not copied."""
    return values.view(SEEN_AS[values.dtype]).numpy()
