"""Grades an answer against the gold answer with math-verify: what the demo's workers run.

It has no time limit of its own. math-verify would set an alarm, which cannot interrupt what
computes in C; the fleet's limit for each task can, because it ends the process.
"""

from __future__ import annotations

import logging

from math_verify import parse, verify

# It warns at every call that a limit must come from elsewhere. It does.
logging.getLogger("math_verify").setLevel(logging.ERROR)


def grade(gold: str, answer: str) -> float:
    """1.0 when the answer equals the gold answer, 0.0 when it does not or there is none."""
    expected = parse(f"${gold}$", parsing_timeout=None)
    given = parse(answer, parsing_timeout=None)
    return 1.0 if verify(expected, given, timeout_seconds=None) else 0.0
