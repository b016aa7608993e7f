"""The `data` of stable-baselines3 in a first round: what no single participant can decide.

`data` is JSON whose values may be pickles (`:serialized:`), and stable-baselines3 runs them when it
loads the file. So each value is the one that more than half of the participants have, to the byte.
Who has no document, or none that can be read, counts among these as well: else one participant who
can be read would be most of them. Where no value has so many, because every participant has his own
(timesteps, the last observation), it is the first participant's by name who has it, as far as
nothing in it can run; else it is left out.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from fedavg.formats.errors import DamagedCheckpoint, UnsupportedCheckpoint
from fedavg.formats.inert import is_inert
from fedavg.formats.jsontext import parse

DATA = "data"
SERIALIZED = ":serialized:"
MAX_DATA = 8 << 20
"""Bytes. Those of all participants are in memory at once."""
MAX_VALUES = 100_000


@dataclass(frozen=True)
class Agreed:
    """The document (None: nobody's can be read), and the names that were left out of it.

    `unheard` are the participants who have no say in it, where it was put together of values.
    """

    document: bytes | None
    left_out: tuple[str, ...] = ()
    unheard: tuple[str, ...] = ()


def agreed(documents: Mapping[str, bytes | None]) -> Agreed:
    """One document of those of all participants, by their names. The same for any order of them.

    None is for a participant who has none, or none that may be read. He counts as one who differs.
    """
    ordered = {name: documents[name] for name in sorted(documents)}
    whole = _majority([d for d in ordered.values() if d is not None], len(ordered))
    if whole is not None:
        return Agreed(whole)
    read = {name: _read(document) for name, document in ordered.items()}
    readable = [found for found in read.values() if found is not None]
    unheard = tuple(name for name, found in read.items() if found is None)
    if not readable:
        return Agreed(None, unheard=unheard)
    kept, left_out = {}, []
    for name in dict.fromkeys(name for document in readable for name in document):
        values = [document[name] for document in readable if name in document]
        value = _value(values, len(ordered))
        if value is None:
            left_out.append(name)
        else:
            kept[name] = json.loads(value)
    return Agreed(json.dumps(kept, indent=4).encode("ascii"), tuple(left_out), unheard)


def _value(values: list[str], total: int) -> str | None:
    """The value of a name as JSON, of `total` participants of whom these have one."""
    told = [_told(value) for value in values]
    common = _majority(told, total)
    if common is not None:
        return values[told.index(common)]
    return next((v for v, t in zip(values, told, strict=True) if _can_run_nothing(t)), None)


def _told(value: str) -> bytes:
    """What loading a value makes it of: the pickle, with a mark before it, or else the JSON."""
    found = json.loads(value)
    if not isinstance(found, dict) or SERIALIZED not in found:
        return b"j" + value.encode("ascii")
    try:
        return b"p" + base64.b64decode(found[SERIALIZED])
    except (TypeError, ValueError, binascii.Error):
        return b"x" + value.encode("ascii")


def _can_run_nothing(told: bytes) -> bool:
    return told[:1] == b"j" or (told[:1] == b"p" and is_inert(told[1:]))


def _majority(values: list[bytes], total: int) -> bytes | None:
    value, votes = Counter(values).most_common(1)[0] if values else (b"", 0)
    return value if 2 * votes > total else None


def _read(document: bytes | None) -> dict[str, str] | None:
    """Its values by name, each as JSON in one spelling; None for what is no such document."""
    if document is None:
        return None
    try:
        found = parse(document, DATA, "", values=MAX_VALUES, containers=MAX_VALUES)
        return {name: json.dumps(value, sort_keys=True) for name, value in found.items()}
    except (DamagedCheckpoint, UnsupportedCheckpoint, RecursionError, ValueError):
        return None
