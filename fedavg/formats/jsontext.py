"""JSON that must mean one thing: of two values with one name none is read."""

from __future__ import annotations

import json
from typing import Any

from fedavg.formats.errors import DamagedCheckpoint


def parse(data: bytes, what: str, path: str) -> dict[str, Any]:
    """The JSON object in `data`. DamagedCheckpoint, which says of `what`, for anything else.

    NaN and Infinity are read, so that whoever looks for them can name the key.
    """
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
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"it has {twice!r:.80} twice")
    return found
