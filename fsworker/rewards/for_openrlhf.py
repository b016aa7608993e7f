"""Rewards for OpenRLHF: `reward_func(queries, prompts, labels)`, answered by columns of a batch.

It reads `rewards` (for advantages), `scores` (for its dynamic filter) and `extra_logs`, and expects
tensors of one dimension there: of a batch of one it makes a number out of the tensor, where a list
would add a dimension. torch is loaded wherever it calls us, and only there, so it is looked up.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from fsworker.rewards.arguments import Fn
from fsworker.rewards.options import Given, checked
from fsworker.rewards.reward import Reward
from fsworker.rewards.rows import number_in, other_numbers, rows

_REWARD = ("rewards", "reward", "scores", "score")
_SCORE = ("scores", "score", "rewards", "reward")


class OpenRlhfReward(Reward):
    """`reward_func(queries, prompts, labels)`: a map of tensors (of lists without torch)."""

    OTHER_NAMES: Mapping[str, str] = {"query": "queries", "prompt": "prompts", "label": "labels"}

    def __call__(
        self,
        queries: Sequence[Any],
        prompts: Sequence[Any],
        labels: Sequence[Any] | None = None,
        **columns: Any,
    ) -> dict[str, Any]:
        """The rewards of a batch, in its order."""
        batch = {"queries": queries, "prompts": prompts, "labels": labels, **columns}
        values = self._score_all(rows(batch, len(queries)))
        return {
            "rewards": _column([number_in(value, *_REWARD) for value in values]),
            "scores": _column([number_in(value, *_SCORE) for value in values]),
            "extra_logs": _logs(values),
        }


def _logs(records: list[Any]) -> dict[str, Any]:
    """The further numbers of records, by name; those of a record's own `extra_logs` too."""
    found = [
        other_numbers(record, *_REWARD) | other_numbers(record.get("extra_logs"))
        for record in records
        if isinstance(record, Mapping)
    ]
    names = dict.fromkeys(name for numbers in found for name in numbers)
    return {name: _column([numbers.get(name) for numbers in found]) for name in names}


def _column(values: list[Any]) -> Any:
    """A column of numbers; None when none has a value, which OpenRLHF takes for no reward."""
    if all(value is None for value in values):
        return None
    numbers = [math.nan if value is None else float(value) for value in values]
    torch = sys.modules.get("torch")
    return numbers if torch is None else torch.tensor(numbers, dtype=torch.float32)


def openrlhf(fn: Fn, root: str | os.PathLike[str], **options: Unpack[Given]) -> OpenRlhfReward:
    """The `reward_func` of a file that `--reward.remote_url` of OpenRLHF names."""
    return OpenRlhfReward(fn, checked(root, options))
