"""Ends, or stops, an aggregator at one of its filesystem calls after the other. A program.

    python -m tests.support.aggregator_kills kill|pause TEMPLATE WORK

TEMPLATE is a run root that is ready to be aggregated, WORK an empty folder. For each n a copy of
the template is given to an aggregator that kills itself by SIGKILL right before its n-th call that
touches the root. Another one then finishes (once for every state of the disk that differs). With
`pause`, the first one stops itself instead, a second one does everything, and the first goes on:
as if each believed to be alone. Either way the published bytes must be those of an undisturbed
run, and what was once published must not have been touched. Prints one JSON object.

Outputs are tiny here, so the thread that stores them is given every write, and each is waited for
until it has begun on it; and old rounds are put together one by one, so that this is disturbed too.

Processes are forked from one that has imported torch, so that hundreds of lives take seconds.
"""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

from fedavg.aggregator import Aggregator
from fedavg.formats import storing
from fsworker.protocol import archive
from fsworker.protocol.fsops import Store
from tests.support.rounds import published

MOST_SWEEPS = 30
PATHS = ("listdir", "mkdir", "rename", "unlink", "rmdir", "lstat", "stat", "chmod")
LEFT_OUT = ("lstat", "stat", "chmod", "write", "pwrite", "pwritev", "fsync", "fdatasync", "fchmod",
            "ftruncate", "close")  # fmt: skip
"""Who is stopped before one of these has the same names before him as before the call after it."""
DESCRIPTORS = ("write", "pwrite", "pwritev", "fsync", "fdatasync", "fchmod", "ftruncate", "close")
"""Reading by descriptor is left out: nothing changes between it and the call after it."""


Act = Callable[[str], None]
"""What is done right before a call, whose name it is given."""


def nothing(call: str) -> None:
    """Do nothing."""


