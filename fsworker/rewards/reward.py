"""What all adapters have in common: a function of a run, opened anew in each process.

Trainers make a reward in one process, pickle it into actors and fork it into data loaders. So an
adapter is only what it was made from; its client, counts and knowledge of the function belong to a
process, and are made when that process first scores something.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from fsworker.client import Client
from fsworker.rewards import arguments
from fsworker.rewards.arguments import Fn, Signature
from fsworker.rewards.options import Options
from fsworker.rewards.pursuit import Pursuit, Stats


class Call:
    """One call to be sent."""

    __slots__ = ("args", "kwargs")

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.args = args
        self.kwargs = kwargs


class Opened:
    """What an adapter needs in one process."""

    def __init__(self, fn: Fn, options: Options) -> None:
        self.client = Client(
            options.root, timeout=options.timeout, no_worker_timeout=options.no_worker_timeout
        )
        self.signature: Signature = arguments.signature_of(fn, options.takes)


class Reward:
    """A function of a run, for a trainer. Its subclasses are called as their trainer calls."""

    OTHER_NAMES: Mapping[str, str] = {}
    """Further names for what the trainer offers, by which functions may ask for it."""

    def __init__(self, fn: Fn, options: Options) -> None:
        self.fn = fn
        self.options = options
        # Trainers name their metrics and their processes by it.
        self.__name__ = _short(fn)
        self.__qualname__ = self.__name__
        self._opened: dict[int, Opened] = {}
        self._locks: dict[int, threading.Lock] = {}
        self._stats: dict[int, Stats] = {}

    @property
    def stats(self) -> Stats:
        """What became of the calls in this process."""
        # `setdefault` is one step, and needs no lock that a fork could leave taken.
        pid = os.getpid()
        return self._stats.get(pid) or self._stats.setdefault(pid, Stats())

    def close(self) -> None:
        """Wait for what was sent, and end this process's client; the next call opens another."""
        opened = self._opened.pop(os.getpid(), None)
        if opened is not None:
            opened.client.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.fn, self.options)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.__name__} at {self.options.root}>"

    # -- for subclasses

    def _open(self) -> Opened:
        """What this process needs: read from the disk, and the function imported, at first."""
        pid = os.getpid()
        opened = self._opened.get(pid)
        if opened is None:
            # Coroutines begin by the hundred. A lock of this process's own: a fork may leave the
            # parent's taken.
            with self._locks.setdefault(pid, threading.Lock()):
                opened = self._opened.get(pid)
                if opened is None:
                    opened = self._opened[pid] = Opened(self.fn, self.options)
        return opened

    async def _open_async(self) -> Opened:
        opened = self._opened.get(os.getpid())
        return await asyncio.to_thread(self._open) if opened is None else opened

    def _call(self, opened: Opened, offered: Mapping[str, Any]) -> Call:
        """The call for a sample. UsageError when the function requires what is not offered."""
        kept = arguments.chosen(opened.signature, offered, self.OTHER_NAMES)
        absent = arguments.missing(opened.signature, kept)
        if absent:
            raise arguments.refuse(self.fn, absent, offered)
        return Call((), kept)

    def _send(self, opened: Opened, call: Call) -> Future[Any]:
        def submit() -> Future[Any]:
            return opened.client.submit(self.fn, *call.args, **call.kwargs)

        return Pursuit(submit, self.options, self.stats).start()

    def _score(self, offered: Mapping[str, Any]) -> Any:
        """One sample's reward."""
        return self._score_all([offered])[0]

    def _score_all(self, samples: Iterable[Mapping[str, Any]]) -> list[Any]:
        """The rewards of a batch, in its order."""
        opened = self._open()
        calls = [self._call(opened, offered) for offered in samples]
        answers: list[Future[Any]] = []
        try:
            answers.extend(self._send(opened, call) for call in calls)
            return [answer.result() for answer in answers]
        except BaseException:  # one failed, or the caller is interrupted: nobody needs the others
            for answer in answers:
                answer.cancel()
            raise

    async def _score_async(self, offered: Mapping[str, Any]) -> Any:
        opened = await self._open_async()
        return await asyncio.wrap_future(self._send(opened, self._call(opened, offered)))


def _short(fn: Fn) -> str:
    if isinstance(fn, str):
        return fn.replace(":", ".").rpartition(".")[2]
    return str(getattr(fn, "__name__", type(fn).__name__))
