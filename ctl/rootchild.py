"""The process that touches the run root for a watcher, and nothing else.

A hard mount does not fail, it hangs, and takes whoever asked with it. So the watcher never asks:
this child does, and is abandoned when it does not answer. It also holds the lock that lets one
watcher act at a time, which therefore ends with it. It reads one JSON request a line from stdin and
answers with one line; at the end of its input it ends.

    python -m ctl.rootchild ROOT
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from ctl.locks import verb_lock
from ctl.memory import MEMORY
from ctl.observe import Observer
from fsworker.errors import Busy, FleetError
from fsworker.life.boundlog import BoundLog
from fsworker.protocol import launches, layout, ledger
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.locks import lock_of, take
from fsworker.protocol.records.run import LaunchMeta

WATCH_IDENTITY = layout.CTL + "/watch.identity.json"
LOG_LIMIT = 5_000_000
STDERR_LIMIT = 1_000_000
"""Bytes of what a detached watcher says on its stderr."""

log = logging.getLogger("ctl.rootchild")


class RootChild:
    """The requests that a watcher can make, each a method of the same name."""

    def __init__(self, root: str) -> None:
        self._store = Store(root)
        self._observer = Observer(self._store)
        self._lock: Any = None
        mode = 0o660 if self._store.group_writable else 0o600
        if self._store.group_writable:
            os.umask(0o007)
        self._log = BoundLog(self._store.path(layout.WATCH_LOG), limit=LOG_LIMIT, mode=mode)
        self._stderr = BoundLog(self._store.path(layout.WATCH_ERR), limit=STDERR_LIMIT, mode=mode)
        self._events = BoundLog(self._store.path(layout.EVENTS), limit=LOG_LIMIT, mode=mode)

    def lock(self) -> str:
        """Take the lock; Busy when another watcher has it. A warning when there are no locks."""
        from filelock import Timeout

        path = self._store.path(layout.WATCH_LOCK)
        # A moment of patience: a command that writes one event holds it that long.
        self._lock = lock_of(self._store, layout.WATCH_LOCK)
        try:
            take(self._lock, 1.0)
        except Timeout:
            raise Busy(
                f"another watcher of {self._store.root} holds {path}: stop it first, "
                "or leave the watching to it",
                path=path,
            ) from None
        except (NotImplementedError, OSError) as error:
            return f"{path} cannot be locked ({error}): a second watcher would not be noticed"
        return ""

    def appear(self, pid: int, identity: str) -> None:
        """Say who watches; a request to end that is older than this watcher is not for it."""
        self._store.remove(layout.WATCH_STOP)
        self._store.publish(WATCH_IDENTITY, identity.encode())
        self._store.publish(layout.WATCH_PID, b"%d\n" % pid, durable=False)

    def vanish(self, pid: int) -> None:
        """Remove the pid file, unless it is a successor's."""
        if self._store.read(layout.WATCH_PID, 64).strip() == b"%d" % pid:
            self._store.remove(layout.WATCH_PID)

    def look(self, full: bool = False) -> dict[str, Any]:
        """One look at the root; `full` tells everything anew."""
        if full:
            self._observer = Observer(self._store)
        return self._observer.look().to_plain()

    def reclaim(self, host: str, incarnation: str, died: bool) -> list[Any]:
        """Return the claims of one life to their inboxes: how many, whether that was all, and
        the names of the first of them."""
        owner = layout.Owner(host, incarnation)
        done = self._store.run(ledger.reclaim(owner, died=died))
        return [len(done.moved), done.finished, done.names]

    def launch(self, host: str, above: int) -> int:
        """Number a new launch of a host, the one after `above`, which is all that was known.

        Busy while a command works on the run: what it does to the host goes first. Also when the
        host was launched since it was looked at, by whomever, and whatever the locks say.

        The token of the launch tells its number. The launch meta gets a new time and is not
        written: where the locks lie, that would undo what a command has just changed in it.
        """
        path = self._store.path(layout.LAUNCH_META)
        with verb_lock(self._store, "watch", patience=0):
            meta: LaunchMeta = LaunchMeta.from_json(self._store.read(layout.LAUNCH_META), path)
            number, others = above + 1, meta.launches.get(host, 0) > above
            if others or self._store.run(launches.take({host: number}, secrets.token_hex(4))):
                raise Busy(f"host {host} was launched by somebody else meanwhile", host=host)
            os.utime(path)  # which says since when the launch is awaited
        return number

    def identity(self, host: str) -> str:
        """The record of who runs on a host; empty when there is none."""
        try:
            return self._store.read(layout.host_file(host, "identity.json"), 1 << 16).decode()
        except (FileNotFoundError, UnicodeDecodeError):
            return ""

    def memory(self) -> str:
        """What the last watcher remembered; empty when there was none."""
        try:
            return self._store.read(MEMORY).decode("utf-8", "replace")
        except FileNotFoundError:
            return ""

    def remember(self, text: str) -> None:
        """Write down what is remembered."""
        self._store.publish(MEMORY, text.encode(), durable=False)

    def record(self, lines: str, events: str) -> None:
        """Append to the watcher's log and to the events; all that it writes is cut in place."""
        for file, text in ((self._log, lines), (self._events, events)):
            if text:
                file.write(text.encode("utf-8", "backslashreplace"))
                file.tend()
        if os.path.exists(self._stderr.path):  # only a detached watcher has one
            self._stderr.tend()


VERBS = (
    *("lock", "appear", "vanish", "look", "reclaim", "launch", "identity"),
    *("memory", "remember", "record"),
)


def answer(open_child: Callable[[], RootChild], line: bytes) -> dict[str, Any]:
    """The answer to one request: its value, or the sentence and kind of its error."""
    try:
        request = json.loads(line)
        verb = request.pop("verb")
        if verb not in VERBS:
            raise ValueError(f"no such verb: {verb!r}")
        method: Callable[..., Any] = getattr(open_child(), verb)
        return {"value": method(**request)}
    except FleetError as error:
        return {"error": str(error), "kind": type(error).__name__}
    except OSError as error:
        told = storage_error(error, "use", str(error.filename or "the run root"))
        return {"error": str(told), "kind": "StorageError"}
    except Exception as error:
        log.debug("request failed", exc_info=True)
        return {"error": f"{type(error).__name__}: {error}", "kind": "FleetError"}


def main(argv: list[str]) -> int:
    """Answer requests until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the watcher, who tells us
    open_child = cache(lambda: RootChild(argv[0]))  # opened by the first request that succeeds
    for line in sys.stdin.buffer:
        reply = json.dumps(answer(open_child, line), separators=(",", ":"))
        try:
            os.write(1, reply.encode() + b"\n")
        except BrokenPipeError:  # given up by the watcher while it waited for the root
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
