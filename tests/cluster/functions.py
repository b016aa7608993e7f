"""What tasks on the cluster call."""

from __future__ import annotations

import os
import time


def double(x: int, seconds: float = 0.0) -> int:
    """Twice x, after some time."""
    time.sleep(seconds)
    return 2 * x


def where(x: int, seconds: float = 0.0) -> list[object]:
    """Twice x, and the host that found it."""
    return [double(x, seconds), os.environ["FLEET_HOST"]]
