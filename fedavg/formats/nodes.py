"""What a pickle of torch's holds, as inert values: nothing here can run or allocate a tensor.

The tree of a `.pt` file consists of these, of lists, tuples and plain values. It is what the
restricted unpickler makes, what keys are counted in, and what the pickler writes again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

PLAIN = (type(None), bool, int, float, complex, str, bytes)


@dataclass(slots=True)
class Table:
    """A dict by its class: `kind` is dict, OrderedDict or Counter.

    `attributes` are those of an OrderedDict: state_dict() keeps the versions of modules in one.
    """

    kind: str = "dict"
    items: dict[object, object] = field(default_factory=dict)
    attributes: Table | None = None


@dataclass(frozen=True, slots=True)
class Global:
    """A name that was admitted; `torch.float32` stays one as a value."""

    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """A value that is made by a call when the file is loaded: a set, a torch.Size, a device."""

    name: str
    args: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Storage:
    """The bytes that tensors lie in: the archive's member `data/<key>`, `nbytes` long."""

    key: str
    dtype: str | None  # None: untyped
    nbytes: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as a view of a storage; `offset` and `strides` count elements."""

    storage: Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    requires_grad: bool = False
    parameter: bool = False


def is_key(value: object) -> bool:
    """Whether a dict may have this key: a plain value, or a tuple of them."""
    values = value if isinstance(value, tuple) else (value,)
    return all(isinstance(v, PLAIN) for v in values)


class _Attributes:
    def __repr__(self) -> str:
        return "<attributes>"


ATTRIBUTES = _Attributes()
"""The part of a path that leads to the attributes of a dict instead of an item."""


def children(node: object) -> Iterator[tuple[object, object]] | None:
    """(part, child) of a container, None for a leaf; the form that `keys.leaves` wants."""
    if isinstance(node, Table):
        inside: list[tuple[object, object]] = list(node.items.items())
        if node.attributes is not None:
            inside.append((ATTRIBUTES, node.attributes))
        return iter(inside)
    if type(node) in (list, tuple):
        return enumerate(node)  # type: ignore[arg-type]
    return None
