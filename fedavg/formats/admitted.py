"""The names that a pickle may use, and what each gives: a closed list.

It is what torch's `weights_only` loader admits as far as it has a meaning for merging, and numpy's
scalars by both of their spellings, which become Python's numbers: so the output loads anywhere.
"""

from __future__ import annotations

import struct
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedavg.formats.dtypes import ITEMSIZE, STORAGES
from fedavg.formats.nodes import Call, Global, Storage, Table, Tensor, is_key

UNTYPED = "torch.storage.UntypedStorage"
DIFFERENTIABLE = ("float", "bfloat", "complex")
NUMPY_DTYPE = "numpy.dtype"
ORDERS = (("<",), (">",), ("|",), ("=",))
NUMPY_CODES = {
    "f8": "d", "f4": "f", "f2": "e", "b1": "?",
    "i8": "q", "i4": "i", "i2": "h", "i1": "b", "u8": "Q", "u4": "I", "u2": "H", "u1": "B",
}  # fmt: skip


class NotAdmitted(Exception):
    """A name that is not in the list."""


class NotMerged(Exception):
    """An admitted name used for what is not merged; the sentence says what."""


@dataclass(slots=True)
class NumpyDtype:
    """A numpy dtype while a scalar of it is being read; no value of a checkpoint."""

    code: str
    order: str = "<"


def find(module: str, name: str) -> Global:
    """The admitted name; NotAdmitted for any other. Both in the spelling of Python 3, since up to
    protocol 2 pickles are written, and would be loaded, with that of Python 2.
    """
    module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
    full = f"{module}.{name}"
    if full in CALLS or full in VALUES:
        return Global(full)
    raise NotAdmitted(full[:200] if full.isprintable() else ascii(full[:200]))


def call(function: object, args: object) -> object:
    """What the admitted `function` gives. NotAdmitted if it is not to be called."""
    if not isinstance(function, Global) or function.name not in CALLS:
        raise NotAdmitted(getattr(function, "name", type(function).__name__))
    if type(args) is not tuple:
        raise ValueError(f"{function.name} is called with no tuple")
    return CALLS[function.name](*args)


def storage(pid: object) -> Storage:
    """The storage that a persistent id names."""
    if type(pid) is not tuple or len(pid) != 5 or pid[0] != "storage":
        raise ValueError("it names a storage in an unknown way")
    _, kind, key, _, count = pid
    if not isinstance(kind, Global) or type(key) is not str or not _is_size(count):
        raise ValueError("it names a storage in an unknown way")
    if kind.name == UNTYPED:
        return Storage(key, None, count)
    dtype = STORAGES.get(kind.name.removeprefix("torch."))
    if dtype is None:
        raise ValueError(f"{kind.name} is no storage")
    return Storage(key, dtype, count * ITEMSIZE[dtype])


def build(instance: object, state: object) -> None:
    """Give an OrderedDict its attributes or a numpy dtype its byte order; nothing else a state."""
    if isinstance(instance, Table) and instance.kind == "OrderedDict" and isinstance(state, Table):
        instance.attributes = state
    elif isinstance(instance, NumpyDtype) and type(state) is tuple and state[1:2] in ORDERS:
        instance.order = state[1]
    else:
        raise NotMerged(f"it sets the state of {name_of(instance)}")


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _sizes(value: object) -> tuple[int, ...]:
    if isinstance(value, Call) and value.name == "torch.Size":
        value = value.args[0]
    if type(value) is not tuple or len(value) > 64 or not all(map(_is_size, value)):
        raise ValueError("a shape or stride is no tuple of sizes")
    return value


def _tensor(stored: object, offset: object, shape: object, strides: object, dtype: str) -> Tensor:
    """A tensor as a view, checked against the length of its storage."""
    if not isinstance(stored, Storage) or not _is_size(offset):
        raise ValueError("a tensor is no view of a storage")
    sizes, steps = _sizes(shape), _sizes(strides)
    if len(sizes) != len(steps):
        raise ValueError("a tensor has another number of strides than of sizes")
    assert isinstance(offset, int)
    if 0 not in sizes:
        end = offset + sum((n - 1) * s for n, s in zip(sizes, steps, strict=True)) + 1
        if end * ITEMSIZE[dtype] > stored.nbytes:
            raise ValueError(f"a tensor of shape {sizes} reaches beyond its storage {stored.key!r}")
    return Tensor(stored, dtype, offset, sizes, steps)


def _with_gradient(
    tensor: Tensor, requires_grad: object, hooks: object, metadata: object
) -> Tensor:
    if not isinstance(requires_grad, bool) or not isinstance(hooks, Table) or hooks.items:
        raise NotMerged("it holds a tensor with hooks: save tensor.detach()")
    if metadata is not None and not (isinstance(metadata, Table) and not metadata.items):
        raise NotMerged("it holds a conjugate or negative view: save tensor.resolve_conj()")
    if requires_grad and not tensor.dtype.startswith(DIFFERENTIABLE):
        raise NotMerged(f"it holds a tensor of {tensor.dtype} with a gradient")
    return Tensor(
        tensor.storage, tensor.dtype, tensor.offset, tensor.shape, tensor.strides, requires_grad
    )


