"""Writes `answers.jsonl`: 2,000 answers to grade, of which the right verdict is known beforehand.

Graded work of real models cannot be shipped and would not say what is true. So each line is made
from its verdict: an id that begins with the kind, the gold answer, and what a model might have
written. The seed is fixed, so that the same file comes out everywhere; a test compares them.

    python examples/grading/make_answers.py            rewrites the file beside this script
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

COUNTS = {"right": 1280, "wrong": 560, "malformed": 152, "pathological": 8}
"""How many answers of each kind the file holds."""

Pair = tuple[str, str, str]
"""A gold answer, a spelling that equals it, and one that does not."""


def _integer(rng: random.Random) -> Pair:
    n = rng.randrange(-999, 10_000)
    return (
        f"{n}",
        rng.choice([f"{n}", f"{n}.0", f"{n - 7}+7"]),
        f"{n + rng.choice([-10, -1, 1, 9])}",
    )


def _fraction(rng: random.Random) -> Pair:
    d = rng.choice([2, 4, 5, 8, 20, 25])
    n = rng.randrange(1, 40) * 2 + 1
    k = rng.randrange(2, 9)
    same = rng.choice([f"\\frac{{{n * k}}}{{{d * k}}}", f"{n / d}", f"\\dfrac{{{n}}}{{{d}}}"])
    return f"\\frac{{{n}}}{{{d}}}", same, f"\\frac{{{n}}}{{{d + 1}}}"


def _root(rng: random.Random) -> Pair:
    a, b = rng.randrange(2, 12), rng.choice([2, 3, 5, 7])
    return f"{a}\\sqrt{{{b}}}", f"\\sqrt{{{a * a * b}}}", f"{a}\\sqrt{{{b + 4}}}"


def _polynomial(rng: random.Random) -> Pair:
    a, b = rng.randrange(1, 9), rng.randrange(1, 9)
    product = f"(x+{a})(x+{b})"
    return f"x^2+{a + b}x+{a * b}", product, f"x^2+{a + b}x+{a * b + 1}"


def _set(rng: random.Random) -> Pair:
    items = rng.sample(range(1, 60), 3)
    shown = ", ".join(map(str, items))
    turned = ", ".join(map(str, reversed(items)))
    other = ", ".join(map(str, [*items[:2], items[2] + 60]))
    return f"\\{{{shown}\\}}", f"\\{{{turned}\\}}", f"\\{{{other}\\}}"


def _interval(rng: random.Random) -> Pair:
    low = rng.randrange(-20, 20)
    high = low + rng.randrange(2, 30)
    return f"({low}, {high}]", f"({low}, {high}]", f"({low}, {high + 1}]"


def _power(rng: random.Random) -> Pair:
    base, exponent = rng.randrange(2, 10), rng.randrange(2, 6)
    return f"{base**exponent}", f"{base}^{{{exponent}}}", f"{base}^{{{exponent + 1}}}"


SHAPES: tuple[Callable[[random.Random], Pair], ...] = (
    _integer, _integer, _fraction, _fraction, _root, _polynomial, _set, _interval, _power,
)  # fmt: skip

WORDING = (
    "The answer is \\boxed{%s}.",
    "Adding up both sides we get what was asked for: \\boxed{%s}",
    "<think>Let me try small cases first. That works.</think> So it is $\\boxed{%s}$.",
    "Step 1: simplify.\nStep 2: collect terms.\n\nFinal answer: \\boxed{%s}",
    "\\boxed{%s}",
)

MALFORMED = (
    "",
    "   \n\t ",
    "I do not know.",
    "\\boxed{",
    "The answer is \\boxed{\\frac{",
    "\\boxed{\\boxed{\\boxed{",
    "so it must be \\boxed{}.",
    "\\sqrt{\\left(",
    "\u202e\u200b\ufeff answer missing \U0001f9ee",
    "<think>" + "Let me think again. " * 12,
    '{"answer": null}',
    "Traceback (most recent call last): the model was cut off",
)
"""What no grader can find an answer in."""

PATHOLOGICAL = (
    "\\boxed{9^{9^{9}}}",
    "\\boxed{8^{9^{9^{9}}}}",
    "\\boxed{10000000!}",
    "\\boxed{20000000!}",
    "\\boxed{\\binom{100000000}{50000000}}",
    "\\boxed{\\binom{200000000}{70000000}}",
    "\\boxed{" + "\\sin(" * 31 + "x" + ")" * 31 + "}",
    "\\boxed{7^{7^{7^{7}}}+1}",
)
"""Short to write and endless to compare: some compute in C, where no alarm reaches them."""


def _one(kind: str, i: int, rng: random.Random) -> tuple[str, str]:
    gold, same, other = rng.choice(SHAPES)(rng)
    if kind == "malformed":
        return gold, MALFORMED[i % len(MALFORMED)]
    if kind == "pathological":
        return "42", PATHOLOGICAL[i % len(PATHOLOGICAL)]
    return gold, rng.choice(WORDING) % (same if kind == "right" else other)


def lines(seed: int = 20) -> Iterator[str]:
    """The file's lines, in an order in which the kinds are mixed."""
    rng = random.Random(seed)  # a fixed seed is the point
    kinds = [kind for kind, count in COUNTS.items() for _ in range(count)]
    rng.shuffle(kinds)
    seen = dict.fromkeys(COUNTS, 0)
    for kind in kinds:
        gold, answer = _one(kind, seen[kind], rng)
        seen[kind] += 1
        task = {"id": f"{kind}-{seen[kind]:04d}", "kwargs": {"gold": gold, "answer": answer}}
        yield json.dumps(task, ensure_ascii=True) + "\n"


def main() -> int:
    """Write the file."""
    target = Path(__file__).with_name("answers.jsonl")
    target.write_text("".join(lines()), encoding="ascii")
    print(f"{sum(COUNTS.values())} answers in {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
