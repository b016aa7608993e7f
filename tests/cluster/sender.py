"""What a test runs on the head: a client that sends tasks and writes down each answer.

    python -m tests.cluster.sender '{"root": …, "out": …, "count": …, …}'

While it runs, `OUT.n` holds the number of tasks that are answered; at the end `OUT` holds a JSON
object, from which a test can tell whether each task had one answer, and the right one.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Future
from typing import Any

from fsworker.client import Client

CHUNK = 200
"""Tasks in a batch of those that take no time."""
DOUBLE = "tests.cluster.functions:double"


class Answers:
    """Each answer of each task, with the moment of the first."""

    def __init__(self) -> None:
        self.right: Counter[int] = Counter()
        self.wrong: list[str] = []
        self.at: list[float] = []
        self._begun = time.monotonic()

    def take(self, index: int, future: Future[Any]) -> None:
        error = future.exception()
        self.note(index, error or future.result())

    def note(self, index: int, value: Any) -> None:
        if value == 2 * index:
            self.right[index] += 1
        else:
            self.wrong.append(f"{index}: {value!r}")
        self.at.append(round(time.monotonic() - self._begun, 2))

    def summary(self, count: int) -> dict[str, Any]:
        """What a test judges: `gap` is the longest time without an answer, in seconds."""
        moments = [0.0, *self.at]
        gap = max((b - a for a, b in itertools.pairwise(moments)), default=0.0)
        return {
            "right": len(self.right),
            "twice": sum(1 for n in self.right.values() if n > 1),
            "wrong": len(self.wrong),
            "words": sorted(word.partition(": ")[2] for word in self.wrong)[:3],
            "missing": count - len(self.right) - len(self.wrong),
            "seconds": self.at[-1] if self.at else 0.0,
            "gap": round(gap, 2),
        }


def main() -> int:
    asked = json.loads(sys.argv[1])
    out, count = asked["out"], asked["count"]
    answers = Answers()
    ended = threading.Event()
    teller = threading.Thread(target=_tell, args=(out, answers, ended))
    teller.start()
    with Client(asked["root"], no_worker_timeout=None) as client:
        if asked["seconds"]:
            for index in range(count):
                future = client.submit(DOUBLE, index, asked["seconds"])
                future.add_done_callback(lambda f, i=index: answers.take(i, f))
        else:
            for index, value in enumerate(client.map(DOUBLE, range(count), chunksize=CHUNK)):
                answers.note(index, value)
    ended.set()
    teller.join()
    _write(out, json.dumps(answers.summary(count)))
    return 0


def _tell(out: str, answers: Answers, ended: threading.Event) -> None:
    while not ended.wait(0.5):
        _write(f"{out}.n", f"{len(answers.at)}\n")


def _write(path: str, text: str) -> None:
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        file.write(text)
    os.rename(f"{path}.new", path)


if __name__ == "__main__":
    sys.exit(main())
