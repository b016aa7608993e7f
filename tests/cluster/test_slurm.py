"""Runs whose workers are jobs of a real Slurm: queue, node down, time limit, scale, cancel."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsworker import Client
from tests.cluster.kinds import Kinds
from tests.rigs import hosts, slurm
from tests.rigs.hosts import HostRig
from tests.rigs.slurm import Slurm
from tests.support.ctlrun import Ctl, json_lines
from tests.support.jobs import COMMAND
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

WHO = "whose:who"
CODE = """
import os, time
def who(seconds):
    time.sleep(seconds)
    return os.environ["FLEET_HOST"]
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    slurm.require()
    folder = tmp_path_factory.mktemp("slurm")
    with Slurm(folder) as made:
        yield made


@pytest.fixture
def ctl(tmp_path: Path, site: Slurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ctl]:
    (tmp_path / "whose.py").write_text(CODE)
    # Of an allocation around ctl nothing may leak into what it submits.
    leaks = {"SLURM_MEM_PER_CPU": "1", "SLURM_MEM_PER_NODE": "2", "SLURM_JOB_NUM_NODES": "7"}
    with Ctl(tmp_path, FLEET_REPO=str(tmp_path), **site.env, **leaks) as calls:
        yield calls
        for job in site.jobs():
            site.run("scancel", str(job["id"]), check=False)


def start(ctl: Ctl, nodes: int, *args: str, name: str = "run") -> Path:
    done = ctl(*start_argv(ctl, nodes, *args, name=name))
    assert done.returncode == 0, done.stderr
    return ctl.runs / name


def start_argv(ctl: Ctl, nodes: int, *args: str, name: str = "run") -> list[str]:
    argv = ["start", "--root", str(ctl.runs / name), "--fn", WHO, "--launcher", "slurm"]
    argv += ["--nodes", str(nodes), "--concurrency", "2", "--cpus", "2", "--time", "30"]
    return [*argv, *args]


def jobs(ctl: Ctl, root: Path) -> dict[str, dict[str, Any]]:
    """The scheduler's view in `ctl status`, by job."""
    return {row["job"]: row for row in ctl.status(root)["scheduler"]}


def ready(ctl: Ctl, root: Path) -> set[str]:
    return {h["host"] for h in ctl.status(root)["hosts"] if h["state"] == "ready"}


def test_work_goes_on_when_a_node_dies_and_its_job_comes_back(ctl: Ctl, site: Slurm) -> None:
    root = start(ctl, 3, "--shard-count", "2")
    assert len(ready(ctl, root)) == 3
    watch = ("--heartbeat-stale", "5", "--interval", "0.5", "--fence-after", "1")
    watcher = ctl.popen("watch", "--root", str(root), *watch)
    first = jobs(ctl, root)
    with Client(str(root)) as client:
        futures = [client.submit(WHO, 0.2) for _ in range(200)]
        wait_until(lambda: futures[10].done(), 60, "some results")
        site.kill_node("n2")
        served = [future.result(timeout=120) for future in futures]
    assert len(served) == 200 and {f"slurm-{job}" for job in first} == set(served)
    site.start_node("n2")
    (lost,) = (job for job, row in first.items() if row["node"] == "n2")
    wait_until(lambda: jobs(ctl, root)[lost]["state"] == "PENDING", 90, "the job in the queue")
    # Slurm waits two minutes, unless it looks at this before it says so itself.
    site.run("scontrol", "update", f"JobId={lost}", "StartTime=now")
    wait_until(lambda: jobs(ctl, root)[lost]["state"] == "RUNNING", 240, "the job again")
    wait_until(lambda: f"slurm-{lost}" in ready(ctl, root), 60, "its worker again")
    watcher.terminate()
    assert watcher.wait(60) == 0
    assert os.listdir(root / "dead") == os.listdir(root / "quarantine") == []
    stop = ctl("stop", "--root", str(root), "--grace", "20")
    assert stop.returncode == 0, stop.stderr
    wait_until(lambda: site.jobs() == [], 60, "an empty queue")
    assert os.listdir(root / "ctl" / "tokens") == []


