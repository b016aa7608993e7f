"""A pickle machine that can build values and nothing else.

torch's own restricted loader allocates every tensor, and pickle's imports what it is told to. This
one knows the operations that build plain values, and a closed list of names (`admitted`): a name is
looked up there and never imported, a call is a branch in our code that returns an inert node. There
is no fall-back: any other name or operation refuses the file.
"""

from __future__ import annotations

import functools
import io
import pickletools
import struct
from collections.abc import Callable
from typing import Any

from fedavg.formats import admitted
from fedavg.formats.errors import DamagedCheckpoint, UnsafeCheckpoint, UnsupportedCheckpoint
from fedavg.formats.nodes import Call, Storage, Table, is_key

MAX_PICKLE = 32 << 20
"""Bytes. Tensors take about 200 each in a pickle, so this is some 150,000 of them."""
MAX_OPERATIONS = 4_000_000
MAX_OBJECTS = 750_000
"""Dicts, lists and results of calls; a tensor takes two. Limits to what a file can blow up."""
MAX_KEPT = 1 << 20
"""Bytes of a pickle whose tree is kept for the next file; it takes some times as many."""
MAX_NAMES = 5
MAX_INT = 255
"""Bytes of an integer: what torch's restricted loader reads again."""

_MARK = object()
_MAKERS = {"EMPTY_DICT", "EMPTY_LIST", "EMPTY_SET", "REDUCE", "LIST", "DICT"}
_GARBLED = (
    RecursionError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    struct.error,
)
"""What operations on the wrong values raise."""


def load(data: bytes, where: str) -> object:
    """The tree in a pickle, which nobody may change: the next file, if its pickle is the same, gets
    it too, as those of a round mostly do. `where` names the file in errors.

    Raises UnsafeCheckpoint for a name that is not admitted, UnsupportedCheckpoint for other things
    that are not merged, DamagedCheckpoint for bytes that are no pickle.
    """
    if len(data) > MAX_PICKLE:
        raise UnsupportedCheckpoint(
            where,
            f"what describes its tensors has {len(data)} bytes, more than {MAX_PICKLE}; save "
            "weights without buffers of samples, or in shards",
        )
    try:
        return _kept(data) if len(data) <= MAX_KEPT else _run(data)
    except admitted.NotAdmitted as error:
        raise UnsafeCheckpoint(where, ", ".join(_names(data, str(error)))) from None
    except admitted.NotMerged as error:
        raise UnsupportedCheckpoint(where, str(error)) from None
    except _GARBLED as error:
        detail = " ".join(str(error).split()) or type(error).__name__
        raise DamagedCheckpoint(where, f"its pickle cannot be read: {detail:.200}") from None


def _run(data: bytes) -> object:
    machine, stream = _Machine(), io.BytesIO(data)
    read, name, count, objects = stream.read, "", 0, 0
    while name != "STOP":
        code = read(1)
        found = _OPERATIONS.get(code)
        if found is None:
            raise ValueError(f"it has an unknown operation {code!r}" if code else "it has no end")
        name, read_argument, step, makes = found
        argument = read_argument(stream) if read_argument else None
        count += 1
        objects += makes
        if count > MAX_OPERATIONS or objects > MAX_OBJECTS:
            raise admitted.NotMerged(
                f"its pickle has {count} operations or more, beyond any state_dict; save shards"
            )
        if step is None:
            raise admitted.NotMerged(
                f"its pickle uses {name}, which state_dicts have no use for; save "
                "tensors, numbers and strings in dicts and lists"
            )
        step(machine, argument)
    if read(1):
        raise ValueError("bytes follow its end")
    return machine.pop_last()


_kept = functools.lru_cache(maxsize=1)(_run)


def _names(data: bytes, first: str) -> list[str]:
    """The name that was refused, then others that would be: older protocols name a helper first."""
    found = [first]
    try:
        for operation, argument, _ in pickletools.genops(data):
            if operation.name in ("GLOBAL", "INST"):
                assert isinstance(argument, str)
                try:
                    admitted.find(*argument.split(" ", 1))
                except admitted.NotAdmitted as error:
                    found.append(str(error))
    except _GARBLED:
        pass  # as far as it can be read
    return list(dict.fromkeys(found))[:MAX_NAMES]


