"""Which tensors of a file share bytes, and whose they are when they are written.

Tied weights are two entries with one storage. Written twice from several threads, the bytes would
depend on who came last; written separately, they would no longer be tied. So one of them owns the
bytes, and the others are views of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from fedavg.formats.nodes import Tensor
from fedavg.formats.strided import is_row_major


def owners(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """For each key the key that owns its bytes, mostly itself.

    A tensor is owned by another that has its exact place, or that is row-major and covers all of
    its bytes: the larger one, or the first. Tensors that overlap in any other way own what they
    are, each for itself: then the output holds those bytes twice.
    """
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    found: dict[str, str] = {}
    for key, tensor in tensors.items():
        if 0 in tensor.shape:
            found[key] = key
        else:
            groups[tensor.storage.key, tensor.dtype].append(key)
    for keys in groups.values():
        found.update(_sweep(keys, tensors))
    return found


def _sweep(keys: list[str], tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Owners within one storage: by where a tensor begins, the longest first."""
    found: dict[str, str] = {}
    same: dict[tuple[object, ...], str] = {}
    order = []
    for index, key in enumerate(keys):
        t = tensors[key]
        end = t.offset + sum((n - 1) * s for n, s in zip(t.shape, t.strides, strict=True)) + 1
        order.append((t.offset, -end, not is_row_major(t.shape, t.strides), index, key))
    best, reach = "", 0
    for _, minus_end, gaps, _, key in sorted(order):
        t = tensors[key]
        if best and -minus_end <= reach:
            found[key] = best
        elif gaps:
            found[key] = same.setdefault((t.offset, t.shape, t.strides), key)
        else:
            found[key] = best = key
            reach = -minus_end
    return found