def test_what_does_not_fit_waits_with_its_reason_and_is_cancelled_first(
    ctl: Ctl, site: Slurm
) -> None:
    root = start(ctl, 2)
    up = ctl("scale", "--nodes", "5", "--root", str(root))
    assert up.stdout.strip() == "submitted 3 jobs, cancelled 0"
    wait_until(lambda: len(ready(ctl, root)) == 3, 60, "the third worker")
    waiting = [row for row in jobs(ctl, root).values() if row["state"] == "PENDING"]
    assert len(waiting) == 2
    wait_until(
        lambda: (
            {r["reason"] for r in jobs(ctl, root).values() if r["state"] == "PENDING"}
            <= {"Resources", "Priority"}
        ),
        60,
        "reasons",
    )
    down = ctl("scale", "--nodes", "1", "--root", str(root))
    assert down.stdout.strip() == "submitted 0 jobs, cancelled 4", down.stderr
    wait_until(lambda: len(site.jobs()) == 1, 90, "one job")
    with Client(str(root)) as client:
        assert len(set(client.map(WHO, [0.01] * 50))) == 1
    assert ctl("stop", "--root", str(root), "--grace", "20").returncode == 0
    wait_until(lambda: site.jobs() == [], 60, "an empty queue")


def test_a_worker_drains_at_slurms_signal_and_another_takes_over(ctl: Ctl, site: Slurm) -> None:
    root = start(ctl, 1, "--time", "5", "--drain-before", "90")
    (first,) = jobs(ctl, root)
    shown = site.run("scontrol", "show", "job", first)
    assert "TimeLimit=00:05:00" in shown
    with Client(str(root)) as client:
        futures = [client.submit(WHO, 0.5) for _ in range(60)]
        wait_until(lambda: claims(root), 60, "a claim")
        # What Slurm sends before a time limit, to the batch shell alone.
        site.run("scancel", "--batch", "--signal=USR1", first)
        wait_until(lambda: not [j for j in site.jobs() if j["id"] == first], 120, "the job's end")
        ended = site.run("scontrol", "show", "job", first)
        assert "JobState=COMPLETED" in ended, ended
        assert claims(root) == [] and os.listdir(root / "dead") == []
        waiting = os.listdir(root / "inbox" / "0")
        assert all(name.endswith(".0") for name in waiting), "its end is no batch's fault"
        more = ctl("scale", "--nodes", "1", "--root", str(root))
        assert more.stdout.strip() == "submitted 1 jobs, cancelled 0", more.stderr
        served = [future.result(timeout=200) for future in futures]
    known = {f"slurm-{job}" for job in (first, *jobs(ctl, root))}
    assert len(served) == 60 and set(served) <= known
    assert ctl("stop", "--root", str(root), "--grace", "20").returncode == 0


def test_preempted_workers_give_back_and_come_again(ctl: Ctl, site: Slurm, tmp_path: Path) -> None:
    """By a real job of higher priority: one of two runs is requeued, the other one cancelled."""
    begun = ctl.popen(*start_argv(ctl, 1, "--partition", "requeued", name="again"))
    anew = start(ctl, 1, "--partition", "cancelled", "--resubmit", "1", name="anew")
    again = ctl.runs / "again"
    assert begun.wait(60) == 0
    look = ("--heartbeat-stale", "5", "--interval", "0.5", "--fence-after", "1")
    train = [*COMMAND, "--diary", str(tmp_path / "diary"), "--each", "--on-term", "go"]
    argv = ["--episodes", "4", "--checkpoint", "checkpoint.json", "--", *train, "--pause", "3"]
    job = ctl("job", "submit", "--root", str(anew), *argv).stdout.strip()
    with Client(str(again)) as one, Client(str(anew)) as other:
        futures = [client.submit(WHO, 0.5) for client in (one, other) for _ in range(40)]
        wait_until(lambda: "begin 2" in diary(tmp_path), 60, "the second episode")
        urgent = ["--partition=urgent", "--nodes=3", "--exclusive", "--output=/dev/null"]
        site.run("sbatch", *urgent, "--wrap=sleep 2")
        ((first, _),) = jobs(ctl, again).items()
        ((lost, _),) = jobs(ctl, anew).items()
        wait_until(lambda: jobs(ctl, anew)[lost]["state"] == "PREEMPTED", 60, "the preemption")
        wait_until(lambda: jobs(ctl, again)[first]["state"] == "PENDING", 60, "the requeue")
        watcher = ctl.popen("watch", "--root", str(anew), *look)
        for root in (again, anew):
            assert claims(root) == [] and os.listdir(root / "dead") == []
            waiting = [name for n in os.listdir(root / "inbox") for name in
                       os.listdir(root / "inbox" / n)]  # fmt: skip
            assert waiting and all(name.split(".")[2] == "0" for name in waiting), waiting
        site.run("scontrol", "update", f"JobId={first}", "StartTime=now")  # Slurm waits two minutes
        served = [future.result(timeout=120) for future in futures]
    assert set(served[:40]) == {f"slurm-{first}"}, "it came back under its name"
    assert len(set(served[40:])) == 2, "another took its place"
    (result,) = wait_until(lambda: over(ctl, anew), 60, "the job")
    assert (result["status"], result["episode"]) == ("success", 4), result
    shown = json.loads(ctl("job", "show", "--root", str(anew), "--json", job).stdout)["jobs"][0]
    notes = shown["attempts"]
    assert [note["first"] for note in notes] == [1, 3] and notes[0]["why"] == "drain", notes
    assert len({note["host"] for note in notes}) == 2 and notes[1]["deaths"] == 0
    watcher.terminate()
    assert watcher.wait(60) == 0
    events = json_lines((anew / "ctl" / "events.jsonl").read_text())
    assert not [e for e in events if "death" in str(e)], events
    for root in (again, anew):
        stop = ctl("stop", "--root", str(root), "--grace", "20")
        assert stop.returncode == 0, stop.stderr


