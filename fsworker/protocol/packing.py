"""How values of user code become bytes: msgpack, with what Python people expect added.

Tuples come back as tuples, numpy arrays and scalars as themselves (three extension types, below).
Nothing here can run code: what is not data is refused, by a sentence that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgpack

TUPLE, NDARRAY, NPSCALAR, REFERENCE = 1, 2, 3, 4
"""Extension types: TUPLE holds an array; numpy's hold [dtype string, shape, bytes]; REFERENCE holds
[path, size, checksum] of a file on the root that holds the value."""

_INT_RANGE = (-(2**63), 2**64 - 1)


class Reference(NamedTuple):
    """In the place of a value: the file that holds it; nobody follows it but the slot."""

    path: str
    size: int
    checksum: int


class Unpackable(ValueError):
    """A value that msgpack and the extensions cannot carry; the message says which and why."""


class NotPacked(ValueError):
    """Bytes that are not one packed value."""


def pack(value: Any) -> bytes:
    """A value as bytes. Raises Unpackable."""
    try:
        packed: bytes = msgpack.packb(value, default=_default, strict_types=True, use_bin_type=True)
        return packed
    except Unpackable:
        raise
    except UnicodeEncodeError as error:
        raise Unpackable(f"a text with a lone surrogate cannot be sent: {error}") from None
    except OverflowError:
        low, high = _INT_RANGE
        raise Unpackable(f"an integer outside {low}..{high} cannot be sent") from None
    except (RecursionError, ValueError) as error:
        raise Unpackable(f"the value cannot be sent: {error or 'it is nested too deep'}") from None


def packer() -> Callable[[Any], bytes]:
    """A `pack` for one thread at a time. It keeps its buffer, which makes it several times faster,
    and raises whatever comes for what cannot be packed; `pack` says it in words."""
    made = msgpack.Packer(default=_default, strict_types=True, use_bin_type=True)
    return made.pack  # type: ignore[no-any-return]


def unpack(data: bytes | bytearray) -> Any:
    """The value in `data`. Raises NotPacked unless it is exactly one, no byte more or less."""
    try:
        return msgpack.unpackb(data, ext_hook=_ext_hook, raw=False, strict_map_key=False)
    except NotPacked:
        raise
    except Exception as error:
        # The C and the pure-Python decoder raise unlike things for the same bytes.
        raise NotPacked(f"not one packed value: {type(error).__name__} {error}".rstrip()) from None


def count(data: bytes) -> int:
    """How many packed values lie in a row in `data`; 0 when they end within one."""
    unpacker, found = msgpack.Unpacker(max_buffer_size=len(data) or 1, strict_map_key=False), 0
    unpacker.feed(data)
    try:
        while unpacker.tell() < len(data):
            unpacker.skip()
            found += 1
    except Exception:
        return 0
    return found


def _default(value: Any) -> Any:
    if type(value) is Reference:
        return msgpack.ExtType(REFERENCE, msgpack.packb(list(value)))
    if isinstance(value, tuple):
        return msgpack.ExtType(TUPLE, pack(list(value)))
    if type(value).__module__ == "numpy":
        return _pack_numpy(value)
    plain: Any
    for plain in (int, float, str, bytes, list):
        if isinstance(value, plain):  # a subclass, such as an IntEnum
            return plain(value)
    if isinstance(value, Mapping):
        return dict(value)
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    raise Unpackable(f"a {kind} cannot be sent; send plain data, arrays, lists, dicts or tuples")


def _pack_numpy(value: Any) -> msgpack.ExtType:
    import numpy as np

    array = np.asarray(value)
    if array.dtype.hasobject or array.dtype.names:
        raise Unpackable(f"a numpy array of dtype {array.dtype} cannot be sent")
    code = NDARRAY if isinstance(value, np.ndarray) else NPSCALAR
    body = [array.dtype.str, list(array.shape), array.tobytes()]
    return msgpack.ExtType(code, msgpack.packb(body))


def _ext_hook(code: int, data: bytes) -> Any:
    if code == TUPLE:
        return tuple(unpack(data))
    if code == REFERENCE:
        return Reference(*unpack(data))
    if code in (NDARRAY, NPSCALAR):
        import numpy as np

        dtype, shape, raw = msgpack.unpackb(data)
        array = np.frombuffer(bytearray(raw), np.dtype(dtype)).reshape(shape)
        return array if code == NDARRAY else array[()]
    raise NotPacked(f"unknown extension type {code}")
