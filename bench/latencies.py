"""How many tasks in sequence: enough for a 99th percentile where one takes milliseconds."""

from __future__ import annotations

_SLOW = {"jug_files": (10, 3), "celery_files": (20, 5), "hyperqueue_jobs": (20, 5)}
"""Those that take a second each: as many as patience allows, and with --quick."""


def count(module: str, quick: bool) -> int:
    """How many for a contender's module."""
    full, fast = _SLOW.get(module, (200, 50))
    return fast if quick else full
