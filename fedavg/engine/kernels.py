"""Weighted means straight from files, in loops that numba compiles: imported where that is there.

torch makes a mean of calls that each go over the numbers once: widen, multiply, scale, narrow. Here
some KiB of every file are read, and while they lie in the processor's cache their numbers are
summed in float64, which then costs no more than float32. All that is one call, during which another
thread may run Python.

Sums are made in the order of the models: that makes the bytes those of `arithmetic.weighted_mean`
where no product of a weight and a number needs rounding, which `compiled` sees to. For then it is
all one whether it is rounded before it is added, and the processor may do both in one operation;
that it may is the only freedom that the compiler has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

BLOCK = 512
"""Elements whose sums are in work at once: 4 KiB, which stay in the first cache."""

FREEDOM = {"contract"}
"""What LLVM may do to arithmetic: a product and a sum in one operation, which rounds once."""

HOW: dict[str, Any] = {"nogil": True, "fastmath": FREEDOM}
"""How loops are compiled."""

pread: Any = types.ExternalFunction(
    "pread", types.int64(types.int32, types.voidptr, types.uint64, types.int64)
)
"""The C library's."""


def compiled(signature: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that compiles for one signature, at once, and keeps the result on disk if it can.

    numba keeps it beside this file, or in the user's cache folder; where it may write to neither,
    or what lies there is damaged, every process compiles anew, which takes some seconds.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            found: Callable[..., Any] = njit(signature, cache=True, **HOW)(function)
        except Exception:  # whatever is wrong with the cache: numba never mends one that was cut
            found = njit(signature, **HOW)(function)
        return found

    return decorate


inlined = njit(error_model="numpy", fastmath=FREEDOM)
"""For parts of them."""


@inlined
def _read(
    fds: NDArray[np.int64], offsets: NDArray[np.int64], done: int, rows: Any, size: int
) -> bool:
    """Fill the first `size` bytes of row k from byte offsets[k] + done of fds[k].

    False where a file ends or cannot be read; why is for others to find out.
    """
    for k in range(len(fds)):
        at = 0
        while at < size:
            got = pread(fds[k], rows[k, at:].ctypes, size - at, offsets[k] + done + at)
            if got <= 0:
                return False
            at += got
    return True


@inlined
def _add_four(
    before: float, u: float, a: float, v: float, b: float, w: float, c: float, x: float, d: float
) -> float:
    return before + u * a + v * b + w * c + x * d


@inlined
def _sum(rows: Any, start: int, stop: int, weights: NDArray[np.float64], total: Any) -> None:
    """Put Σ weights[k] rows[k, start:stop] of float32 into `total`."""
    count, k = len(rows), 0
    if count < 4:
        total[:] = 0.0
    while k + 3 < count:  # four at a time: a sum is loaded and stored a quarter as often
        a, b = rows[k, start:stop], rows[k + 1, start:stop]
        c, d = rows[k + 2, start:stop], rows[k + 3, start:stop]
        u, v, w, x = weights[k], weights[k + 1], weights[k + 2], weights[k + 3]
        if k == 0:
            for j in range(len(total)):
                total[j] = _add_four(0.0, u, a[j], v, b[j], w, c[j], x, d[j])
        else:
            for j in range(len(total)):
                total[j] = _add_four(total[j], u, a[j], v, b[j], w, c[j], x, d[j])
        k += 4
    while k < count:
        a, u = rows[k, start:stop], weights[k]
        for j in range(len(total)):
            total[j] += u * a[j]
        k += 1


def _checking(unsigned: Any, size: int, infinity: int) -> Callable[[Any], bool]:
    """Whether numbers are finite, given their bits as integers; `size` are all but the sign."""
    mask, limit = unsigned(size), unsigned(infinity)

    @inlined
    def finite(bits: Any) -> bool:
        largest = unsigned(0)
        for j in range(len(bits)):
            number = unsigned(bits[j] & mask)
            largest = number if number > largest else largest
        return bool(largest < limit)

    return finite


_floats_are_finite = _checking(np.uint32, 0x7FFFFFFF, 0x7F800000)


@compiled("boolean(int64[::1], int64[::1], float32[:,::1], float64[::1], float64, float32[::1])")
def mean_of_floats(
    fds: NDArray[np.int64],
    offsets: NDArray[np.int64],
    room: NDArray[np.float32],
    weights: NDArray[np.float64],
    factor: float,
    out: NDArray[np.float32],
) -> bool:
    """Write factor x Σ weights[k] x_k to `out` (n,), x_k being n numbers from offsets[k] of fds[k].

    `room` (K, any) is for what is read at once. False, and `out` is of no use, where a file cannot
    be read (`_read`) or a result is not finite.
    """
    width, sums, finite = room.shape[1], np.empty(BLOCK, np.float64), True
    for begin in range(0, len(out), width):
        there = min(width, len(out) - begin)
        if not _read(fds, offsets, begin * 4, room.view(np.uint8), there * 4):
            return False
        for start in range(0, there, BLOCK):
            stop = min(start + BLOCK, there)
            total, result = sums[: stop - start], out[begin + start : begin + stop]
            _sum(room, start, stop, weights, total)
            for j in range(len(total)):
                result[j] = total[j] * factor
            finite = finite and _floats_are_finite(result.view(np.uint32))
    return finite


@inlined
def _widen(rows: Any, start: int, stop: int, wide: Any) -> None:
    """Put rows[:, start:stop] into the first columns of `wide`, as the upper halves of float32."""
    for k in range(len(rows)):
        narrow, words = rows[k, start:stop], wide[k]
        for j in range(len(narrow)):
            words[j] = np.uint32(narrow[j]) << np.uint32(16)


_bfloats_are_finite = _checking(np.uint16, 0x7FFF, 0x7F80)


@compiled("boolean(int64[::1], int64[::1], uint16[:,::1], float64[::1], float64, uint16[::1])")
def mean_of_bfloats(
    fds: NDArray[np.int64],
    offsets: NDArray[np.int64],
    room: NDArray[np.uint16],
    weights: NDArray[np.float64],
    factor: float,
    out: NDArray[np.uint16],
) -> bool:
    """The same for bfloat16: by way of float32, as in torch, and to even where halfway."""
    width, finite = room.shape[1], True
    sums, words = np.empty(BLOCK, np.float64), np.empty(BLOCK, np.uint32)
    wide = np.empty((len(fds), BLOCK), np.uint32)
    for begin in range(0, len(out), width):
        there = min(width, len(out) - begin)
        if not _read(fds, offsets, begin * 2, room.view(np.uint8), there * 2):
            return False
        for start in range(0, there, BLOCK):
            stop = min(start + BLOCK, there)
            n = stop - start
            total, bits, result = sums[:n], words[:n], out[begin + start : begin + stop]
            _widen(room, start, stop, wide)
            _sum(wide.view(np.float32), 0, n, weights, total)
            value = bits.view(np.float32)
            for j in range(n):
                value[j] = total[j] * factor
            for j in range(n):
                odd = (bits[j] >> np.uint32(16)) & np.uint32(1)
                result[j] = (bits[j] + np.uint32(0x7FFF) + odd) >> np.uint32(16)
            finite = finite and _bfloats_are_finite(result)
    return finite
