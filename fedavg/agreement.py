"""Whether checkpoints can be merged at all: the same keys, shapes and types. Pure.

A key that only some have is refused and not averaged over those that have it; a shape that differs
is refused and not broadcast. Whoever differs is named, with the key.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from fedavg.formats.base import Entry
from fedavg.formats.errors import shown
from fedavg.policy import FLOAT_DTYPES
from fsworker.errors import Refused

Entries = Mapping[str, Entry]

_SHOWN = 3


class Unmergeable(Refused):
    """A checkpoint that cannot take part: the sentence names it, the key, and what is wrong.

    `participant` is the contribution's name (None: the base or the state), `key` the entry's.
    """

    def __init__(self, why: str, *, participant: str | None = None, key: str | None = None) -> None:
        super().__init__(shown(f"{participant}: {why}" if participant else why))
        self.participant = participant
        self.key = key

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuilt, (str(self), self.participant, self.key))


def _rebuilt(sentence: str, participant: str | None, key: str | None) -> Unmergeable:
    error = Unmergeable(sentence, key=key)
    error.participant = participant
    return error


def disagreement(
    like: Entries, found: Entries, other: str = "the others"
) -> tuple[str | None, str] | None:
    """(key, what is wrong) where `found` is not as `like`; None when the two can be merged.

    `other` is what the sentence calls the owner of `like`.
    """
    for here, there, words in ((like, found, "lacks"), (found, like, "alone has")):
        if odd := [key for key in here if key not in there]:
            more = f" and {len(odd) - _SHOWN} more" if len(odd) > _SHOWN else ""
            than = f", which {other} has" if words == "lacks" else f", compared with {other}"
            return odd[0], f"it {words} {', '.join(odd[:_SHOWN])}{more}{than}"
    for key, entry in like.items():
        it = found[key]
        if it.shape != entry.shape:
            return key, f"{key} has the shape {_shape(it)} and not {_shape(entry)} as in {other}"
        if it.dtype != entry.dtype:
            return key, f"{key} is {it.dtype} and not {entry.dtype} as in {other}"
    return _ties(like, found, other)


def _shape(entry: Entry) -> str:
    return "×".join(map(str, entry.shape)) or "of a single number"


def _ties(like: Entries, found: Entries, other: str) -> tuple[str | None, str] | None:
    """Weights that are tied in one and not in the other would lose one of their two values."""
    ours, theirs = _groups(like), _groups(found)
    if ours.keys() == theirs.keys():
        return None
    group = min(ours.keys() ^ theirs.keys(), key=sorted)
    names = " and ".join(sorted(group))
    owner, stranger = (other, "it") if group in ours else ("it", other)
    return min(group), f"{owner} keeps {names} as one tensor, {stranger} does not"


def _groups(entries: Entries) -> dict[frozenset[str], None]:
    owned: dict[str, list[str]] = defaultdict(list)
    for key, entry in entries.items():
        owned[entry.owner].append(key)
    return {frozenset(keys): None for keys in owned.values() if len(keys) > 1}


def base_disagreement(like: Entries, base: Entries, keys: list[str]) -> tuple[str, str] | None:
    """The same for a base, of which only `keys` are used, and whose floats may be wider.

    It must have no key that the models lack: then it is not what they started from.
    """
    if odd := [key for key in base if key not in like]:
        more = f" and {len(odd) - _SHOWN} more" if len(odd) > _SHOWN else ""
        return odd[0], f"it alone has {', '.join(odd[:_SHOWN])}{more}, compared with the models"
    for key in keys:
        if key not in base:
            return key, f"it lacks {key}"
        if base[key].shape != like[key].shape:
            return key, f"{key} has the shape {_shape(base[key])} and not {_shape(like[key])}"
        both_float = base[key].dtype in FLOAT_DTYPES and like[key].dtype in FLOAT_DTYPES
        if base[key].dtype != like[key].dtype and not both_float:
            return key, f"{key} is {base[key].dtype} and not {like[key].dtype}"
    return None
