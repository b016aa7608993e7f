"""The functions that all contenders execute, and their inputs: the same bytes for everyone."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable
from typing import Any

SEED = 20_240_601
_FILLER = (  # noqa: SIM905 - words are read more easily as a sentence
    "we first expand the product and collect the terms of equal degree so the sum over k "
    "telescopes and by symmetry only the middle term is left which gives the claim after "
    "dividing both sides by the common factor"
).split()
_BOXED = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}")
_FRACTION = re.compile(r"\\d?frac\{(-?\d+)\}\{(-?\d+)\}")
_ANSWER_IS = re.compile(r"(?i)(?:the\s+)?(?:final\s+)?answer\s*(?:is|:)\s*\$?([^\s$,;]+)")
_NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?(?:/\d+)?")
_CLEAN = re.compile(r"\\(?:left|right|text|mathrm|,|;|!)|[\s$()]")
ANSWER_SIZE = 500


def noop(payload: bytes) -> None:
    """Nothing: what remains is the cost of the way there and back."""


def grade(answer: str) -> float:
    """1.0 when the answer's last box, or sentence, or number is the value named in its head."""
    gold, _, text = answer.partition("|")
    boxes = _BOXED.findall(text)
    if boxes:
        found = boxes[-1]
    elif said := _ANSWER_IS.findall(text):
        found = said[-1]
    else:
        numbers = _NUMBER.findall(text)
        found = numbers[-1] if numbers else ""
    return float(_value(found) == _value(gold))


def _value(text: str) -> float | str:
    text = _FRACTION.sub(r"\1/\2", _CLEAN.sub("", text)).replace(",", "").rstrip(".")
    top, _, bottom = text.partition("/")
    try:
        return round(float(top) / float(bottom or 1), 9)
    except (ValueError, ZeroDivisionError):
        return text


def work(task: str) -> int:
    """Write down that it ran, then take 20 ms. `task` is "index path"."""
    index, _, path = task.partition(" ")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, f"{index}\n".encode())
    os.close(fd)
    time.sleep(0.02)
    return int(index)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {"noop": noop, "grade": grade, "work": work}


def payloads(count: int) -> list[bytes]:
    """100 bytes each, no two alike."""
    return [b"%012d" % i + b"x" * 88 for i in range(count)]


def answers(count: int) -> list[str]:
    """Answers of 500 characters, no two alike, two thirds of them right."""
    draw = random.Random(SEED)
    filler = [" ".join(draw.choices(_FILLER, k=100)) for _ in range(64)]
    return [_answer(i, filler[i % 64]) for i in range(count)]


def _answer(i: int, filler: str) -> str:
    gold, told = f"{i}/7", i + (i % 3 == 0)
    ends = (
        f" so it is \\boxed{{\\frac{{{told}}}{{7}}}}.",
        f" thus the final answer is ${told}/7$ .",
        f" hence \\boxed{{\\left( {told} \\right)/7}} $",
    )
    head, end = f"{gold}|", ends[i % 3]
    return head + filler[: ANSWER_SIZE - len(head) - len(end)] + end