def kill_me(call: str) -> None:
    """End as whom the system kills."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop_me(call: str) -> None:
    """Stand still until somebody lets us go on."""
    os.kill(os.getpid(), signal.SIGSTOP)


def hurry() -> None:
    """Have this process store tiny outputs as large ones, and archive rounds that are just old."""
    archive.SPAN, storing.STEP = 1, 1
    wrote = storing.Storing.wrote

    def wrote_and_begun(self: storing.Storing, fd: int, count: int) -> None:
        wrote(self, fd, count)
        while self._written[fd] and self._error is None:
            time.sleep(1e-5)  # until the thread has taken it

    storing.Storing.wrote = wrote_and_begun  # type: ignore[method-assign]


def live(
    root: str,
    at: int | None,
    act: Act,
    left_out: Collection[str] = (),
    told: Callable[[int], None] | None = None,
) -> None:
    """Aggregate until every group is finished; before call number `at`, `act`. Never returns.

    `act` is given the call's name. At its end it may tell how many calls there were.
    """
    count = _watch(root, at, act, left_out) if at is not None else None
    aggregator = Aggregator(Store(root), threads=1)
    if finishes(aggregator):
        if told is not None and count is not None:
            told(count())
        os._exit(0)
    sys.stderr.write(f"not finished: {aggregator.reports}\n")
    os._exit(1)


def finishes(aggregator: Aggregator) -> bool:
    """Whether every group is finished after some sweeps."""
    for _ in range(MOST_SWEEPS):
        aggregator.sweep()
        if aggregator.finished:
            return True
    return False


def _watch(root: str, at: int, act: Act, left_out: Collection[str]) -> Callable[[], int]:
    """Count the calls that touch the root, whoever makes them; gives what tells how many."""
    count, descriptors, turn = 0, set(), threading.Lock()

    def called(name: str) -> None:
        nonlocal count
        with turn:  # the thread that stores outputs calls too
            count += 1
            now = count == at
        if now:
            act(name)

    def on_path(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(path, str) and path.startswith(root):
                called(real.__name__)
            return real(path, *args, **kwargs)

        return call

    def on_descriptor(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(fd: Any, *args: Any, **kwargs: Any) -> Any:
            if fd in descriptors:
                called(real.__name__)
            result = real(fd, *args, **kwargs)
            if real is close:
                descriptors.discard(fd)
            return result

        return call

    def opened(path: Any, *args: Any, **kwargs: Any) -> int:
        mine = isinstance(path, str) and path.startswith(root)
        if mine:
            called("open")
        fd = opening(path, *args, **kwargs)
        if mine:
            descriptors.add(fd)
        return fd

    close, opening = os.close, os.open
    for name in set(PATHS).difference(left_out):
        setattr(os, name, on_path(getattr(os, name)))
    for name in set(DESCRIPTORS).difference(left_out):
        setattr(os, name, on_descriptor(getattr(os, name)))
    os.open = opened
    return lambda: count


def fork(run: Callable[[], None]) -> int:
    """The pid of a child that does `run`."""
    pid = os.fork()
    if pid == 0:
        gc.disable()
        try:
            run()
        finally:
            os._exit(99)
    return pid


def state_of(root: str) -> str:
    """A digest of names and contents, with the random parts of hidden names left out."""
    hasher = hashlib.sha256()
    for folder, folders, files in sorted(os.walk(root)):
        for name in sorted(folders + files):
            path = os.path.join(folder, name)
            hasher.update(re.sub(r"~[0-9]+-[0-9a-f]+", "~", path.removeprefix(root)).encode())
            if name in files:
                with open(path, "rb") as file:
                    data = file.read()
                if name not in ("times.json", "waiting.json"):  # these hold the time
                    hasher.update(data)
    return hasher.hexdigest()


def inodes(root: str) -> dict[str, int]:
    """Of every published model and plan, its inode: another one means that it was replaced."""
    return {
        name: os.stat(os.path.join(root, "outbox/federation/g", name)).st_ino
        for name in published(Store(root))
        if name.startswith(("rounds/", "to_worker/"))
    }


class Runs:
    """What is found over all n."""

    def __init__(self, template: str, work: str) -> None:
        self.template, self.work = template, work
        self.bad: list[str] = []
        self.states: set[str] = set()
        self.killed_at: Counter[str] = Counter()
        hurry()
        root = self.copy("plain")
        # In this process, so that everything is imported before it forks.
        assert finishes(Aggregator(Store(root), threads=1)), "an undisturbed run fails"
        self.expected = published(Store(root))
        gc.collect()
        gc.freeze()

    def copy(self, name: str) -> str:
        """A fresh root."""
        root = os.path.join(self.work, name)
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(self.template, root)
        return root

    def check(self, n: int, root: str, before: dict[str, int]) -> None:
        """Whether all is as without a disturbance, and what was there was left alone."""
        after = published(Store(root))
        if after != self.expected:
            odd = sorted(set(after.items()) ^ set(self.expected.items()))
            self.bad.append(f"call {n}: {odd}")
        now = inodes(root)
        if any(name in now and now[name] != ino for name, ino in before.items()):
            self.bad.append(f"call {n}: what was published was replaced")
        hidden = [f for f, _, _ in os.walk(root) if "/.tmp~" in f]
        if hidden:
            self.bad.append(f"call {n}: {hidden} is left")

    def kill(self, n: int) -> bool:
        """One life that is ended at call n; False when it ended by itself before that."""
        root = self.copy("killed")
        readable, writable = os.pipe()

        def die(call: str) -> None:
            os.write(writable, call.encode())
            kill_me(call)

        _, status = os.waitpid(fork(lambda: live(root, n, die)), 0)
        os.close(writable)
        with open(readable) as file:
            call = file.read()
        if not os.WIFSIGNALED(status):
            return False
        self.killed_at[call] += 1
        state = state_of(root)
        if state not in self.states:
            self.states.add(state)
            before = inodes(root)
            _, status = os.waitpid(fork(lambda: live(root, None, nothing)), 0)
            if status:
                self.bad.append(f"call {n}: the one after it failed")
            self.check(n, root, before)
        return True

    def pause(self, n: int) -> bool:
        """One life that is stopped at call n while another does everything, and goes on."""
        root = self.copy("paused")
        pid = fork(lambda: live(root, n, stop_me, LEFT_OUT))
        _, status = os.waitpid(pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            return False
        _, other = os.waitpid(fork(lambda: live(root, None, nothing)), 0)
        before = inodes(root)
        os.kill(pid, signal.SIGCONT)
        _, status = os.waitpid(pid, 0)
        if status or other:
            self.bad.append(f"call {n}: the sleeper ended with {status}, the other with {other}")
        self.check(n, root, before)
        return True


def main(mode: str, template: str, work: str) -> None:
    logging.disable()
    runs, n = Runs(template, work), 1
    one = runs.kill if mode == "kill" else runs.pause
    while one(n):
        n += 1
    told = {"calls": n - 1, "states": len(runs.states), "bad": runs.bad[:20]}
    print(json.dumps({**told, "killed_at": runs.killed_at}))


if __name__ == "__main__":
    main(*sys.argv[1:])