def diary(folder: Path) -> str:
    path = folder / "diary"
    return path.read_text() if path.exists() else ""


def over(ctl: Ctl, root: Path) -> list[dict[str, Any]]:
    told = json.loads(ctl("jobs", "--root", str(root), "--json").stdout)["jobs"]
    return [row for row in told if row["status"] not in ("pending", "running")]


def claims(root: Path) -> list[str]:
    owners = os.listdir(root / "claims")
    return [name for owner in owners for name in os.listdir(root / "claims" / owner)]


def test_as_many_workers_as_the_backlog_asks_for(ctl: Ctl, site: Slurm) -> None:
    root = start(ctl, 1, "--max-idle", "3")
    assert ctl("scale", "--auto", "0:3", "--root", str(root)).returncode == 0
    wait_until(lambda: site.jobs() == [], 60, "the end of who is idle")
    with Client(str(root)) as client:
        futures = [client.submit(WHO, 0.5) for _ in range(60)]
        wait_until(lambda: any(p.name for p in (root / "inbox").glob("*/*")), 30, "a backlog")
        step = ctl("scale", "--step", "--root", str(root))
        assert step.returncode == 0 and "submitted " in step.stdout, step.stderr
        assert len(site.jobs()) in (1, 2, 3)
        assert len([f.result(timeout=120) for f in futures]) == 60
    wait_until(lambda: site.jobs() == [], 60, "the end of who is idle")
    assert ctl("stop", "--root", str(root)).returncode == 0


def test_what_sbatch_refuses_is_said_and_nothing_is_left(ctl: Ctl, site: Slurm) -> None:
    root = ctl.runs / "run"
    argv = ["--root", str(root), "--fn", WHO, "--launcher", "slurm", "--nodes", "2"]
    failed = ctl("start", *argv, "--partition", "nowhere")
    assert failed.returncode == 1
    assert "sbatch refuses: " in failed.stderr and "partition" in failed.stderr
    assert site.jobs() == []
    assert ctl("start", *argv[:-2]).returncode == 2
    assert ctl("start", "--root", str(root), "--fn", WHO, "--nodes", "2").returncode == 2
    bad = ctl("start", *argv, "--sbatch", "--no-such-option")
    assert bad.returncode == 1 and "no-such-option" in bad.stderr


def test_without_slurm_it_is_said(ctl: Ctl, tmp_path: Path) -> None:
    path = {"PATH": os.path.dirname(sys.executable)}
    argv = ["--root", str(ctl.runs / "run"), "--fn", WHO, "--launcher", "slurm", "--nodes", "2"]
    failed = ctl("start", *argv, **path)
    assert failed.returncode == 2 and "needs sbatch on PATH" in failed.stderr


def test_one_run_has_members_of_all_kinds(site: Slurm, tmp_path: Path) -> None:
    """Each is killed in its own way; the full size is `bench/kinds.py`."""
    hosts.require()
    with HostRig(tmp_path) as rig:
        kinds = Kinds(tmp_path, site, rig, print)
        try:
            kinds.up()
            with Client(str(kinds.root), no_worker_timeout=120) as client:
                futures = kinds.send(client, 2000, 0.01)
                wait_until(lambda: len(kinds.answers) > 100, 60, "the first answers")
                kinds.kill_at_once()
                for future in futures:
                    future.result(timeout=200)
            assert kinds.wrong(2000) == []
            kinds.down()
        finally:
            kinds.close()
