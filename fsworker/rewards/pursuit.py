"""From one call to its reward: sent again after some failures, given up after others.

It moves by callbacks, so that a batch, a thread and a coroutine wait for the same thing, and so
that a call that is tried again does not wait for its neighbours.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any

from fsworker import outcomes
from fsworker.remote import NotSent, TaskError
from fsworker.rewards.options import DEFAULT, Options

log = logging.getLogger(__name__)


@dataclass
class Stats:
    """What became of the calls of one adapter in this process.

    `ok` calls had a value, `defaults` got the default instead, `failed` raised. On the way,
    `timeouts` of their attempts took too long, and `retries` were attempts after the first.
    """

    ok: int = 0
    timeouts: int = 0
    retries: int = 0
    defaults: int = 0
    failed: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def count(self, name: str) -> None:
        """One more."""
        with self._lock:
            setattr(self, name, getattr(self, name) + 1)

    def as_dict(self) -> dict[str, int]:
        """All counts by name, for a trainer's own log."""
        return {name: getattr(self, name) for name in ("ok", "timeouts", "retries", *_ENDS)}


_ENDS = ("defaults", "failed")


class Next(enum.Enum):
    """What follows a failed attempt."""

    RETRY = "retry"
    DEFAULT = "default"
    RAISE = "raise"


def after(error: BaseException, retries: int, options: Options) -> Next:
    """What follows `error`, after `retries` repetitions.

    Only what is a task's own failure is repeated or covered by the default. That nobody serves the
    run, or that the storage fails, would turn a whole training run into defaults.
    """
    if not isinstance(error, TaskError | NotSent):
        return Next.RAISE
    status = error.status if isinstance(error, TaskError) else None
    if status in options.retry_on and retries < options.max_retries:
        return Next.RETRY
    return Next.DEFAULT if options.on_error == DEFAULT else Next.RAISE


class Pursuit:
    """One call; `answer` is the future of its reward."""

    def __init__(self, submit: Callable[[], Future[Any]], options: Options, stats: Stats) -> None:
        self.answer: Future[Any] = Future()
        self._submit = submit
        self._options = options
        self._stats = stats
        self._retries = 0
        self._attempt: Future[Any] | None = None
        self.answer.add_done_callback(self._follow_cancel)

    def start(self) -> Future[Any]:
        """Send the call. Raises what the client raises for one that nobody could execute."""
        self._attempt = self._submit()
        self._attempt.add_done_callback(self._attempted)
        return self.answer

    def _attempted(self, attempt: Future[Any]) -> None:
        try:
            value = attempt.result()
        except CancelledError:
            self.answer.cancel()
        except BaseException as error:
            self._failed(error)
        else:
            self._end("ok", value)

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, TaskError) and error.status == outcomes.TIMEOUT:
            self._stats.count("timeouts")
        match after(error, self._retries, self._options):
            case Next.RETRY:
                self._again(error)
            case Next.DEFAULT:
                log.warning("a reward is replaced by %r: %s", self._options.default, error)
                self._end("defaults", self._options.default)
            case Next.RAISE:
                self._raise(error)

    def _again(self, error: BaseException) -> None:
        if self.answer.done():  # cancelled: nobody waits
            return
        self._retries += 1
        self._stats.count("retries")
        log.info("retry %d of %d: %s", self._retries, self._options.max_retries, error)
        try:
            self.start()
        except BaseException as problem:  # in a callback nobody else would hear of it
            self._raise(problem)

    def _end(self, what: str, value: Any) -> None:
        self._stats.count(what)
        try:
            self.answer.set_result(value)
        except InvalidStateError:  # it was cancelled meanwhile
            pass

    def _raise(self, error: BaseException) -> None:
        self._stats.count("failed")
        try:
            self.answer.set_exception(error)
        except InvalidStateError:
            pass

    def _follow_cancel(self, answer: Future[Any]) -> None:
        if answer.cancelled() and self._attempt is not None:
            self._attempt.cancel()
