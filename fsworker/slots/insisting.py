"""Whether a task that raised is tried again: by count, by the exception's name, after a delay.

It is tried where it is, in its slot: a round trip over the files would cost more than most tasks,
and a task keeps one result. The rule is the batch's `retries`: `[count, names, delay]`; a rule that
is none is as good as no rule, since the result that is there says what went wrong.
"""

from __future__ import annotations

from typing import Any

LONGEST = 3600.0
"""Seconds of the longest delay."""


def pause(rule: Any, tries: int, cause: Any) -> float | None:
    """Seconds to wait before the next try, after `tries` repetitions; None: no more."""
    if not isinstance(rule, (list, tuple)) or len(rule) != 3 or not isinstance(cause, dict):
        return None
    count, names, delay = rule
    if not isinstance(count, int) or tries >= count or not isinstance(names, (list, tuple)):
        return None
    if names and not _named(str(cause.get("type", "")), names):
        return None
    if not isinstance(delay, (int, float)) or not delay >= 0:
        return 0.0
    return min(float(delay), LONGEST)


def _named(kind: str, names: Any) -> bool:
    return kind in names or kind.rpartition(".")[2] in names
