"""Whether a pickle could run anything when somebody else loads it: told by the names that it uses.

Nothing is unpickled here. A pickle is inert when every name in it is in a short list: what the
participants of a round do not share but stable-baselines3 keeps, such as the last observation (an
array), the infos of episodes (a deque) and the dice of a space. Any doubt is a no.
"""

from __future__ import annotations

import pickletools
import re

MAX_OPERATIONS = 100_000

_NAMES = re.compile(
    r"collections\.(deque|OrderedDict)"
    r"|numpy\.(ndarray|dtype|bool_?|u?int(8|16|32|64)|float(16|32|64))"
    r"|numpy\._?core\.multiarray\.(_reconstruct|scalar)|numpy\._?core\.numeric\._frombuffer"
    r"|numpy\.random\._pickle\.__(generator|bit_generator|randomstate)_ctor"
    r"|numpy\.random\.(_pcg64\.PCG64|_mt19937\.MT19937)"
    r"|numpy\.random\.bit_generator\.(SeedSequence|__pyx_unpickle_SeedSequence)"
    r"|gym(nasium)?\.spaces\.(box\.Box|discrete\.Discrete|multi_discrete\.MultiDiscrete"
    r"|multi_binary\.MultiBinary|dict\.Dict|tuple\.Tuple)"
)
"""Data, and what makes it."""

_CLASSES = re.compile(
    r"stable_baselines3\.(common|dqn|sac|td3)\.policies\.[A-Z][A-Za-z]*Policy"
    r"|stable_baselines3\.common\.buffers\.[A-Z][A-Za-z]*Buffer"
)
"""Classes that files of stable-baselines3 name. A pickle may be one, and do nothing with it."""

_TEXTS = {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
_STORES = {"PUT", "BINPUT", "LONG_BINPUT"}
_LOADS = {"GET", "BINGET", "LONG_BINGET"}
_PASSED = {"PROTO", "FRAME"}
_REFERS = {"GLOBAL", "STACK_GLOBAL", "MEMOIZE", "STOP"} | _TEXTS | _STORES | _PASSED
_NEVER = {
    "INST", "OBJ", "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID", "NEXT_BUFFER", "READONLY_BUFFER"
}  # fmt: skip
"""They name things in other ways, or take them from elsewhere."""


def is_inert(data: bytes) -> bool:
    """Whether all names in a pickle are in the list; False for what is no pickle, or too long."""
    try:
        names, operations = _names(data)
        if len(names) == 1 and names[0] and _CLASSES.fullmatch(names[0]):
            return operations <= _REFERS
        return all(name is not None and _NAMES.fullmatch(name) for name in names)
    except Exception:  # whatever pickletools raises for bytes that are no pickle
        return False


def _names(data: bytes) -> tuple[list[str | None], set[str]]:
    """Every name as `module.name`, None for one that cannot be told; and the operations' names."""
    operations: set[str] = set()
    found: list[str | None] = []
    memo: dict[int, str | None] = {}
    below: str | None = None  # the two texts on top of the stack, None for anything else
    top: str | None = None
    for count, (operation, argument, _) in enumerate(pickletools.genops(data)):
        name = operation.name
        if name in _NEVER or count > MAX_OPERATIONS:
            return [None], operations
        operations.add(name)
        if name == "GLOBAL":
            found.append(".".join(str(argument).split(" ", 1)))
        elif name == "STACK_GLOBAL":
            found.append(None if below is None or top is None else f"{below}.{top}")
        if name in _TEXTS:
            below, top = top, str(argument)
        elif name in _LOADS:
            below, top = top, memo.get(int(argument or 0))
        elif name in _STORES:
            memo[int(argument or 0)] = top
        elif name == "MEMOIZE":
            memo[len(memo)] = top
        elif name not in _PASSED:
            below = top = None
    return found, operations
