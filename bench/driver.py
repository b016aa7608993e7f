"""One contender in a process of its own: `python driver.py MODULE FOLDER`, a JSON line a command.

So no contender forks from a process with another's threads, each has its own environment, and each
is timed by the clock of the process that submits. `Driver` is the side of who asks.
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
from collections import Counter
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
KILL_TASKS = 1_000
KILL_AFTER = 3.0


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


def main() -> None:
    """Serve commands until there are none; whatever prints must not print into the answers."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    host = Host(sys.argv[1], sys.argv[2])
    try:
        for line in sys.stdin:
            words = json.loads(line)
            try:
                answer = {"value": getattr(host, words.pop("do"))(**words)}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    finally:
        host.close()
        answers.close()
        sys.stderr.flush()
        os._exit(0)  # a contender that hangs must not keep this process


if __name__ == "__main__":
    main()
