"""What tasks on the cluster call."""

from __future__ import annotations

import time


def double(x: int, seconds: float = 0.0) -> int:
    """Twice x, after some time."""
    time.sleep(seconds)
    return 2 * x
