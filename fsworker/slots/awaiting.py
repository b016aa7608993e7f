"""Coroutines of user code, each run to its end in an event loop that later tasks use again."""

from __future__ import annotations

import asyncio
from typing import Any


class Awaiter:
    """One event loop, made when it is first needed."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def run(self, coroutine: Any) -> Any:
        """The coroutine's value. Raises what it raises, and leaves nothing of it running."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        try:
            return self._runner.run(_alone(coroutine))
        except BaseException as error:
            if not isinstance(error, Exception):
                self._runner = None  # the loop was left in the middle
            raise


async def _alone(coroutine: Any) -> Any:
    """The coroutine's value; tasks that it left behind are ended with it, as asyncio.run does."""
    try:
        return await coroutine
    finally:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.gather(*left, return_exceptions=True)
