"""The pickle of a tree, as torch's restricted loader reads it.

It is protocol 2 without a memo: whatever was one object twice is written twice, and tensors are
tied by their storage alone. The same tree always gives the same bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

from fedavg.formats.admitted import UNTYPED
from fedavg.formats.dtypes import ITEMSIZE, STORAGES
from fedavg.formats.nodes import Call, Global, Table, Tensor

TYPED = {dtype: name for name, dtype in STORAGES.items()}

Leaf = Callable[[tuple[object, ...], object], object]
"""What stands for a leaf at a path: the leaf itself, or what replaces it."""


def dump(tree: object, leaf: Leaf) -> bytes:
    """The pickle of `tree`. TypeError for a replacement that cannot be pickled."""
    return b"".join((b"\x80\x02", *_value(tree, (), leaf), b"."))


def _value(node: object, path: tuple[object, ...], leaf: Leaf) -> Iterable[bytes]:
    if isinstance(node, Table):
        yield from _table(node, path, leaf)
    elif type(node) in (list, tuple):
        assert isinstance(node, (list, tuple))
        yield b"(" if isinstance(node, tuple) else b"]("
        for index, child in enumerate(node):
            yield from _value(child, (*path, index), leaf)
        yield b"t" if isinstance(node, tuple) else b"e"
    else:
        yield from _plain(leaf(path, node))


def _table(node: Table, path: tuple[object, ...], leaf: Leaf) -> Iterable[bytes]:
    yield b"}" if node.kind == "dict" else _name(f"collections.{node.kind}") + b")R"
    yield b"("
    for key, child in node.items.items():
        yield from _plain(key)
        yield from _value(child, (*path, key), leaf)
    yield b"u"
    if node.attributes is not None:
        yield from _value(node.attributes, (), lambda _, value: value)
        yield b"b"


def _plain(value: object) -> Iterable[bytes]:
    """A value that holds no leaf of its own."""
    if value is None or isinstance(value, bool):
        yield {None: b"N", True: b"\x88", False: b"\x89"}[value]
    elif isinstance(value, int):
        data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        yield b"J" + struct.pack("<i", value) if len(data) <= 4 else _long(data)
    elif isinstance(value, float):
        yield b"G" + struct.pack(">d", value)
    elif isinstance(value, str):
        yield _text(value)
    elif isinstance(value, bytes):
        text, encoding = _text(value.decode("latin1")), _text("latin1")
        yield _name("_codecs.encode") + text + encoding + b"\x86R"
    elif isinstance(value, complex):
        parts = struct.pack(">cdcd", b"G", value.real, b"G", value.imag)
        yield _name("builtins.complex") + parts + b"\x86R"
    elif isinstance(value, Tensor):
        yield _tensor(value)
    elif isinstance(value, Global):
        yield _name(value.name)
    elif isinstance(value, Call):
        yield _name(value.name)
        yield from _plain(value.args)
        yield b"R"
    elif isinstance(value, (list, tuple, Table)):
        yield from _value(value, (), lambda _, v: v)
    else:
        raise TypeError(f"a checkpoint cannot hold a {type(value).__name__}")


def _tensor(tensor: Tensor) -> bytes:
    """A call that makes a view of a storage on the CPU, with its own way for newer types."""
    storage = tensor.storage
    kind = f"torch.{TYPED[tensor.dtype]}" if tensor.dtype in TYPED else UNTYPED
    count = storage.nbytes if kind == UNTYPED else storage.nbytes // ITEMSIZE[tensor.dtype]
    pid = (b"(", _text("storage"), _name(kind), _text(storage.key), _text("cpu"), *_plain(count))
    version = b"3" if kind == UNTYPED else b"2"
    hooks = _name("collections.OrderedDict") + b")R"
    grad = b"\x88" if tensor.requires_grad else b"\x89"
    view = (*_plain(tensor.offset), *_plain(tensor.shape), *_plain(tensor.strides))
    data = (
        b"ctorch._utils\n_rebuild_tensor_v" + version + b"\n(",
        *pid, b"tQ", *view, grad, hooks,
        _name(f"torch.{tensor.dtype}") if kind == UNTYPED else b"", b"tR",
    )  # fmt: skip
    if not tensor.parameter:
        return b"".join(data)
    return b"".join((_name("torch._utils._rebuild_parameter"), *data, grad, hooks, b"\x87R"))


def _name(full: str) -> bytes:
    """A global, its built-in module spelt as protocol 2 does."""
    module, _, name = full.rpartition(".")
    module = "__builtin__" if module == "builtins" else module
    return f"c{module}\n{name}\n".encode()


def _text(value: str) -> bytes:
    data = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(data)) + data


def _long(data: bytes) -> bytes:
    return b"\x8a" + bytes([len(data)]) + data
