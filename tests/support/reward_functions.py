"""Reward functions as users of trainers write them, and one that fails as it is told."""

from __future__ import annotations

import os
import time
from typing import Any


def grade(completion: Any, answer: Any) -> float:
    """Takes little of what a trainer offers."""
    return 1.0 if str(completion).strip() == str(answer) else 0.0


def areal_style(
    prompt: Any, completions: Any, prompt_ids: Any, completion_ids: Any, answer: Any, **data: Any
) -> float:
    """The signature of functions that are written for AReaL."""
    return 1.0 if str(answer) in completions else 0.0


def own_names(question: Any, text: Any, q_ids: Any, t_ids: Any, **data: Any) -> list[Any]:
    return [question, text, q_ids, t_ids, data]


def everything(**given: Any) -> dict[str, Any]:
    return given


def record(solution_str: str, ground_truth: Any, extra_info: Any = None) -> dict[str, Any]:
    """A record with a score, as verl's functions may return."""
    right = solution_str == ground_truth
    return {"score": float(right), "acc": right, "note": "text", "info": extra_info}


def maybe(completion: str) -> float | None:
    """Says nothing about some samples."""
    return None if completion == "skip" else float(len(completion))


def rated(query: str, label: Any) -> dict[str, Any]:
    return {"rewards": 2.0, "scores": float(label in query), "extra_logs": {"length": len(query)}}


def fail(how: str, path: str, times: int) -> str:
    """Fail `times` times in one way, then succeed; what was tried is counted in a file."""
    with open(path, "a") as file:
        file.write(f"{how}\n")
    with open(path) as file:
        if len(file.readlines()) > times:
            return "at last"
    if how == "timeout":
        time.sleep(60)
    if how == "crashed":
        os.abort()
    raise ValueError("plainly wrong")
