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

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

BLOCK = 2048
"""Elements whose sums are in work at once: 16 KiB, which stay in the first cache."""

FREEDOM = {"contract"}
"""What LLVM may do to arithmetic: a product and a sum in one operation, which rounds once."""

HOW: dict[str, Any] = {"nogil": True, "fastmath": FREEDOM}
"""How loops are compiled."""

pread: Any = types.ExternalFunction(
    "pread", types.int64(types.int32, types.voidptr, types.uint64, types.int64)
)
preadv2: Any = types.ExternalFunction(
    "preadv2", types.int64(types.int32, types.voidptr, types.int32, types.int64, types.int32)
)
posix_fadvise: Any = types.ExternalFunction(
    "posix_fadvise", types.int32(types.int32, types.int64, types.int64, types.int32)
)
"""The C library's. Python's own give the interpreter away and take it again, which costs more."""

NOWAIT, WILLNEED = os.RWF_NOWAIT, os.POSIX_FADV_WILLNEED


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
def fetch(
    fds: NDArray[np.int64], offsets: NDArray[np.int64], lengths: NDArray[np.int64], room: Any
) -> int:
    """Have the system begin to fetch what it lacks of lengths[k] bytes from offsets[k] of fds[k].

    Small reads that go round many files would not make it. To ask it for what it has costs as much
    as a tenth of reading that; so it is asked first whether it could give the last byte at once.
    `room` is for that byte. Gives for how many files it was told.
    """
    told, vector = 0, np.empty(2, np.int64)  # an iovec
    vector[0], vector[1] = room.ctypes.data, 1
    for k in range(len(fds)):
        last = offsets[k] + lengths[k] - 1
        if preadv2(fds[k], vector.ctypes, 1, last, NOWAIT) != vector[1]:
            posix_fadvise(fds[k], offsets[k], lengths[k], WILLNEED)
            told += 1
    return told


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
def _four_from(count: int, width: int, weights: NDArray[np.float64], k: int, start: int) -> Any:
    """Where four rows of `width` begin, from row k on, and their weights; see `_loops`."""
    last = count - 1
    begins = (
        np.uint64(k * width + start),
        np.uint64(min(k + 1, last) * width + start),
        np.uint64(min(k + 2, last) * width + start),
        np.uint64(min(k + 3, last) * width + start),
    )
    shares = (
        weights[k],
        weights[k + 1] if k + 1 <= last else 0.0,
        weights[k + 2] if k + 2 <= last else 0.0,
        weights[k + 3] if k + 3 <= last else 0.0,
    )
    return begins, shares


def _loops(wide: Callable[[Any], float], narrow: Callable[[float], Any]) -> Callable[..., None]:
    """A loop that puts factor x Σ weights[k] rows[k, start:stop] into `result`, by way of `total`.

    `wide` makes a number of float64 of one of a file, `narrow` makes one of those of a result. The
    last eight models or fewer are summed in registers; a loop that stores no sums has the processor
    take as many numbers at once as numbers of the file fit, not as sums do, and is faster by half.
    Where there are fewer, the last of them takes the empty places, with a weight of zero.
    """

    @inlined
    def four(before: float, rows: Any, begins: Any, shares: Any, j: Any) -> Any:
        a, b = wide(rows[begins[0] + j]), wide(rows[begins[1] + j])
        c, d = wide(rows[begins[2] + j]), wide(rows[begins[3] + j])
        return before + shares[0] * a + shares[1] * b + shares[2] * c + shares[3] * d

    @inlined
    def loop(matrix: Any, start: int, weights: Any, factor: float, total: Any, result: Any) -> None:
        (count, width), rows = matrix.shape, matrix.reshape(-1)
        k, n = 0, np.uint64(len(result))
        while count - k > 8:
            a, u = _four_from(count, width, weights, k, start)
            for j in range(n):
                total[j] = four(total[j] if k else 0.0, rows, a, u, j)
            k += 4
        a, u = _four_from(count, width, weights, k, start)
        if count <= 4:
            for j in range(n):
                result[j] = narrow(four(0.0, rows, a, u, j) * factor)
            return
        b, v = _four_from(count, width, weights, k + 4, start)
        if count <= 8:
            for j in range(n):
                result[j] = narrow(four(four(0.0, rows, a, u, j), rows, b, v, j) * factor)
        else:
            for j in range(n):
                result[j] = narrow(four(four(total[j], rows, a, u, j), rows, b, v, j) * factor)

    return loop


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


