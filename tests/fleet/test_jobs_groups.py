"""Jobs that share one model, with the real aggregator; and one process for all episodes."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsworker.protocol import artifacts, federation, layout
from tests.support.ctlrun import REPO, Ctl
from tests.support.jobs import JobFleet
from tests.support.waiting import gone, kill_at_once, wait_until

pytestmark = pytest.mark.fleet

FEDAVG = "import sys; from fedavg.cli import main; sys.exit(main())"
GROUP = ("--federation-group", "g", "--federation-size", "2")
AUTOSCALE = REPO / "examples" / "autoscale"


@pytest.fixture
def ctl(tmp_path: Path) -> Iterator[Ctl]:
    with Ctl(tmp_path) as found:
        yield found


def aggregate(fleet: JobFleet) -> None:
    """Leave an aggregator running."""
    argv = [sys.executable, "-c", FEDAVG, "run", "--root", str(fleet.root)]
    with open(fleet.ctl.folder / "fedavg.log", "wb") as log:
        fleet.ctl.spawned.start(argv, env=fleet.ctl.env, stdout=log, stderr=log, cwd="/")


def test_a_group_waits_for_all_and_goes_on_from_one_model(ctl: Ctl) -> None:
    fleet = JobFleet(ctl, "n0", "n1")
    jobs = fleet.submit_command(
        [*_train(), "--pause", "0.2"], options=("--count", "2", "--episodes", "3", *GROUP)
    )
    assert len(jobs) == 2
    for options, says in (
        (GROUP, "are too many"),
        ((*GROUP[:3], "1"), "has 2 participants, not 1"),
    ):
        done = fleet.call("job", "submit", *options, "--", "train", "{checkpoint}")
        assert (done.returncode, says in done.stderr) == (5, True), done.stderr
    # One that is killed while it waits at the barrier must not upload twice nor train again.
    uploaded = [layout.groups.upload_dir("g", 1, job) for job in jobs]
    wait_until(lambda: all((fleet.root / path).exists() for path in uploaded), 120, "the uploads")
    host = fleet.row(jobs[0]).host
    assert host is not None
    os.kill(fleet.pids(host)[1], signal.SIGKILL)
    aggregate(fleet)
    results = [fleet.over(job, 240) for job in jobs]
    assert [(r["status"], r["episodes_completed"]) for r in results] == [("success", 3)] * 2
    first = artifacts.read_done(fleet.run.store, layout.groups.upload_dir("g", 1, jobs[0]))
    second = artifacts.read_done(fleet.run.store, layout.groups.upload_dir("g", 2, jobs[0]))
    model = federation.read_global(fleet.run.store, "g", 2)
    assert model is not None and (first.base, second.base) == (None, model.merge.digest)
    # The last episode is merged as well.
    wait_until(lambda: federation.read_global(fleet.run.store, "g", 4), what="the last model")
    shown = json.loads(fleet.call("job", "show", "--json", "g").stdout)["jobs"]
    assert [job["members"] for job in shown] == [sorted(jobs)] * 2
    numbers = [n for n in fleet.notes(jobs[0]) if n.first != 1]
    assert [n.first for n in numbers] == [2]


def _train() -> list[str]:
    from tests.support.jobs import COMMAND

    return list(COMMAND)


def test_who_waits_in_vain_fails_and_may_be_tried_again(ctl: Ctl) -> None:
    fleet = JobFleet(ctl, "n0", options=("--job-slots", "2"))
    jobs = fleet.submit_command(
        _train(), options=("--count", "2", "--episodes", "2", "--sync-timeout", "1", *GROUP)
    )
    for job in jobs:
        result = fleet.over(job)
        assert (result["status"], result["episodes_completed"]) == ("failed", 1)
        assert "the model of group g for episode 2 did not come in 1 s" in result["error"]
    done = fleet.call("job", "retry", "g")
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 2
    for job in jobs:
        assert fleet.over(job)["episodes_completed"] == 1
        assert [note.first for note in fleet.notes(job)] == [1, 2]


def test_one_process_for_all_episodes_gives_the_same_as_one_for_each(ctl: Ctl) -> None:
    fleet = JobFleet(ctl, "n0", options=("--job-slots", "2"))
    common = ["--agent", "greedy", "--steps", "40"]
    options = ("--episodes", "4", "--agent", "greedy", "--cwd", str(AUTOSCALE))
    (each,) = fleet.submit_command(
        [sys.executable, "train.py", *common, "{transfer}", "--save", "{checkpoint}"],
        options=(*options, "--per-episode-sync"),
    )
    (loop,) = fleet.submit_command(
        [sys.executable, "agent_loop.py", *common], options=(*options, "--agent-loop")
    )
    killed = wait_until(lambda: fleet.holders(loop), what="the loop")
    kill_at_once(*killed)
    assert fleet.over(each)["status"] == fleet.over(loop)["status"] == "success"
    last = [fleet.job(job) / layout.jobs.after_name(4) / "checkpoint.json" for job in (each, loop)]
    assert last[0].read_bytes() == last[1].read_bytes()
    assert all(map(gone, killed)) and not fleet.holders(loop)
    log = (fleet.job(loop) / "train.log").read_text()
    assert log.count("a process for all episodes") <= 2