class _Machine:
    """The stack, the memo and the operations of one load."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.storages: dict[str, Storage] = {}

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise ValueError("a value is missing")
        return value

    def top(self) -> Any:
        value = self.stack[-1]
        if value is _MARK:
            raise ValueError("a value is missing")
        return value

    def pop_mark(self) -> list[Any]:
        at = len(self.stack) - 1
        while at >= 0 and self.stack[at] is not _MARK:
            at -= 1
        if at < 0:
            raise ValueError("a mark is missing")
        values = self.stack[at + 1 :]
        del self.stack[at:]
        return values

    def pop_last(self) -> object:
        value = self.pop()
        if self.stack:
            raise ValueError("it ends with an unfinished value")
        return value

    # -- operations; each takes the argument that stands in the pickle

    def push_int(self, value: int) -> None:
        if value.bit_length() > 8 * MAX_INT - 1:
            raise admitted.NotMerged(f"it holds an integer of more than {MAX_INT} bytes")
        self.stack.append(value)

    def put(self, index: int) -> None:
        self.memo[index] = self.top()

    def memoize(self, _: None) -> None:
        self.memo[len(self.memo)] = self.top()

    def get(self, index: int) -> None:
        self.stack.append(self.memo[index])

    def append(self, _: None) -> None:
        self._extend([self.pop()])

    def appends(self, _: None) -> None:
        self._extend(self.pop_mark())

    def _extend(self, values: list[Any]) -> None:
        target = self.top()
        if type(target) is not list:
            raise ValueError(f"it appends to a {type(target).__name__}")
        target.extend(values)

    def setitem(self, _: None) -> None:
        value, key = self.pop(), self.pop()
        self._set([key, value])

    def setitems(self, _: None) -> None:
        self._set(self.pop_mark())

    def _set(self, flat: list[Any]) -> None:
        table = self.top()
        if not isinstance(table, Table) or len(flat) % 2:
            raise ValueError(f"it sets an item of a {type(table).__name__}")
        odd = next((key for key in flat[::2] if not is_key(key)), None)
        if odd is not None:
            raise admitted.NotMerged(f"it has a dict with a {type(odd).__name__} for a key")
        table.items.update(zip(flat[::2], flat[1::2], strict=True))

    def additems(self, _: None) -> None:
        values = self.pop_mark()
        made = self.pop()
        if not isinstance(made, Call) or made.name != "builtins.set":
            raise ValueError(f"it adds items to a {type(made).__name__}")
        known = made.args[0] if made.args else []
        if not isinstance(known, (list, tuple)):
            raise ValueError("it adds items to a set of no list")
        self.stack.append(Call("builtins.set", ([*known, *values],)))

    def dict_of(self, _: None) -> None:
        values = self.pop_mark()
        self.stack.append(Table())
        self._set(values)

    def tuple_of(self, count: int) -> None:
        values = tuple(self.stack[-count:])
        if len(values) < count or _MARK in values:
            raise ValueError("a value is missing")
        self.stack[-count:] = [values]

    def name(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self.stack.append(admitted.find(module, name))

    def stack_name(self, _: None) -> None:
        name, module = self.pop(), self.pop()
        if type(module) is not str or type(name) is not str:
            raise ValueError("a name is no text")
        self.stack.append(admitted.find(module, name))

    def instance(self, argument: str) -> None:
        self.name(argument)
        raise admitted.NotMerged("its pickle makes an instance")

    def reduce(self, _: None) -> None:
        args, function = self.pop(), self.pop()
        self.stack.append(admitted.call(function, args))

    def build(self, _: None) -> None:
        state = self.pop()
        admitted.build(self.top(), state)

    def persistent(self, _: None) -> None:
        found = admitted.storage(self.pop())
        if self.storages.setdefault(found.key, found) != found:  # torch would take the first
            raise ValueError(f"its storage {found.key!r:.40} has two types or sizes")
        self.stack.append(self.storages[found.key])


_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": lambda m, _: None,
    "FRAME": lambda m, _: None,
    "STOP": lambda m, _: None,
    "MARK": lambda m, _: m.stack.append(_MARK),
    "NONE": lambda m, _: m.stack.append(None),
    "NEWTRUE": lambda m, _: m.stack.append(True),
    "NEWFALSE": lambda m, _: m.stack.append(False),
    "EMPTY_LIST": lambda m, _: m.stack.append([]),
    "EMPTY_DICT": lambda m, _: m.stack.append(Table()),
    "EMPTY_SET": lambda m, _: m.stack.append(Call("builtins.set", ([],))),
    "EMPTY_TUPLE": lambda m, _: m.stack.append(()),
    "TUPLE": lambda m, _: m.stack.append(tuple(m.pop_mark())),
    "LIST": lambda m, _: m.stack.append(m.pop_mark()),
    "DICT": _Machine.dict_of,
    "TUPLE1": lambda m, _: m.tuple_of(1),
    "TUPLE2": lambda m, _: m.tuple_of(2),
    "TUPLE3": lambda m, _: m.tuple_of(3),
    "APPEND": _Machine.append,
    "APPENDS": _Machine.appends,
    "SETITEM": _Machine.setitem,
    "SETITEMS": _Machine.setitems,
    "ADDITEMS": _Machine.additems,
    "GLOBAL": _Machine.name,
    "STACK_GLOBAL": _Machine.stack_name,
    "INST": _Machine.instance,
    "REDUCE": _Machine.reduce,
    "BUILD": _Machine.build,
    "BINPERSID": _Machine.persistent,
    "MEMOIZE": _Machine.memoize,
    **dict.fromkeys(("BINPUT", "LONG_BINPUT", "PUT"), _Machine.put),
    **dict.fromkeys(("BINGET", "LONG_BINGET", "GET"), _Machine.get),
    **dict.fromkeys(
        ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"), _Machine.push_int
    ),
    "BYTEARRAY8": lambda m, v: m.stack.append(Call("builtins.bytearray", (bytes(v),))),
    **dict.fromkeys(
        (
            "FLOAT", "BINFLOAT", "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE",
            "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
        ),
        lambda m, value: m.stack.append(value),
    ),
}  # fmt: skip

_OPERATIONS = {
    op.code.encode("latin-1"): (
        op.name, op.arg.reader if op.arg else None, _STEPS.get(op.name), op.name in _MAKERS,
    )
    for op in pickletools.opcodes
}  # fmt: skip
"""Of each byte that begins an operation: its name, what reads its argument, what it does here, and
whether it makes an object. `pickletools.genops` takes twice the time."""
