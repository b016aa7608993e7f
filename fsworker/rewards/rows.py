"""A trainer's batch, given in columns, as the samples that it consists of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fsworker.errors import UsageError


def rows(columns: Mapping[str, Any], count: int) -> Iterator[dict[str, Any]]:
    """The samples. What is not a column of that length is the same for each of them."""
    listed = {name: column for name, column in columns.items() if _is_column(column, count)}
    same = {name: value for name, value in columns.items() if name not in listed}
    for index in range(count):
        yield same | {name: column[index] for name, column in listed.items()}


def _is_column(value: Any, count: int) -> bool:
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__getitem__"):
        return False
    try:
        return len(value) == count
    except TypeError:  # an array without dimensions
        return False


def number_in(record: Any, *names: str) -> Any:
    """What a record says under the first of `names` that it holds; anything else is itself."""
    if not isinstance(record, Mapping):
        return record
    for name in names:
        if name in record:
            return record[name]
    raise UsageError(
        f"the reward function returned a map without a score: it holds {sorted(map(str, record))}, "
        f"and one of {', '.join(names)} is needed"
    )


def other_numbers(record: Any, *names: str) -> dict[str, float]:
    """The numbers that a record holds beside those under `names`."""
    if not isinstance(record, Mapping):
        return {}
    found = {str(k): v for k, v in record.items() if k not in names}
    return {name: float(value) for name, value in found.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or getattr(value, "shape", None) == ()
