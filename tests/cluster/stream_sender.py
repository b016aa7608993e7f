"""What chaos runs on the head: a client that keeps the fleet busy until it is told to end.

    python -m tests.cluster.stream_sender ROOT OUT SECONDS AHEAD

It keeps AHEAD tasks of SECONDS each on their way until `OUT.end` exists; then it waits for all, and
writes its summary to `OUT`. Each batch that is answered is noted in `OUT.log`: its shard, the host
and the life of the worker that executed it, and the seconds since the head booted, which nobody can
set.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Future
from typing import Any

from fsworker.client import Client
from fsworker.client.delivery import Delivered, Delivery
from fsworker.client.submitter import Submitter
from fsworker.protocol.layout import Token

DOUBLE = "tests.cluster.functions:double"


class Noted:
    """The answers, and a line of each batch."""

    def __init__(self, log: str, ahead: int) -> None:
        self.room = threading.Semaphore(ahead)
        self.right: Counter[int] = Counter()
        self.wrong: list[str] = []
        self._log = open(log, "a", buffering=1, encoding="utf-8")  # noqa: SIM115

    def take(self, index: int, future: Future[Any]) -> None:
        error = future.exception()
        if error is None and future.result() == 2 * index:
            self.right[index] += 1
        else:
            self.wrong.append(f"{index}: {error or future.result()!r}")
        self.room.release()

    def line(self, *words: object) -> None:
        at = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._log.write(f"{' '.join(map(str, words))} {at:.2f}\n")

    def close(self) -> None:
        self._log.close()


def note_batches(noted: Noted) -> None:
    """Note each batch that has come back, of which a client tells nobody."""
    shards: dict[str, int] = {}
    enqueue, forget = Submitter.enqueue, Delivery.forget

    def sent(self: Submitter, token: Token) -> None:
        shards[token.batch] = token.shard
        enqueue(self, token)

    def kept(self: Delivery, delivered: Delivered) -> None:
        if delivered.outcome is not None and delivered.batch in shards:
            shard, host = shards.pop(delivered.batch), delivered.meta.get("host")
            noted.line(shard, host, delivered.outcome.incarnation)
        forget(self, delivered)

    Submitter.enqueue, Delivery.forget = sent, kept  # type: ignore[method-assign]


def main() -> int:
    root, out, seconds, ahead = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
    noted, sent = Noted(f"{out}.log", ahead), 0
    note_batches(noted)
    with Client(root, no_worker_timeout=None) as client:
        while not os.path.exists(f"{out}.end"):  # on the head's own disk
            if not noted.room.acquire(timeout=1.0):
                continue
            future = client.submit(DOUBLE, sent, seconds)
            future.add_done_callback(lambda f, i=sent: noted.take(i, f))
            sent += 1
    noted.close()
    told = {"sent": sent, "right": len(noted.right), "wrong": noted.wrong[:5]}
    told["twice"] = sum(1 for n in noted.right.values() if n > 1)
    with open(f"{out}.new", "w", encoding="utf-8") as file:
        file.write(json.dumps(told))
    os.rename(f"{out}.new", out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
