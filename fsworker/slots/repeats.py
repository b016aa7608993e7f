"""Tasks that may be innocent of the loss of their slot: each is tried once more, with nobody else.

A process that was killed by a signal 9 which we did not send (by the kernel when memory ran out, by
a person), or that died while it executed several tasks, does not tell which task it died of. Who
is alone when it happens again has no excuse left. This is about slots within one life of a worker;
deaths of workers are counted in the batch's name, elsewhere. Pure bookkeeping.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from fsworker import outcomes
from fsworker.slots.backlog import Work
from fsworker.slots.slot import Blame

_AGAIN = "; it was the second time, and nothing else was running on its worker"


class Repeat(NamedTuple):
    """A task that waits for its second try."""

    work: Work
    task: int


class Repeats:
    """Those of one worker."""

    def __init__(self) -> None:
        self._waiting: deque[Repeat] = deque()
        self._tried: set[tuple[str, int]] = set()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def ask(self, work: Work, index: int) -> bool:
        """Whether a task gets another try: it does once."""
        if (work.key, index) in self._tried:
            return False
        self._tried.add((work.key, index))
        self._waiting.append(Repeat(work, index))
        return True

    def take(self) -> Repeat | None:
        """The next one that is still wanted."""
        while self._waiting:
            repeat = self._waiting.popleft()
            if repeat.task not in repeat.work.results:
                return repeat
        return None

    def forget(self, key: str) -> None:
        """A batch is over."""
        if self._tried or self._waiting:
            self._waiting = deque(r for r in self._waiting if r.work.key != key)
            self._tried = {tried for tried in self._tried if tried[0] != key}


def final(blame: Blame) -> Blame:
    """What is answered for a task that lost its slot again."""
    why = outcomes.cause(blame.value["type"], blame.value["message"] + _AGAIN)
    return blame._replace(value=why)
