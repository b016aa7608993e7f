"""Objects that pass for an `async def`: for trainers that ask before they call.

Trainers decide by `inspect.iscoroutinefunction` whether to await. Before Python 3.12 it can be told
about an object only by what a compiled function has: the attributes that describe its code. They
come from a plain `async def` that stands for the object and is never run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from fsworker.rewards.reward import Reward


class AsyncReward(Reward):
    """A reward that is awaited."""

    __code__: CodeType
    __defaults__: tuple[Any, ...] | None
    __kwdefaults__: dict[str, Any] | None
    __signature__: inspect.Signature


def looks_like(model: Callable[..., Any]) -> Callable[[type[AsyncReward]], type[AsyncReward]]:
    """A class whose objects describe themselves as `model`, an `async def`."""
    assert isinstance(model, FunctionType)

    def mark(cls: type[AsyncReward]) -> type[AsyncReward]:
        cls.__code__ = model.__code__
        cls.__defaults__ = model.__defaults__
        cls.__kwdefaults__ = model.__kwdefaults__
        cls.__signature__ = inspect.signature(model)
        return cls

    return mark
