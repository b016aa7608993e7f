"""How an upload may differ from the model that its round started from. Pure.

Tensors have the keys, shapes and types of that model. JSON is what agents without a network save,
and it tells of the past: there a list may be longer than before, and what was an integer may have
a fraction. Nothing may be lacking, and nothing may be new but what lists have grown by. Some
writers spell 1.0 as 1, so what is float64 in that model is read as float64 however it is spelt.
"""

from __future__ import annotations

from collections.abc import Callable

from fedavg.agreement import disagreement
from fedavg.formats.base import Checkpoint, Entry
from fedavg.formats.jsonfile import JsonFile

JSON, BASELINES = "json", "stable-baselines3"


def family(checkpoint: Checkpoint) -> str:
    """Formats of one family can stand for each other; the others are what only their own read."""
    return checkpoint.format if checkpoint.format in (JSON, BASELINES) else "tensors"


def as_floats(like: Checkpoint, found: Checkpoint) -> Checkpoint:
    """`found` with the whole numbers as float64 that are such in `like`; of JSON, else as it is.

    UnsupportedCheckpoint for a number that is beyond float64.
    """
    if not isinstance(like, JsonFile) or not isinstance(found, JsonFile):
        return found
    floats = {key for key in found.whole() if key in like.entries} - like.whole()
    return found.floating(floats) if floats else found


def spelt_hint(key: str | None, *some: Checkpoint) -> str:
    """What helps where two of JSON differ at `key` since one of them has a whole number there."""
    if not any(isinstance(one, JsonFile) and key in one.whole() for one in some):
        return ""
    return "; a number that is averaged is written with a fraction in JSON: 0.0, not 0"


def departure(
    like: Checkpoint, found: Checkpoint, may_grow: Callable[[Entry], bool]
) -> tuple[str | None, str] | None:
    """(key, what is wrong) where `found` is not as `like`; None when it can stand for it.

    `may_grow` says which lists in JSON may be longer: not those whose numbers are found again one
    by one in `like`, as by a rule that moves these.
    """
    found = as_floats(like, found)
    if family(like) != family(found):
        return None, f"it is of the format {found.format}, and {like.path} is {like.format}"
    wanted = dict(like.entries)
    if like.format == JSON:
        wanted |= {
            key: entry
            for key, entry in found.entries.items()
            if may_grow(entry) and _has_grown(key, entry, like, found)
        }
    return disagreement(wanted, found.entries, like.path)


def _has_grown(key: str, entry: Entry, like: Checkpoint, found: Checkpoint) -> bool:
    before = like.entries.get(key)
    if before is not None:
        if (before.dtype, entry.dtype) not in ((entry.dtype, entry.dtype), ("int64", "float64")):
            return False
        longer = len(before.shape) == len(entry.shape) and before.shape[:1] <= entry.shape[:1]
        return longer and before.shape[1:] == entry.shape[1:]
    if like.lists.get(key) == 0:
        return key in found.lists
    value = like.rest.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        return entry.dtype == "float64" and not entry.shape
    return _is_beyond(key, like)


def _is_beyond(key: str, like: Checkpoint) -> bool:
    """Whether a key is below an index of a list of `like` that this does not reach."""
    parts = key.split(".")
    for end in range(1, len(parts)):
        length = like.lists.get(".".join(parts[:end]))
        if length is not None and parts[end].isdecimal() and int(parts[end]) >= length:
            return True
    return False
