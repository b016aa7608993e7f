"""The reward of the example: what its workers execute, once for each completion.

It takes two of the things that a trainer offers, and returns a number, as such functions do.
"""

from __future__ import annotations

import re

FINAL = re.compile(r"####\s*(-?\d+)\s*$")


def score(completion: str, answer: int) -> float:
    """1.0 for the right number after `####`, 0.1 for a wrong one, 0.0 for none."""
    found = FINAL.search(completion)
    if found is None:
        return 0.0
    return 1.0 if int(found[1]) == answer else 0.1
