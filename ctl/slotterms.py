"""What slots get beside their share of the work, as options, settings and workers-json say it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ctl import units
from fsworker.errors import UsageError
from fsworker.protocol.records import slots
from fsworker.protocol.records.slots import MOST_COROUTINES, SlotTerms


def coroutines(value: object) -> int:
    """How many coroutines a slot runs at once. ValueError."""
    found = units.count(value)
    if found > MOST_COROUTINES:
        raise ValueError(f"{value!r} is more than {MOST_COROUTINES}")
    return found


NAMES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "slot_mem": ("memory", slots.size),
    "gpus": ("gpus", slots.gpus),
    "slots_per_gpu": ("per_gpu", units.count),
    "slot_async": ("coroutines", coroutines),
}
"""Settings and fields of workers-json: what they are in SlotTerms, and how they are read."""


def usual(pick: Callable[[str], Any]) -> SlotTerms:
    """Those of every worker that has none of its own."""
    found = {field: pick(name) for name, (field, _) in NAMES.items()}
    return SlotTerms(**{field: value for field, value in found.items() if value is not None})


def own(item: Mapping[str, Any], where: str, default: SlotTerms) -> SlotTerms:
    """Those of one entry of workers-json. UsageError names entry and field."""
    given: dict[str, Any] = {}
    for name, (field, read) in NAMES.items():
        if item.get(name) is None:
            continue
        try:
            given[field] = read(item[name])
        except ValueError as error:
            raise UsageError(f"{where}: field {name!r}: {error}") from None
    return replace(default, **given)
