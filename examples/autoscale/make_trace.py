"""Makes `trace.msgpack`: two weeks of load on a service, in steps of five minutes.

    python make_trace.py [--seed 1] [--out trace.msgpack]

Days have a morning and an evening peak, weekends are calmer, a batch job runs every six hours, and
now and then there is a burst that announces itself. The same seed gives the same bytes.
"""

from __future__ import annotations

import argparse
import math
import random
from pathlib import Path

import msgpack

HERE = Path(__file__).resolve().parent
DAY = 288
DAYS = 14


def usual(step: int) -> float:
    """What is expected at a step, in requests a second."""
    hour = step % DAY * 24 / DAY
    peaks = math.exp(-(((hour - 10) / 2.5) ** 2)) + 1.2 * math.exp(-(((hour - 19) / 2.0) ** 2))
    calm = 0.7 if step // DAY % 7 >= 5 else 1.0
    batch = 180 if step % (DAY // 4) in range(12, 20) else 0
    return calm * (110 + 330 * peaks) + batch


def load(seed: int) -> list[int]:
    """The load at each step, in requests a second."""
    dice = random.Random(seed)
    values, burst = [], 0.0
    for step in range(DAY * DAYS):
        if burst < 1 and dice.random() < 0.01:
            burst = 40.0
        burst *= 1.6 if 1 <= burst < 200 else 0.55
        noise = dice.gauss(0, 12)
        values.append(max(5, round(usual(step) + burst + noise)))
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE / "trace.msgpack")
    args = parser.parse_args()
    args.out.write_bytes(msgpack.packb({"seconds": 86400 // DAY, "load": load(args.seed)}))


if __name__ == "__main__":
    main()
