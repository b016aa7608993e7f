"""Training jobs on real workers: what each ends with, and what it leaves."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsworker import procfs
from tests.support.ctlrun import Ctl
from tests.support.jobs import JobFleet, undisturbed
from tests.support.waiting import gone, wait_until

pytestmark = pytest.mark.fleet

FIELDS = {
    *("job_id", "worker_id", "status", "started_at", "finished_at", "elapsed_seconds"),
    *("episodes_completed", "total_reward", "final_reward", "error", "checkpoint", "log"),
}


@pytest.fixture
def ctl(tmp_path: Path) -> Iterator[Ctl]:
    with Ctl(tmp_path) as found:
        yield found


def test_one_process_a_process_an_episode_and_a_chain(ctl: Ctl, tmp_path: Path) -> None:
    fleet = JobFleet(ctl, "n0")
    whole = fleet.submit(options=("--episodes", "4"))
    result = fleet.over(whole)
    assert result.keys() >= FIELDS
    assert (result["status"], result["episodes_completed"], result["error"]) == ("success", 4, None)
    assert result["worker_id"] == "n0"
    assert (fleet.root / result["checkpoint"]).read_bytes() == (
        fleet.job(whole) / "checkpoint_final.json"
    ).read_bytes()
    assert "episode 4 of seed 0" in (fleet.job(whole) / "train.log").read_text()
    each = fleet.submit(
        options=("--episodes", "4", "--per-episode-sync", "--keep-checkpoints", "2")
    )
    chained = fleet.submit("--first", "5", options=("--episodes", "1", "--after", each))
    assert fleet.over(each)["total_reward"] == pytest.approx(result["total_reward"])
    assert fleet.weights(each, 4) == fleet.weights(whole, 4) == undisturbed(tmp_path, 4)
    assert fleet.over(chained)["status"] == "success"
    assert fleet.weights(chained, 1) == undisturbed(tmp_path, 5)
    files = [sorted(os.listdir(fleet.job(each) / f"after_ep_000{n}")) for n in (1, 2, 3, 4)]
    assert files == [["done.json"]] * 2 + [["checkpoint.json", "done.json"]] * 2
    begun = [line.split()[1] for line in fleet.lines() if line.startswith("begin")]
    assert begun == ["1", "2", "3", "4", "1", "2", "3", "4", "5"]
    listed = json.loads(fleet.call("jobs", "--json").stdout)["jobs"]
    assert [(j["job_id"], j["status"], j["episode"]) for j in listed] == [
        (whole, "success", 4), (each, "success", 4), (chained, "success", 1)
    ]  # fmt: skip
    shown = fleet.call("job", "show", chained).stdout
    assert "success on n0" in shown and f"after      {each}" in shown
    assert "clean" in fleet.call("fsck").stdout


def test_what_fails_is_told_and_tried_again_from_where_it_was(ctl: Ctl, tmp_path: Path) -> None:
    fleet = JobFleet(ctl, "n0")
    wrong = ctl.folder / "wrong"
    wrong.touch()
    switch = f'test -e {wrong} && exit 3; exec "$@"'
    command = ["sh", "-c", f'test {{episode}} -ge 3 && {{{{ {switch}; }}}}; exec "$@"', "sh"]
    from tests.support.jobs import COMMAND

    (job,) = fleet.submit_command(
        [*command, *COMMAND], options=("--episodes", "4", "--per-episode-sync")
    )
    result = fleet.over(job)
    assert (result["status"], result["checkpoint"]) == ("failed", None)
    assert result["error"] == "its process ended with exit code 3"
    assert (result["episodes_completed"], result["exit_code"]) == (2, 3)
    assert "episode 2 of seed 0" in fleet.call("job", "logs", job).stdout
    after = fleet.submit(options=("--after", job))
    assert "whose weights it starts from, is failed" in fleet.over(after)["error"]
    refused = fleet.call("job", "retry", fleet.submit(options=("--id", "fine")))
    assert refused.returncode == 5
    wrong.unlink()
    mixed = fleet.call("job", "retry", "fine", job)
    assert (mixed.returncode, mixed.stdout) == (0, f"{job} is submitted again\n")
    assert "fine is left as it is: " in mixed.stderr
    result = fleet.over(job)
    assert (result["status"], result["episodes_completed"]) == ("success", 4)
    assert fleet.weights(job, 4) == undisturbed(tmp_path, 4)
    assert [note.first for note in fleet.notes(job)] == [1, 3]
    told = fleet.call("explain", job).stdout
    assert f"job {job}: success" in told and "attempt 2 on n0 from episode 3" in told
    assert f"ctl job show {job} tells more" in told


@pytest.mark.parametrize("how", ["timeout", "cancel"])
def test_a_tree_of_deaf_helpers_is_ended_whole(ctl: Ctl, how: str) -> None:
    fleet = JobFleet(ctl, "n0")
    options = ["--grace", "1"]
    options += ["--timeout", "3"] if how == "timeout" else []
    job = fleet.submit("--pause", "600", "--do", "deaf", options=tuple(options))
    fleet.running(job)
    # The script itself, two helpers, one of them in a session of its own.
    pids = wait_until(
        lambda: found if len(found := fleet.holders(job)) >= 3 else None, what="three"
    )
    if how == "cancel":
        done = fleet.call("job", "cancel", "--wait", job)
        assert done.returncode == 0, done.stderr
    result = fleet.over(job)
    assert result["status"] == {"timeout": "timeout", "cancel": "cancelled"}[how]
    assert result["left"] == [] and result["checkpoint"] is None
    assert all(map(gone, pids)) and not fleet.holders(job)
    assert "episode 1 of seed 0" in (fleet.job(job) / "train.log").read_text()


def test_a_job_that_waits_is_cancelled_at_once(ctl: Ctl) -> None:
    fleet = JobFleet(ctl, "n0")
    first = fleet.submit("--pause", "600")
    fleet.running(first)
    second = fleet.submit()
    done = fleet.call("job", "cancel", second)
    assert (done.returncode, done.stdout.split()) == (0, [second, "cancelled"])
    assert fleet.over(second)["error"] == "cancelled before it began"
    assert fleet.call("job", "cancel", second).returncode == 1
    assert os.listdir(fleet.root / "claims") and "clean" in fleet.call("fsck").stdout
    assert fleet.call("job", "cancel", "nobody").returncode == 3
    assert fleet.call("job", "cancel", "--wait", first).returncode == 0


def test_checks_secrets_and_numbers(ctl: Ctl) -> None:
    secret = "correct-horse-battery"
    fleet = JobFleet(ctl, "n0", "n1", options=("--pass-env", "TOKEN"), TOKEN=secret)
    seen = ctl.folder / "seen"
    command = ["sh", "-c", f'printf %s "$TOKEN" >{seen}; exec "$@"', "sh"]
    from tests.support.jobs import COMMAND

    (job,) = fleet.submit_command(
        [*command, *COMMAND, "--report", "--each", "--pause", "0.2"],
        options=(
            *("--pass-env", "TOKEN", "--episodes", "2"),
            *("--preflight", 'test "$FLEET_HOST" = n1'),
            *("--postflight", f"echo done >{ctl.folder / 'post'}"),
        ),
    )
    result = fleet.over(job)
    assert (result["status"], result["worker_id"]) == ("success", "n1"), result
    assert seen.read_text() == secret
    assert (ctl.folder / "post").read_text() == "done\n"
    declined = [note for note in fleet.notes(job) if note.why == "preflight"]
    assert all(note.host == "n0" and "exit code 1" in note.returned for note in declined)
    for folder, _, names in os.walk(fleet.root):
        for name in names:
            assert secret.encode() not in Path(folder, name).read_bytes(), name
    told = json.loads(fleet.call("job", "metrics", "--json", "--name", "reward", job).stdout)
    assert told["names"] == ["loss", "reward"]
    values = [value for _, value in told["jobs"][job]["reward"]["values"]]
    assert (len(values), values[-1]) == (2, result["final_reward"])
    assert "reward" in fleet.call("job", "metrics", job).stdout
    assert fleet.call("job", "metrics", "--name", "nothing", job).returncode == 1
    other = fleet.submit()
    assert fleet.over(other)["status"] == "success"


def test_what_is_told_to_stop_saves_and_goes_on_elsewhere(ctl: Ctl, tmp_path: Path) -> None:
    fleet = JobFleet(ctl, "n0", "n1")
    job = fleet.submit(
        "--pause", "600", "--on-term", "go on", "--each",
        options=("--episodes", "3", "--id", "long"),
    )  # fmt: skip
    fleet.running(job)
    host = wait_until(lambda: fleet.row(job).host, what="a host")
    other = "n1" if host == "n0" else "n0"
    assert fleet.call("drain", host).returncode == 0
    fleet.running(job, "begin 2")
    row = wait_until(lambda: r if (r := fleet.row(job)).host == other else None, what="the other")
    assert row.token is not None and (row.token.attempt, row.token.deaths) == (2, 0)
    assert fleet.weights(job, 1) == undisturbed(tmp_path, 1)
    assert [(n.host, n.why) for n in fleet.notes(job)] == [(host, "drain"), (other, "")]
    assert fleet.call("job", "cancel", "--wait", job).returncode == 0


def test_what_cannot_be_is_refused_at_submit(ctl: Ctl) -> None:
    fleet = JobFleet(ctl, "n0")
    for args, code, says in (
        (("--", "train", "{nothing}"), 2, "there is no {nothing}"),
        ((), 2, "no command is named"),
        (("--after", "nobody", "--", "x"), 3, "there is no job 'nobody'"),
        (("--federation-group", "g", "--", "x"), 2, "go together"),
        (("--federation-group", "g", "--federation-size", "2", "--", "x"), 5, "has 1 job slots"),
        (("--id", "../x", "--", "x"), 2, "field 'job_id'"),
        (("--weights", "a", "--after", "b", "--", "x"), 2, "both say"),
    ):
        done = fleet.call("job", "submit", *args)
        assert (done.returncode, done.stderr.count("\n") <= 2) == (code, True), done.stderr
        assert says in done.stderr
    missing = fleet.submit(options=("--weights", "/nowhere/w.json"))
    assert "/nowhere/w.json cannot be read" in fleet.over(missing)["error"]
    (gone_command,) = fleet.submit_command(["/nowhere/train", "{checkpoint}"])
    assert "cannot run /nowhere/train" in fleet.over(gone_command)["error"]
    (nothing,) = fleet.submit_command(["true", "{checkpoint}"])
    assert "left no finished episode" in fleet.over(nothing)["error"]
    assert json.loads(fleet.call("jobs", "--json", "--status", "failed").stdout)["jobs"]


def test_tasks_beside_a_job_and_slots_that_die_leave_it_alone(ctl: Ctl) -> None:
    fleet = JobFleet(ctl, "n0", options=("--concurrency", "1"))
    job = fleet.submit("--pause", "600")
    pid = fleet.running(job)
    tasks = ctl.folder / "tasks.jsonl"
    tasks.write_text('{"args": [1]}\n{"args": [2]}\n')
    done = fleet.call("submit", "--tasks", str(tasks), "--wait", "-o", str(ctl.folder / "out"))
    assert done.returncode == 0, done.stderr
    zygotes = [
        stat.pid
        for stat in procfs.descendants([fleet.pids("n0")[1]])
        if b"fsworker.slots.zygote" in Path(f"/proc/{stat.pid}/cmdline").read_bytes()
    ]
    assert zygotes
    os.kill(zygotes[0], signal.SIGKILL)
    tasks.write_text('{"args": [3]}\n')
    done = fleet.call("submit", "--tasks", str(tasks), "--wait", "-o", str(ctl.folder / "more"))
    assert done.returncode == 0, done.stderr
    assert fleet.row(job).status == "running" and pid in fleet.holders(job)
    assert fleet.call("job", "cancel", "--wait", job).returncode == 0
    wait_until(lambda: not fleet.holders(job), what="the end of its processes")
