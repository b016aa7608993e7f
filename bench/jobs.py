"""What training jobs cost: a call of `report`, an episode, a cancellation, a worker's death.

    python bench/jobs.py --quick                  a minute
    python bench/jobs.py --check --json FILE

An episode is compared with the same command in a loop without a fleet, a call of `report` with a
line that is written to a file and flushed, each in turn with the other.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import report
from fleet import REPO, Fleet, temporary_fleet
from report import Report, eventually, median

sys.path.insert(0, REPO)

SAVE = 'printf \'{"episode": 1, "rewards": [1]}\' >"$FLEET_CHECKPOINT"'
WAIT = 'echo begun >>"$0"; exec sleep 600'
DEAF = 'echo begun >>"$0"; trap "" TERM; setsid sleep 600 & while :; do sleep 1; done'


def submit(fleet: Fleet, command: list[str], **fields: Any) -> str:
    """Submit a job; its id."""
    path = f"{fleet.folder}/job.toml"
    told = {"command": command, "checkpoint": "checkpoint.json", **fields}
    with open(path, "w") as file:
        file.writelines(f"{key} = {json.dumps(value)}\n" for key, value in told.items())
    done = fleet.ctl("job", "submit", "--file", path)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout.strip()


def result(fleet: Fleet, job: str) -> dict[str, Any]:
    """The result of a job, once it is there."""
    path = f"{fleet.root}/outbox/jobs/{job}/result.json"
    eventually(lambda: os.path.exists(path), 300, f"the result of {job}")
    with open(path) as file:
        found: dict[str, Any] = json.load(file)
    return found


def processes(job: str) -> list[int]:
    """All processes of a job."""
    wanted, found = f"FLEET_JOB={job}".encode(), []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    found.append(int(name))
        except OSError:
            continue
    return found


def calls(out: Report, count: int, rounds: int) -> None:
    """A call of `report` beside a line that is written and flushed."""
    from fsworker.jobs.metrics import Collector
    from fsworker.protocol.fsops import Store

    ways: dict[str, list[float]] = {"report": [], "write and flush": []}
    with tempfile.TemporaryDirectory() as folder:
        pipe = Collector(Store(folder), "metrics.jsonl")
        reader = os.fork()
        if reader == 0:
            while True:
                time.sleep(0.01)
                pipe.hear()
        os.environ["FLEET_METRICS"] = pipe.address
        import fsworker

        with open(f"{folder}/plain.jsonl", "a") as file:

            def plain(step: int, **values: float) -> None:
                file.write(json.dumps([step, time.time(), values]) + "\n")
                file.flush()

            try:
                for _ in range(rounds):
                    ways["report"].append(per_call(fsworker.report, count))
                    ways["write and flush"].append(per_call(plain, count))
            finally:
                os.kill(reader, signal.SIGKILL)
                os.waitpid(reader, 0)
    rows = [(name, median(values), min(values), max(values)) for name, values in ways.items()]
    head = ("", "median", "least", "most")
    out.table("A call with three numbers, in microseconds of CPU", head, rows)
    out.figures["report_us"] = ways
    out.target("a call of report", median(ways["report"]), at_most=20.0, unit=" us")


def per_call(call: Callable[..., None], count: int) -> float:
    """Microseconds of CPU a call: what else the machine does hardly changes that."""
    began = time.process_time()
    for step in range(count):
        call(step, loss=0.123456789, reward=1.5, epsilon=0.1)
    return (time.process_time() - began) / count * 1e6


def episodes(out: Report, fleet: Fleet, count: int, rounds: int) -> None:
    """An episode of a job beside the bare command."""
    ways: dict[str, list[float]] = {"an episode of a job": [], "the bare command": []}
    for _ in range(rounds):
        script = SAVE.replace("{", "{{").replace("}", "}}")
        job = submit(fleet, ["sh", "-c", script], episodes=count, per_episode_sync=True)
        told = result(fleet, job)
        if told["status"] != "success":
            raise RuntimeError(told["error"])
        ways["an episode of a job"].append(told["elapsed_seconds"] / count * 1e3)
        env = {**os.environ, "FLEET_CHECKPOINT": f"{fleet.folder}/bare.json"}
        began = time.perf_counter()
        for _ in range(count):
            subprocess.run(["sh", "-c", SAVE], env=env, check=True)
        ways["the bare command"].append((time.perf_counter() - began) / count * 1e3)
    rows = [(name, median(values), min(values), max(values)) for name, values in ways.items()]
    head = ("milliseconds", "median", "least", "most")
    out.table(f"Jobs of {count} episodes, a process each", head, rows)
    out.figures["episode_ms"] = ways


def cancellations(out: Report, fleet: Fleet, rounds: int) -> None:
    """From the request to the end of the last process, whatever it thinks of TERM."""
    took: dict[str, list[float]] = {"that ends on TERM": [], "deaf, with a deaf helper": []}
    for number in range(rounds):
        for name, script in zip(took, (WAIT, DEAF), strict=True):
            diary = f"{fleet.folder}/diary{number}{name[:4]}"
            job = submit(fleet, ["sh", "-c", script, diary])
            eventually(lambda diary=diary: os.path.exists(diary), 60, "the process")
            time.sleep(random.random())  # requests come at any moment of the worker's second
            request(fleet, job)
            began = time.perf_counter()
            eventually(lambda job=job: not processes(job), 60, "its end")
            took[name].append(time.perf_counter() - began)
            result(fleet, job)
    rows = [(name, median(values), max(values)) for name, values in took.items()]
    out.table("From a request to cancel to no process, seconds", ("", "median", "most"), rows)
    out.figures["cancel_s"] = took
    worst = max(map(max, took.values()))
    out.target("a cancelled job has no process after", worst, at_most=2.0, unit=" s")


def request(fleet: Fleet, job: str) -> None:
    """What `ctl job cancel` does, without the time that a command takes to start."""
    from ctl import roots
    from ctl.jobs import ending

    ending.cancel(roots.open_run(fleet.root), job)


def deaths(out: Report, fleet: Fleet, rounds: int) -> None:
    """From the death of a worker to the next process of its job."""
    took = []
    for number in range(rounds):
        diary = f"{fleet.folder}/died{number}"
        job = submit(fleet, ["sh", "-c", WAIT, diary])

        def begun(diary: str = diary) -> int:
            return open(diary).read().count("begun") if os.path.exists(diary) else 0

        eventually(lambda: begun() == 1, 60, "the process")
        began = time.perf_counter()
        os.kill(fleet.worker(fleet.hosts()[0]), signal.SIGKILL)
        eventually(lambda: begun() == 2, 120, "the next process")
        took.append(time.perf_counter() - began)
        request(fleet, job)
        result(fleet, job)
    rows = [("from kill -9 to the next process", median(took), max(took))]
    out.table("A worker that dies, seconds; its wrapper waits two", ("", "median", "most"), rows)
    out.figures["death_s"] = took


def main() -> int:
    """Measure everything."""
    args = report.parser(__doc__ or "").parse_args()
    out = Report("jobs", args)
    calls(out, 5_000 if args.quick else 50_000, 5 if args.quick else 15)
    with temporary_fleet(hosts="bench1", concurrency=0) as fleet:
        out.say("episodes")
        episodes(out, fleet, 10 if args.quick else 50, 2 if args.quick else 5)
        out.say("cancellations")
        cancellations(out, fleet, 3 if args.quick else 12)
        out.say("deaths")
        deaths(out, fleet, 1 if args.quick else 4)
    return out.finish()


if __name__ == "__main__":
    sys.exit(main())
