"""Rewards for AReaL: one sample a call, awaited.

AReaL wraps a reward in its `AsyncRewardWrapper`, which its workflows await, and which executes the
function in a process pool of its own. An adapter replaces that wrapper. It also serves inside it:
there it is called in a pool process, where nobody awaits, and what it returned is pickled.
"""

from __future__ import annotations

import os
from collections.abc import Coroutine, Generator, Mapping
from types import TracebackType
from typing import Any, Unpack

from fsworker.rewards import arguments
from fsworker.rewards.arguments import Fn, Signature
from fsworker.rewards.asyncform import AsyncReward, looks_like
from fsworker.rewards.options import Given, checked
from fsworker.rewards.reward import Call, Opened

_POSITIONS = ("prompt", "completions", "prompt_ids", "completion_ids")


async def _model(
    prompt: Any, completions: Any, prompt_ids: Any = None, completion_ids: Any = None, **data: Any
) -> Any: ...


@looks_like(_model)
class ArealReward(AsyncReward):
    """`await reward(prompt, completions, prompt_ids, completion_ids, **data)`."""

    OTHER_NAMES: Mapping[str, str] = {"completion": "completions"}

    def __call__(self, *args: Any, **data: Any) -> Awaited:
        """The reward of one sample; what `fn` returned, unchanged."""
        return Awaited(self, dict(zip(_POSITIONS, args, strict=False)) | data)

    def _call(self, opened: Opened, offered: Mapping[str, Any]) -> Call:
        signature = opened.signature
        kept = arguments.chosen(signature, offered, self.OTHER_NAMES)
        absent = arguments.missing(signature, kept)
        if not absent:
            return Call((), kept)
        if not _by_position(signature, offered):
            raise arguments.refuse(self.fn, absent, offered)
        taken = {*_POSITIONS, *signature.leading[: len(_POSITIONS)]}
        data = {name: value for name, value in kept.items() if name not in taken}
        return Call([offered[name] for name in _POSITIONS], data)


def _by_position(signature: Signature, offered: Mapping[str, Any]) -> bool:
    """Whether a function has its own names for what AReaL gives by position, and all it needs."""
    leading = signature.leading[: len(_POSITIONS)]
    if len(leading) < len(_POSITIONS) or not offered.keys() >= set(_POSITIONS):
        return False
    moved = [n for n, own in zip(leading, _POSITIONS, strict=True) if n in offered and n != own]
    return not moved and signature.required <= {*leading, *offered}


class Awaited(Coroutine[Any, Any, Any]):
    """A reward that is on its way: a coroutine that, being pickled, is waited for instead."""

    def __init__(self, reward: ArealReward, offered: Mapping[str, Any]) -> None:
        self._reward = reward
        self._offered = offered
        self._running: Coroutine[Any, Any, Any] | None = None

    def _run(self) -> Coroutine[Any, Any, Any]:
        if self._running is None:
            self._running = self._reward._score_async(self._offered)
        return self._running

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._run().__await__()

    def send(self, value: Any) -> Any:
        """Go on."""
        return self._run().send(value)

    def throw(
        self,
        kind: type[BaseException] | BaseException,
        value: BaseException | object = None,
        trace: TracebackType | None = None,
    ) -> Any:
        """Go on with an exception."""
        error = kind if isinstance(kind, BaseException) else value or kind()
        assert isinstance(error, BaseException)
        return self._run().throw(error)

    def close(self) -> None:
        """Give up."""
        if self._running is not None:
            self._running.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _value, (self._reward._score(self._offered),)


def _value(value: Any) -> Any:
    return value


def areal(fn: Fn, root: str | os.PathLike[str], **options: Unpack[Given]) -> ArealReward:
    """A reward for AReaL workflows, in place of `AsyncRewardWrapper(fn)` or of `fn`."""
    return ArealReward(fn, checked(root, options))
