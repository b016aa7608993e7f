"""Pieces of a strided tensor, in row-major order, with few and bounded reads.

A tensor in a file may be a transposed matrix or every second column of a larger one. A piece of it
in row-major order is cut into boxes; a box whose bytes lie close together is read at once and
gathered, any other is halved along the dimension that spreads it most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

Shape = tuple[int, ...]

WASTE = 4
"""A box is read with its gaps as long as these make it at most so many times as large, …"""
SMALL = 64 << 10
"""… or while it spans no more than these bytes: a read costs about as much as copying them."""
LARGE = 4 << 20
"""Bytes that one read spans at most, and so the memory of a thread."""


def row_major(shape: Shape) -> Shape:
    """The strides, in elements, of a tensor without gaps."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def is_row_major(shape: Shape, strides: Shape) -> bool:
    """Whether elements lie in row-major order without gaps; sizes of 1 have no say."""
    if 0 in shape:
        return True
    pairs = zip(shape, strides, row_major(shape), strict=True)
    return all(n == 1 or s == want for n, s, want in pairs)


def boxes(shape: Shape, start: int, stop: int) -> Iterator[tuple[Shape, Shape]]:
    """(origin, size) of boxes that together are elements [start, stop), in row-major order."""
    if start >= stop:
        return
    if not shape:
        yield (), ()
        return
    inner = prod(shape[1:])
    first, head = divmod(start, inner)
    last, tail = divmod(stop, inner)
    if first == last:
        yield from _below(first, shape[1:], head, tail)
        return
    if head:
        yield from _below(first, shape[1:], head, inner)
        first += 1
    if first < last:
        yield (first, *(0,) * (len(shape) - 1)), (last - first, *shape[1:])
    if tail:
        yield from _below(last, shape[1:], 0, tail)


def _below(index: int, shape: Shape, start: int, stop: int) -> Iterator[tuple[Shape, Shape]]:
    for origin, size in boxes(shape, start, stop):
        yield (index, *origin), (1, *size)


def gather(
    read: Callable[[int, memoryview], None],
    shape: Shape,
    strides: Shape,
    itemsize: int,
    start: int,
    stop: int,
    buffer: memoryview,
) -> None:
    """Fill `buffer` with elements [start, stop) of the row-major tensor.

    `read(offset, view)` reads bytes at an offset from the tensor's first element.
    """
    import numpy

    kind = numpy.dtype(f"V{itemsize}")
    done = 0
    for origin, size in boxes(shape, start, stop):
        count = prod(size)
        target = numpy.ndarray(size, kind, buffer, done * itemsize)
        at = sum(o * s for o, s in zip(origin, strides, strict=True))
        for where, part, view in _readable(at, size, strides, itemsize, target):
            raw = bytearray(_span(part, strides) * itemsize)
            read(where * itemsize, memoryview(raw))
            steps = tuple(s * itemsize for s in strides)
            view[...] = numpy.ndarray(part, kind, raw, 0, steps)
        done += count


def _span(size: Shape, strides: Shape) -> int:
    return sum((n - 1) * s for n, s in zip(size, strides, strict=True)) + 1


def _readable(
    at: int, size: Shape, strides: Shape, itemsize: int, target: Any
) -> Iterator[tuple[int, Shape, Any]]:
    """Halve a box until each part is worth one read: (offset in elements, size, its target)."""
    stack = [(at, size, target)]
    while stack:
        at, size, target = stack.pop()
        span, need = _span(size, strides) * itemsize, prod(size) * itemsize
        if span <= max(SMALL, min(LARGE, WASTE * need)) or prod(size) == 1:
            yield at, size, target
            continue
        spread = [(n - 1) * s for n, s in zip(size, strides, strict=True)]
        axis = spread.index(max(spread))
        half = size[axis] // 2
        for begin, length in ((half, size[axis] - half), (0, half)):
            part = (*size[:axis], length, *size[axis + 1 :])
            cut = (*(slice(None),) * axis, slice(begin, begin + length))
            stack.append((at + begin * strides[axis], part, target[cut]))
