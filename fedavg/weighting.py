"""From sample counts to weights: who counts in a round, and how much.

A weight of zero means "has seen no data": such a participant takes no part. A count that is no
count (NaN, negative, infinite) is an error of whoever wrote it, and is named, never mended.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from fsworker.errors import UsageError


def weights_of(counts: Mapping[str, float | None]) -> dict[str, float]:
    """The weights of those who take part, by participant, in the order of their names.

    `counts` maps participants to sample counts (or other non-negative weights); all None means
    that nobody counted, and all weigh the same. A weight is the count divided by a power of two, so
    that nothing is rounded and all together are at most 1: the mean is Σ weight · model divided by
    Σ weight. Equal counts give equal powers of two. UsageError names the participant whose count is
    NaN, negative, infinite, or missing beside others, and tells when nobody has any weight.
    """
    missing = sorted(name for name, count in counts.items() if count is None)
    if missing and len(missing) < len(counts):
        raise UsageError(
            f"{', '.join(missing)}: no sample count where others have one; give one to all or none"
        )
    numbers = {n: 1.0 if c is None else _checked(n, c) for n, c in sorted(counts.items())}
    taking_part = {name: count for name, count in numbers.items() if count > 0}
    if not taking_part:
        raise UsageError(
            f"no participant has any weight (of: {', '.join(numbers) or 'none'}): there is nothing "
            "to merge, and the old model stays"
        )
    if len(set(taking_part.values())) == 1:
        taking_part = dict.fromkeys(taking_part, 1.0)
    total = math.fsum(taking_part.values())
    fraction, exponent = math.frexp(total)
    if fraction == 0.5:  # a power of two itself
        exponent -= 1
    return {name: math.ldexp(count, -exponent) for name, count in taking_part.items()}


def _checked(name: str, count: float) -> float:
    try:
        value = float(count)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if isinstance(count, bool) or not 0 <= value <= 1e300:
        raise UsageError(f"{name}: the sample count {count!r} is no number of samples")
    return value
