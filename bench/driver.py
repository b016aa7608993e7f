"""One contender in a process of its own: `python driver.py MODULE FOLDER`, a JSON line a command.

So no contender forks from a process with another's threads, each has its own environment, and each
is timed by the clock of the process that submits. `Driver` is the side of who asks; when that ends,
however it does, the end of the pipe ends the contender and all that it started.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
KILL_TASKS = 1_000
KILL_AFTER = 3.0
CLOSE_PATIENCE = 60.0
"""Seconds after the last command in which a contender has ended what it started."""


class Driver:
    """Commands to a contender. Use as a context: nothing of it survives, its folder neither."""

    def __init__(self, module: str, python: str = sys.executable) -> None:
        self._folder = tempfile.mkdtemp(prefix=f"bench-{module}-")
        self._log = open(f"{self._folder}/driver.log", "w+b")  # noqa: SIM115 - closed at exit
        self._child = subprocess.Popen(
            [python, os.path.join(HERE, "driver.py"), module, self._folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join((HERE, os.path.dirname(HERE)))},
        )

    def __enter__(self) -> Driver:
        try:
            self.ask("open")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._child.stdin and self._child.stdout
        self._child.stdin.close()
        try:
            self._child.wait(60)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child.stdout.close()
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def ask(self, do: str, **words: Any) -> Any:
        """The answer to a command. RuntimeError when the contender failed, with its last words."""
        assert self._child.stdin and self._child.stdout
        self._child.stdin.write(json.dumps({"do": do, **words}).encode() + b"\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        answer = json.loads(line) if line else {"error": "its process ended"}
        if "error" in answer:
            self._log.seek(0)
            raise RuntimeError(f"{answer['error']}: {self._log.read()[-1500:].decode()}")
        return answer["value"]


class Host:
    """The contender's side."""

    def __init__(self, module: str, folder: str) -> None:
        os.makedirs(f"{folder}/work")
        self._contender = importlib.import_module(f"contenders.{module}").Contender
        self._it = self._contender(f"{folder}/work")
        self._folder = folder

    def open(self) -> None:
        """Start it."""
        self._it.open()

    def throughput(self, fn: str, share: float = 1.0) -> Any:
        """Tasks a second from submission to the last result, of a share of its usual number."""
        import workload

        count = int(share * self._it.sizes[fn])
        tasks = workload.payloads(count) if fn == "noop" else workload.answers(count)
        begun = time.perf_counter()
        results = self._it.run(fn, tasks)
        seconds = time.perf_counter() - begun
        if len(results) != count:
            raise RuntimeError(f"{len(results)} results of {count}")
        if fn == "grade" and sum(results) != sum(i % 3 > 0 for i in range(count)):
            raise RuntimeError("the grades are wrong")
        return {"tasks": count, "seconds": seconds, "rate": count / seconds}

    def latency(self, count: int) -> list[float]:
        """Seconds for each of `count` tasks in sequence."""
        import workload

        found = []
        for task in workload.payloads(count):
            begun = time.perf_counter()
            self._it.one("noop", task)
            found.append(time.perf_counter() - begun)
        return found

    def after_idleness(self, seconds: float) -> float:
        """Seconds for the first task after so many of idleness."""
        time.sleep(seconds)
        return self.latency(1)[0]

    def kill(self, patience: float, tasks: int = KILL_TASKS) -> dict[str, Any]:
        """SIGKILL a worker amid tasks of 20 ms; what becomes of them."""
        ran = f"{self._folder}/ran"
        got: list[int] = []
        broken: list[str] = []

        def collect() -> None:
            try:
                got.extend(self._it.stream("work", [f"{i} {ran}" for i in range(tasks)]))
            except Exception as error:
                broken.append(f"{type(error).__name__}: {error}"[:200])

        begun = time.monotonic()
        thread = threading.Thread(target=collect, daemon=True)
        thread.start()
        time.sleep(KILL_AFTER)
        os.kill(self._it.victim(), signal.SIGKILL)
        self._follow(thread, ran, got, patience)
        with open(ran) as file:
            times = Counter(file.read().split())
        return {
            "finished": not thread.is_alive() and not broken,
            "broken": broken[0] if broken else None,
            "lost": tasks - len(set(got)),
            "twice": sum(count > 1 for count in times.values()),
            "answered_twice": len(got) - len(set(got)),
            "seconds": time.monotonic() - begun,
        }

    def _follow(self, thread: threading.Thread, ran: str, got: list[int], patience: float) -> None:
        """Wait until it ends, or nothing has happened for so long."""
        last, since = (0, 0), time.monotonic()
        while thread.is_alive() and time.monotonic() - since < patience:
            thread.join(0.2)
            now = (len(got), os.path.getsize(ran))
            if now != last:
                last, since = now, time.monotonic()

    def close(self) -> None:
        """End it."""
        self._it.close()


class Commands:
    """Lines of stdin for the main thread, which is interrupted when nobody wants its answer."""

    def __init__(self) -> None:
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._busy = False
        signal.signal(signal.SIGTERM, self._end)
        threading.Thread(target=self._listen, daemon=True).start()

    def __iter__(self) -> Iterator[str]:
        while (line := self._lines.get()) is not None:
            self._busy = True
            yield line
            self._busy = False

    def _listen(self) -> None:
        for line in sys.stdin:
            self._lines.put(line)
        self._lines.put(None)
        if self._busy:
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(CLOSE_PATIENCE)
        os._exit(1)

    def _end(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(143)


def main() -> None:
    """Serve commands until there are none; whatever prints must not print into the answers."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    host = Host(sys.argv[1], sys.argv[2])
    try:
        for line in Commands():
            words = json.loads(line)
            try:
                answer = {"value": getattr(host, words.pop("do"))(**words)}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            host.close()
        except Exception:
            traceback.print_exc()  # into the log; it may have been opened only in part
        with suppress(OSError):
            answers.close()  # nobody may be there to hear the last one
        shutil.rmtree(sys.argv[2], ignore_errors=True)
        sys.stderr.flush()
        os._exit(0)  # a contender that hangs must not keep this process


if __name__ == "__main__":
    main()
