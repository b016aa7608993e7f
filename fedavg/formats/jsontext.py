"""JSON that must mean one thing: of two values with one name none is read."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from fedavg.formats.errors import DamagedCheckpoint, UnsupportedCheckpoint

MAX_VALUES = 4_000_000
MAX_CONTAINERS = 1_000_000
"""What headers may have; a quarter of a million tensors take less. A few bytes of text become
hundreds in memory, so values are counted before any is made."""


def parse(
    data: bytes,
    what: str,
    path: str,
    *,
    values: int = MAX_VALUES,
    containers: int = MAX_CONTAINERS,
) -> dict[str, Any]:
    """The JSON object in `data`. DamagedCheckpoint, which says of `what`, for anything else.

    UnsupportedCheckpoint for more than so many values, or objects and lists: commas and brackets,
    of which those in strings count too. NaN and Infinity are read, so that whoever looks for them
    can name the key.
    """
    opened = data.count(b"[") + data.count(b"{")
    if opened > containers or opened + data.count(b",") > values:
        raise UnsupportedCheckpoint(
            path,
            f"{what} is JSON of more than {values} values, or {containers} lists and objects; "
            "save tensors as safetensors",
        )
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        detail = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise DamagedCheckpoint(path, f"{what} is no JSON: {detail:.200}") from None
    if not isinstance(value, dict):
        raise DamagedCheckpoint(path, f"{what} is no JSON object but a {type(value).__name__}")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"it has {twice!r:.80} twice")
    return found
