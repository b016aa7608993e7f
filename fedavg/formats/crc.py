"""CRC-32 of bytes that were summed in pieces, in any order.

The checksum of a concatenation follows from those of its parts: appending n bytes multiplies a CRC,
seen as a polynomial over GF(2), by x^(8n) modulo the CRC's own. So each thread sums what it writes,
and nothing is read again. The method is that of zlib's crc32_combine, which Python does not offer.
"""

from __future__ import annotations

from functools import lru_cache

POLYNOMIAL = 0xEDB88320
"""CRC-32's, bits reversed: the highest bit is the coefficient of x^0."""
ONE = 1 << 31


def combine(first: int, second: int, length: int) -> int:
    """The CRC of A + B from the CRCs of A and B and the length of B in bytes."""
    return _multiply(_power(length), first) ^ second


def _multiply(a: int, b: int) -> int:
    """a times b modulo the polynomial."""
    product = 0
    while a:
        if a & ONE:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = b >> 1 ^ POLYNOMIAL if b & 1 else b >> 1
    return product


@lru_cache(maxsize=256)
def _power(length: int) -> int:
    """x^(8 * length) modulo the polynomial, by squaring."""
    result, square = ONE, ONE >> 8  # x^0, x^8
    while length:
        if length & 1:
            result = _multiply(square, result)
        square = _multiply(square, square)
        length >>= 1
    return result
