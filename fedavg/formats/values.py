"""Whether what is no tensor can be kept: a value that the output repeats must load everywhere.

One participant's leaves go into the global model. A call with arguments that torch would not accept
(`torch.device("nowhere")`) is harmless here, and would keep every participant from loading it.
"""

from __future__ import annotations

import re

from fedavg.formats.admitted import name_of
from fedavg.formats.dtypes import ITEMSIZE
from fedavg.formats.nodes import PLAIN, Call, Global, Table

DEVICES = re.compile(r"(cpu|cuda|hpu|meta|mps|mtia|xla|xpu)(:(0|[1-9][0-9]?))?")
LAYOUTS = {"strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc"}
METADATA = "_metadata"
"""What state_dict() calls the versions of a module's parts."""


def fault(leaf: object) -> str | None:
    """What keeps a leaf from being kept, None for nothing."""
    if isinstance(leaf, PLAIN):
        return None
    if isinstance(leaf, Global):
        known = leaf.name.removeprefix("torch.") in ITEMSIZE
        return None if known else f"is {leaf.name} itself"
    if not isinstance(leaf, Call):
        return f"is a {name_of(leaf)}"
    return None if _is_whole(leaf) else f"holds {leaf.name} of other things than it takes"


def size(leaf: object) -> int:
    """About how many bytes a leaf takes in a pickle, beyond those that every leaf takes."""
    if isinstance(leaf, (str, bytes)):
        return len(leaf)
    if isinstance(leaf, Call):
        return sum(map(size, leaf.args))
    return sum(map(size, leaf)) + len(leaf) if isinstance(leaf, (list, tuple)) else 0


def metadata_fault(table: Table) -> str | None:
    """What is wrong with the attributes of an OrderedDict: all but the versions of modules."""
    attributes = table.attributes.items if table.attributes else {}
    if not attributes:
        return None
    versions = attributes.get(METADATA)
    if len(attributes) > 1 or not isinstance(versions, Table):
        return "has attributes that are not those of a state_dict"
    for module, values in versions.items.items():
        if not isinstance(module, str) or not isinstance(values, Table):
            return f"has garbled versions of {module!r:.80}"
        for name, value in values.items.items():
            if not isinstance(name, str) or not isinstance(value, PLAIN):
                return f"has garbled versions of {module!r:.80}"
    return None


def _is_whole(call: Call) -> bool:
    """Whether a call has the arguments that it takes."""
    args = call.args
    first = args[0] if args else None
    if call.name == "torch.device":
        index = args[1] if len(args) == 2 else 0
        named = isinstance(first, str) and DEVICES.fullmatch(first) is not None
        return named and len(args) in (1, 2) and type(index) is int and 0 <= index < 100
    if call.name == "torch.serialization._get_layout":
        return len(args) == 1 and isinstance(first, str) and first.removeprefix("torch.") in LAYOUTS
    if len(args) > 1 or call.name == "builtins.bytearray":
        return len(args) < 2 and all(isinstance(a, bytes) for a in args)
    values = first if args else []
    if not isinstance(values, (list, tuple)):
        return False
    if call.name == "torch.Size":
        return all(type(n) is int and 0 <= n < 1 << 63 for n in values)
    return all(isinstance(v, PLAIN) for v in values)
