"""The function of `stragglers`: it takes as long as it is told, and says who executed it."""

from __future__ import annotations

import os
import time


def nap(seconds: float) -> str:
    """Sleep; the host's name."""
    time.sleep(seconds)
    return os.environ["FLEET_HOST"]
