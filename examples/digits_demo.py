"""`make demo`, second act: two workers learn ten digits together, though each sees five of them.

Two training jobs of one group each train on their half, `fedavg run` merges what they upload, and
the next episode begins with the merged model: three rounds. Each round's model is tried on images
that nobody trained on. The promises: both workers count in every round, each model is better than
the one before, and after `ctl stop` and `ctl cleanup` neither a process nor the run root is left.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from pathlib import Path

from demo_parts import (
    DEADLINE,
    FEDAVG,
    REPO,
    Broken,
    Fleet,
    beside,
    check,
    ctl,
    perform,
    say,
)
from digits import train
from fsworker.protocol import federation
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import groups
from fsworker.protocol.records.round import Plan

SCRIPT = REPO / "examples" / "digits" / "train.py"
GROUP, ROUNDS = "digits", 3


def submit(root: str) -> list[str]:
    """One job for each half; their ids."""
    jobs = [f"half{half}" for half in train.HALVES]
    for half, job in zip(train.HALVES, jobs, strict=True):
        ctl(
            *("job", "submit", "--root", root, "--id", job, "--episodes", str(ROUNDS)),
            *("--federation-group", GROUP, "--federation-size", str(len(jobs))),
            *(
                "--per-episode-sync",
                "--timeout",
                f"{DEADLINE:.0f}s",
                "--param",
                f"half={half}",
                "--",
            ),
            *(sys.executable, str(SCRIPT), "--half", "{half}", "{transfer}"),
            *("--save", "{checkpoint}"),
        )
    return jobs


def told(root: str, job: str) -> dict[str, object]:
    """The result of a job that has ended; nothing before."""
    try:
        result: dict[str, object] = json.loads(
            Path(root, "outbox", "jobs", job, "result.json").read_text()
        )
    except FileNotFoundError:
        return {}
    return result


def how_many_are_done(root: str, jobs: list[str]) -> int:
    """How many jobs have ended; none may end without success."""
    results = [(job, told(root, job)) for job in jobs]
    for job, result in results:
        well = result.get("status", "success") == "success"
        check(well, f"job {job} trains {ROUNDS} episodes; it says: {result.get('error')}")
    return sum(bool(result) for _, result in results)


def wait_for_round(
    root: str, number: int, jobs: list[str], aggregator: subprocess.Popen[bytes]
) -> federation.Global:
    """The model that a round gave, which the next episode starts from."""
    store, end = Store(root), time.monotonic() + DEADLINE
    while (model := federation.read_global(store, GROUP, number + 1)) is None:
        how_many_are_done(root, jobs)
        # It ends by itself after the last model, which may have come just now.
        ended = aggregator.poll() is not None
        if ended and federation.read_global(store, GROUP, number + 1) is None:
            raise Broken(f"`fedavg run` merges round {number}; it exits {aggregator.returncode}")
        check(time.monotonic() < end, f"round {number} is merged within {DEADLINE:.0f} s")
        time.sleep(0.1)
    return model


def judge_round(root: str, number: int, model: federation.Global, held: train.Data) -> float:
    """The accuracy of a round's model; said with who made it."""
    store = Store(root)
    plan = federation.read_record(
        store, f"{groups.round_dir(GROUP, number)}/{groups.PLAN_FILE}", Plan
    )
    check(plan is not None and len(plan.contributors) == 2, f"both workers count in round {number}")
    assert plan is not None
    samples = sum(one.weight for one in plan.contributors)
    weights = store.path(f"{model.folder}/{model.merge.files[0].name}")
    found = train.accuracy(train.load(weights), held)
    say(f"round {number}: accuracy {found:.2f} (two workers, {samples:.0f} samples)")
    return found


def judge(found: list[float]) -> None:
    """Whether the models became better, each one than that of the round before."""
    numbers = ", ".join(f"{one:.2f}" for one in found)
    rises = all(later > earlier for earlier, later in itertools.pairwise(found))
    check(rises, f"accuracy rises from each round to the next: {numbers}")
    say(f"accuracy rose from {found[0]:.2f} to {found[-1]:.2f}")


def play(fleet: Fleet) -> None:
    """The whole act."""
    held = train.data()[1]
    say("two workers learn to read digits: one sees 0 to 4 alone, the other 5 to 9")
    fleet.start("digits", "--concurrency", "0")
    root = fleet.root
    jobs = submit(root)
    argv = [*FEDAVG, "run", "--root", root, "--poll", "0.2", "--until-finished", GROUP]
    with beside(argv, Path(root, "fedavg.log")) as aggregator:
        found = []
        for number in range(1, ROUNDS + 1):
            model = wait_for_round(root, number, jobs, aggregator)
            found.append(judge_round(root, number, model, held))
        code = aggregator.wait(DEADLINE)
        check(code == 0, f"`fedavg run` ends with 0 after the last round, not {code}")
    end = time.monotonic() + DEADLINE
    while how_many_are_done(root, jobs) < len(jobs):
        check(time.monotonic() < end, f"both jobs end within {DEADLINE:.0f} s of the last round")
        time.sleep(0.1)
    judge(found)
    fleet.stop()
    ctl("cleanup", "--root", root)
    check(not Path(root).exists(), f"nothing is left of {root}")
    say("ctl cleanup: the run root is gone")


if __name__ == "__main__":
    sys.exit(perform(play))
