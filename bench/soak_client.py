"""The client of the soak: a process that is killed and started again, and goes on where it was.

    python soak_client.py ROOT RECORD TRACES LIFE SEED TASKS UNTIL

A task is sent once. After a death nobody can tell at once which of the last tasks were sent, so a
new life sends what comes after them, and takes what `recover` gives. Only when nothing of the
stream is left on the root is a task without a result known never to have been sent, and sent now.
If its trace says that it was executed, its result was lost, and the soak has found a bug.
"""

from __future__ import annotations

import argparse
import functools
import time
from concurrent.futures import Future

import soak_task
from fsworker.client.executor import Client, TaskCrashed
from fsworker.protocol import audit, layout
from fsworker.protocol.fsops import Store
from soak_record import UNKNOWN, Kind, Progress, Reader, Writer

STREAM = "soak"
FUNCTION = "soak_task:answer"
CHUNK = 500
OUTSTANDING = 4000
BATCH = 64
RECOVER_EVERY = 1.0
LOOKS = 4
"""How often in a row the root must hold nothing of the stream before that is believed."""


class Sender:
    """One life of the client."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._progress = Progress()
        self._reader = Reader(args.record)
        self._read_on()
        self._writer = Writer(args.record, args.life)
        self._store = Store(args.root)
        self._client = Client(
            args.root,
            stream=STREAM,
            no_worker_timeout=None,
            outstanding=OUTSTANDING,
            batch_size=BATCH,
        )
        self._pending: set[Future[list[int]]] = set()

    def run(self) -> None:
        """Send everything, and end when everything is answered."""
        self._recover()
        due = time.monotonic() + RECOVER_EVERY
        mark = self._progress.mark
        while mark < self._args.tasks and time.time() < self._args.until:
            upto = min(mark + CHUNK, self._args.tasks)
            self._writer.add(Kind.SENDING, upto)
            self._send(range(mark, upto))
            mark = upto
            if time.monotonic() >= due:
                self._recover()
                due = time.monotonic() + RECOVER_EVERY
        while self._unanswered():
            time.sleep(0.1)
        self._client.shutdown()
        self._writer.add(Kind.COMPLETE, mark)
        self._writer.sync()

    def _send(self, numbers: range | list[int]) -> None:
        for number in numbers:
            future = self._client.submit(FUNCTION, number, self._args.seed)
            self._pending.add(future)
            future.add_done_callback(functools.partial(self._answered, number))

    def _answered(self, number: int, future: Future[list[int]]) -> None:
        error = future.exception()
        if error is None:
            self._writer.add(Kind.FUTURE, *future.result())
        else:
            self._failed(number, f"task {number}", error)
        self._pending.discard(future)

    def _recover(self) -> None:
        for found in self._client.recover():
            if found.error is None:
                self._writer.add(Kind.RECOVERED, *found.value)
            else:
                self._failed(UNKNOWN, f"{found.batch}[{found.index}]", found.error)
        self._writer.sync()

    def _failed(self, number: int, what: str, error: BaseException) -> None:
        print(f"{what} failed: {error!r}", flush=True)
        crashed = isinstance(error, TaskCrashed)
        self._writer.add(Kind.CRASHED if crashed else Kind.FAILED, number)

    def _unanswered(self) -> bool:
        """Whether something is not answered yet; what was never sent is sent."""
        self._recover()
        if self._pending or not self._is_settled():
            return True
        self._read_on()
        gaps = self._progress.gaps()
        if gaps:
            executed = soak_task.executions(self._args.traces)
            for number in gaps:
                self._writer.add(Kind.LOST if executed[number] else Kind.AGAIN, number)
            self._send(gaps)
        return bool(gaps)

    def _read_on(self) -> None:
        for row in self._reader.news():
            self._progress.take(row)

    def _is_settled(self) -> bool:
        """Whether nothing of the stream is on the root, in several looks: a token may move between
        the folders while they are listed."""
        name = layout.encode(STREAM)
        for _ in range(LOOKS):
            places = self._store.run(audit.survey()).places
            if any(layout.stream_of(batch) == name for batch in places):
                return False
            time.sleep(0.1)
        self._recover()
        return not self._pending


def main() -> None:
    """Read what there is to do."""
    parser = argparse.ArgumentParser()
    for name in ("root", "record", "traces"):
        parser.add_argument(name)
    for name in ("life", "seed", "tasks"):
        parser.add_argument(name, type=int)
    parser.add_argument("until", type=float)
    Sender(parser.parse_args()).run()


if __name__ == "__main__":
    main()