def _over_files(unsigned: Any, loop: Any, finite: Callable[[Any], bool]) -> Any:
    """A function as `mean_of_floats` that calls `loop`, for numbers as wide as `unsigned`.

    Not compiled by itself: numba finds nothing again that was made in a function.
    """
    size = np.dtype(unsigned).itemsize

    @inlined
    def mean(
        fds: NDArray[np.int64],
        offsets: NDArray[np.int64],
        lengths: NDArray[np.int64],
        room: NDArray[Any],
        weights: NDArray[np.float64],
        factor: float,
        out: NDArray[Any],
    ) -> bool:
        width, sums, right = room.shape[1], np.empty(BLOCK, np.float64), True
        fetch(fds, offsets, lengths, room)
        for begin in range(0, len(out), width):
            there = min(width, len(out) - begin)
            if not _read(fds, offsets, begin * size, room.view(np.uint8), there * size):
                return False
            for start in range(0, there, BLOCK):
                stop = min(start + BLOCK, there)
                result = out[begin + start : begin + stop]
                loop(room, start, weights, factor, sums, result)
                right = right and finite(result.view(unsigned))
        return right

    return mean


def _seen_as(target: Any, source: Any) -> Any:
    """A function that gives the number of type `target` which has the bits of one of `source`."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(signature.return_type))

    @intrinsic
    def cast(_: Any, number: Any) -> Any:
        return target(source), code

    return cast


_as_float = _seen_as(types.float32, types.uint32)
_as_bits = _seen_as(types.uint32, types.float32)


@inlined
def _wide_float(number: Any) -> float:
    return np.float64(number)


@inlined
def _narrow_float(number: float) -> Any:
    return np.float32(number)


@inlined
def _wide_bfloat(bits: Any) -> float:
    """bfloat16 is the upper half of float32."""
    return np.float64(_as_float(np.uint32(bits) << np.uint32(16)))


@inlined
def _narrow_bfloat(number: float) -> Any:
    """By way of float32, as in torch, and to even where halfway."""
    bits = _as_bits(np.float32(number))
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return np.uint16((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))


TYPES = "boolean(int64[::1], int64[::1], int64[::1], {0}[:,::1], float64[::1], float64, {0}[::1])"

_mean_of_floats = _over_files(
    np.uint32,
    _loops(_wide_float, _narrow_float),
    _checking(np.uint32, 0x7FFFFFFF, 0x7F800000),
)
_mean_of_bfloats = _over_files(
    np.uint16,
    _loops(_wide_bfloat, _narrow_bfloat),
    _checking(np.uint16, 0x7FFF, 0x7F80),
)


@compiled(TYPES.format("float32"))
def mean_of_floats(
    fds: NDArray[np.int64],
    offsets: NDArray[np.int64],
    lengths: NDArray[np.int64],
    room: NDArray[np.float32],
    weights: NDArray[np.float64],
    factor: float,
    out: NDArray[np.float32],
) -> bool:
    """Write factor x Σ weights[k] x_k to `out` (n,), x_k being n numbers from offsets[k] of fds[k].

    `room` (K, any) is for what is read at once; of each file lengths[k] bytes, more than are read,
    are to be fetched meanwhile. False, and `out` is of no use, where a file cannot be read or a
    result is not finite.
    """
    return bool(_mean_of_floats(fds, offsets, lengths, room, weights, factor, out))


@compiled(TYPES.format("uint16"))
def mean_of_bfloats(
    fds: NDArray[np.int64],
    offsets: NDArray[np.int64],
    lengths: NDArray[np.int64],
    room: NDArray[np.uint16],
    weights: NDArray[np.float64],
    factor: float,
    out: NDArray[np.uint16],
) -> bool:
    """The same for bfloat16, given by its bits."""
    return bool(_mean_of_bfloats(fds, offsets, lengths, room, weights, factor, out))
