"""What holds during a call and is undone after it: its environment, and how much memory it may use.

The limit is RLIMIT_DATA, which counts what a process has made writable for itself alone. So what
goes too far gets a MemoryError where it does so, at once, however fast it grows, and neither
address space that is only reserved (which RLIMIT_AS would count) nor what neighbours share with it
is held against it. Each process has the limit for itself: what a task starts inherits it, and their
sum is watched from outside (`watching`). The code around the call gets some room more, to tell.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fsworker import outcomes
from fsworker.errors import Refused
from fsworker.protocol.records.slots import LEAST_MEMORY, human_size

ROOM = 64 << 20
"""Bytes beyond the limit that are left to the code around a call."""
LEAST_LEFT = 8 << 20
"""A limit must leave that much to a task, beside what importing the functions took."""
_SIGNS = ("allocate memory", "bad_alloc", "[Errno 12]", "out of memory")
"""In the words of errors by which libraries say that malloc gave them nothing."""
_NEVER = resource.RLIM_INFINITY

Answer = tuple[str, Any]
"""Status and value of a call."""


def own_data() -> int:
    """Bytes that count for the limit in this process; 0 where the kernel does not say."""
    try:
        with open("/proc/self/status", "rb") as file:
            for line in file:
                if line.startswith(b"VmData:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    return 0


def check(limit: int | None) -> None:
    """Refused for a limit that what is loaded has used up already."""
    if limit and (used := own_data()) + LEAST_LEFT > limit:
        raise Refused(
            f"--slot-mem {human_size(limit)} is too little: with its functions imported a slot "
            f"has {human_size(used)} already; raise it"
        )


class Conditions:
    """Those of the calls of one range. `spent`: a call went over the limit, so that what it left
    behind may hold memory for ever: the process must not serve another one."""

    def __init__(self, env: Mapping[str, str], limit: int | None, words: str) -> None:
        self._env, self._limit, self._words = env, limit, words
        self._soft = self._hard = 0
        self.spent = False
        self.lift: Callable[[], None] = self._lift if limit else _nothing

    @classmethod
    def of(cls, meta: Mapping[str, Any], limit: int | None) -> Conditions | None:
        """The conditions that a batch and its slot ask for; None when there are none."""
        env, own = meta.get("env"), memory_of(meta)
        if not (limit or own or env):
            return None
        least = min(filter(None, (limit, own)), default=None)
        words = "asked for with the task" if own and own == least else "a slot"
        return cls(dict(_variables(env)), least, words)

    def around(self, call: Callable[..., Answer], function: Any, args: Any, kwargs: Any) -> Answer:
        """What `call` gives for the function, under these conditions."""
        before = self._enter()
        try:
            status, value = call(function, args, kwargs)
        finally:
            self.lift()
            _restore(before)
        if self._limit and status == outcomes.ERROR and is_memory(value):
            self.spent = True
            return outcomes.OUT_OF_MEMORY, too_much(self._limit, self._words, value)
        return status, value

    def _enter(self) -> dict[str, str | None]:
        before = {name: os.environ.get(name) for name in self._env}
        os.environ.update(self._env)
        if self._limit:
            self._soft, self._hard = resource.getrlimit(resource.RLIMIT_DATA)
            room = self._limit if self._hard == _NEVER else min(self._limit, self._hard)
            resource.setrlimit(resource.RLIMIT_DATA, (room, self._hard))
        return before

    def _lift(self) -> None:
        """Give the code around the call its room."""
        resource.setrlimit(resource.RLIMIT_DATA, (self._soft, self._hard))


def confine(limit: int | None) -> None:
    """Let nothing in this process and below it go beyond the limit and the room to tell."""
    if limit:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        most = limit + ROOM if hard == _NEVER else min(limit + ROOM, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def memory_of(meta: Mapping[str, Any]) -> int | None:
    """The limit that a batch asks for itself, in bytes."""
    asked = meta.get("memory")
    return asked if type(asked) is int and asked >= LEAST_MEMORY else None


def is_memory(cause: Any) -> bool:
    """Whether what a task raised says that there was no memory for it."""
    kind, message = str(cause.get("type", "")), str(cause.get("message", ""))
    return kind.endswith("MemoryError") or any(sign in message for sign in _SIGNS)


def too_much(limit: int, words: str, raised: Mapping[str, str] | None = None) -> dict[str, str]:
    """The value for a task that went over its limit; `raised` is what it died of, if it did."""
    told = f"out of memory: limit {human_size(limit)} ({words})"
    if raised and raised["message"]:
        told += f": {raised['message']}"
    return outcomes.cause("MemoryError", told, raised["traceback"] if raised else "")


def _variables(env: Any) -> Iterator[tuple[str, str]]:
    """What of a batch's environment can be set; a client sends nothing else."""
    for name, value in env.items() if isinstance(env, dict) else ():
        if not isinstance(name, str) or not isinstance(value, str):
            continue
        if name and not name.startswith("FLEET_") and "=" not in name and "\0" not in name + value:
            yield name, value


def _restore(before: Mapping[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _nothing() -> None:
    pass