def _rebuild(stored: object, offset: object, shape: object, strides: object) -> Tensor:
    if not isinstance(stored, Storage) or stored.dtype is None:
        raise ValueError("a tensor is no view of a typed storage")
    return _tensor(stored, offset, shape, strides, stored.dtype)


def _rebuild_v2(
    stored: object,
    offset: object,
    shape: object,
    strides: object,
    requires_grad: object,
    hooks: object,
    metadata: object = None,
) -> Tensor:
    return _with_gradient(_rebuild(stored, offset, shape, strides), requires_grad, hooks, metadata)


def _rebuild_v3(
    stored: object,
    offset: object,
    shape: object,
    strides: object,
    requires_grad: object,
    hooks: object,
    dtype: object,
    metadata: object = None,
) -> Tensor:
    name = dtype.name.removeprefix("torch.") if isinstance(dtype, Global) else ""
    if name not in ITEMSIZE:
        raise NotMerged(f"it holds a tensor of {name_of(dtype)}")
    tensor = _tensor(stored, offset, shape, strides, name)
    return _with_gradient(tensor, requires_grad, hooks, metadata)


def _parameter(tensor: object, requires_grad: object, hooks: object) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise ValueError("a Parameter holds no tensor")
    t = _with_gradient(tensor, requires_grad, hooks, None)
    return Tensor(t.storage, t.dtype, t.offset, t.shape, t.strides, t.requires_grad, True)


def _numpy_dtype(code: object, *_: object) -> NumpyDtype:
    if type(code) is not str:
        raise ValueError("a numpy type has no name")
    return NumpyDtype(code)


def _numpy_scalar(dtype: object, data: object) -> object:
    """A numpy scalar as Python's number, bool or string; exact for each type that is read."""
    if not isinstance(dtype, NumpyDtype) or not isinstance(data, bytes):
        raise ValueError("a numpy scalar has no type or no bytes")
    order = ">" if dtype.order == ">" else "<"
    if dtype.code in NUMPY_CODES:
        return struct.unpack(order + NUMPY_CODES[dtype.code], data)[0]
    if dtype.code in ("c8", "c16"):
        return complex(*struct.unpack(order + ("2f" if dtype.code == "c8" else "2d"), data))
    if dtype.code[:1] == "U":
        return data.decode("utf-32-be" if order == ">" else "utf-32-le").rstrip("\0")
    raise NotMerged(f"it holds a numpy scalar of type {dtype.code!r:.20}")


def _encode(text: object, encoding: object) -> bytes:
    """How protocol 2 spells bytes."""
    if type(text) is not str or encoding != "latin1":
        raise ValueError("bytes are spelt in an unknown way")
    return text.encode("latin1")


def _empty_or_pairs(kind: str) -> Callable[..., Table]:
    def make(pairs: Any = ()) -> Table:
        known = list(pairs.items.items() if isinstance(pairs, Table) else pairs)
        if not all(len(pair) == 2 and is_key(pair[0]) for pair in known):
            raise ValueError("a dict is made of no pairs")  # before anything is hashed
        return Table(kind, dict(known))

    return make


def _kept(name: str) -> Callable[..., Call]:
    """A call that is kept to be made when the output is loaded. Its arguments are plain."""

    def make(*args: object) -> Call:
        return Call(name, args)

    return make


def _bytes_in(*args: object) -> Call:
    if len(args) > 1 or not all(isinstance(a, bytes) for a in args):
        raise ValueError("a bytearray is made of no bytes")
    return Call("builtins.bytearray", args)


def _complex(real: object, imaginary: object) -> complex:
    if type(real) is not float or type(imaginary) is not float:
        raise ValueError("a complex number is made of no floats")
    return complex(real, imaginary)


def name_of(value: object) -> str:
    """What a node is called in a sentence."""
    if isinstance(value, NumpyDtype):
        return NUMPY_DTYPE
    return value.name if isinstance(value, (Global, Call)) else type(value).__name__


CALLS: dict[str, Callable[..., object]] = {
    "torch._utils._rebuild_tensor": _rebuild,
    "torch._utils._rebuild_tensor_v2": _rebuild_v2,
    "torch._utils._rebuild_tensor_v3": _rebuild_v3,
    "torch._utils._rebuild_parameter": _parameter,
    "collections.OrderedDict": _empty_or_pairs("OrderedDict"),
    "collections.Counter": _empty_or_pairs("Counter"),
    "torch.Size": _kept("torch.Size"),
    "torch.device": _kept("torch.device"),
    "torch.serialization._get_layout": _kept("torch.serialization._get_layout"),
    "builtins.set": _kept("builtins.set"),
    "builtins.bytes": lambda: b"",  # protocol 2 has no other way to spell none
    "builtins.bytearray": _bytes_in,
    "builtins.complex": _complex,
    "_codecs.encode": _encode,
    NUMPY_DTYPE: _numpy_dtype,
    "numpy.core.multiarray.scalar": _numpy_scalar,
    "numpy._core.multiarray.scalar": _numpy_scalar,
}
VALUES = {UNTYPED, *(f"torch.{name}" for name in (*STORAGES, *ITEMSIZE))}
