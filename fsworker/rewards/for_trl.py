"""Rewards for TRL: a batch a call, in columns, answered by a list of numbers and Nones.

TRL also gives objects of its own process, which stay there. It logs a reward under its `__name__`.
A function that returns a record (a map with a score) has its score used and its other numbers
logged, where this TRL has a way to log them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

from fsworker.rewards.arguments import Fn
from fsworker.rewards.options import Given, checked
from fsworker.rewards.reward import Reward
from fsworker.rewards.rows import number_in, other_numbers, rows

_NOT_SENT = ("trainer_state", "log_extra", "log_metric", "environments")
_SCORE = ("reward", "score", "rewards", "scores")

_LogExtra = Callable[[str, list[Any]], None]


class TrlReward(Reward):
    """`reward(prompts=…, completions=…, **columns)`, a value for each sample."""

    OTHER_NAMES: Mapping[str, str] = {"prompt": "prompts", "completion": "completions"}

    def __call__(
        self,
        prompts: Sequence[Any] | None = None,
        completions: Sequence[Any] | None = None,
        *,
        log_extra: _LogExtra | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """The rewards of a batch, in its order."""
        offered = {"prompts": prompts, "completions": completions}
        batch = {name: column for name, column in offered.items() if column is not None}
        batch |= {name: column for name, column in columns.items() if name not in _NOT_SENT}
        count = len(completions if completions is not None else prompts or ())
        values = self._score_all(rows(batch, count))
        if log_extra is not None:
            self._log(values, log_extra)
        return [number_in(value, *_SCORE) for value in values]

    def _log(self, values: list[Any], log_extra: _LogExtra) -> None:
        """The further numbers of records, each as a column that is full."""
        found = [other_numbers(value, *_SCORE) for value in values]
        for name in dict.fromkeys(name for numbers in found for name in numbers):
            log_extra(f"{self.__name__}/{name}", [numbers.get(name) for numbers in found])


def trl(fn: Fn, root: str | os.PathLike[str], **options: Unpack[Given]) -> TrlReward:
    """A member of `reward_funcs` for TRL's trainers. `default=None` leaves a sample out."""
    return TrlReward(fn, checked(root, options))
