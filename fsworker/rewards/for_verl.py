"""Rewards for verl: `compute_score` in the three forms in which its reward managers call it.

The managers of its reward loop (naive, dapo, gdpo, limited) ask whether the function is a coroutine
function and await it. Its remote and prime managers, and all of older versions, call it and wait.
The batch manager gives lists.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack, overload

from fsworker.errors import UsageError
from fsworker.rewards.arguments import Fn
from fsworker.rewards.asyncform import AsyncReward, looks_like
from fsworker.rewards.options import Given, checked
from fsworker.rewards.reward import Reward
from fsworker.rewards.rows import rows

_OTHER_NAMES = {"completion": "solution_str", "completions": "solution_str"}
_NOT_SENT = ("reward_model_tokenizer",)
"""An object of the trainer's own process."""


async def _model(
    data_source: Any, solution_str: Any, ground_truth: Any, extra_info: Any = None, **more: Any
) -> Any: ...


def _sample(
    data_source: Any, solution_str: Any, ground_truth: Any, extra_info: Any, more: Mapping[str, Any]
) -> dict[str, Any]:
    offered = {
        "data_source": data_source,
        "solution_str": solution_str,
        "ground_truth": ground_truth,
        "extra_info": extra_info,
    }
    return offered | {name: value for name, value in more.items() if name not in _NOT_SENT}


@looks_like(_model)
class VerlReward(AsyncReward):
    """`await compute_score(data_source, solution_str, ground_truth, extra_info)`."""

    OTHER_NAMES: Mapping[str, str] = _OTHER_NAMES

    async def __call__(
        self,
        data_source: Any,
        solution_str: Any,
        ground_truth: Any,
        extra_info: Any = None,
        **more: Any,
    ) -> Any:
        """The score of one sample, or the record of it: what `fn` returned, unchanged."""
        sample = _sample(data_source, solution_str, ground_truth, extra_info, more)
        return await self._score_async(sample)


class VerlSyncReward(Reward):
    """`compute_score(data_source, solution_str, ground_truth, extra_info)`, waiting."""

    OTHER_NAMES: Mapping[str, str] = _OTHER_NAMES

    def __call__(
        self,
        data_source: Any,
        solution_str: Any,
        ground_truth: Any,
        extra_info: Any = None,
        **more: Any,
    ) -> Any:
        """The score of one sample, or the record of it: what `fn` returned, unchanged."""
        return self._score(_sample(data_source, solution_str, ground_truth, extra_info, more))


class VerlBatchReward(Reward):
    """`compute_score(data_sources, solution_strs, ground_truths, extra_infos)`."""

    OTHER_NAMES: Mapping[str, str] = _OTHER_NAMES

    def __call__(
        self,
        data_sources: Sequence[Any],
        solution_strs: Sequence[Any],
        ground_truths: Sequence[Any],
        extra_infos: Sequence[Any] | None = None,
        **more: Any,
    ) -> list[Any]:
        """The scores of a batch, in its order."""
        columns: dict[str, Any] = {
            "data_source": data_sources,
            "solution_str": solution_strs,
            "ground_truth": ground_truths,
            "extra_info": extra_infos,
        }
        sent = {name: value for name, value in more.items() if name not in _NOT_SENT}
        return self._score_all(rows(columns | sent, len(solution_strs)))


@overload
def verl(
    fn: Fn,
    root: str | os.PathLike[str],
    *,
    form: Literal["async"] = "async",
    **options: Unpack[Given],
) -> VerlReward: ...
@overload
def verl(
    fn: Fn, root: str | os.PathLike[str], *, form: Literal["sync"], **options: Unpack[Given]
) -> VerlSyncReward: ...
@overload
def verl(
    fn: Fn, root: str | os.PathLike[str], *, form: Literal["batch"], **options: Unpack[Given]
) -> VerlBatchReward: ...
def verl(
    fn: Fn, root: str | os.PathLike[str], *, form: str = "async", **options: Unpack[Given]
) -> VerlReward | VerlSyncReward | VerlBatchReward:
    """A `compute_score` for verl. `form` is what its reward manager calls: async, sync, batch."""
    if form not in _FORMS:
        raise UsageError(f"form must be one of {', '.join(_FORMS)}, not {form!r}")
    return _FORMS[form](fn, checked(root, options))


_FORMS: dict[str, type[VerlReward | VerlSyncReward | VerlBatchReward]] = {
    "async": VerlReward,
    "sync": VerlSyncReward,
    "batch": VerlBatchReward,
}
