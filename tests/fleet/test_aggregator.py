"""The aggregator as real processes on real torch files, killed, stopped, doubled and lied to."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fedavg.keeper import GroupKeeper
from fsworker.protocol import federation
from fsworker.protocol.fsops import Store
from fsworker.protocol.groupview import GroupEye
from fsworker.protocol.layout import groups
from tests.support.folders import in_memory
from tests.support.roots import make_root
from tests.support.rounds import (
    Shell,
    make_group,
    model,
    prepare,
    published,
    saves,
    upload,
    weights,
)
from tests.support.waiting import Spawned, wait_until

pytestmark = pytest.mark.fleet

REPO = Path(__file__).parents[2]
ENV = {"PYTHONPATH": str(REPO)}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(make_root(tmp_path / "root"))


@pytest.fixture
def spawned() -> Iterator[Spawned]:
    with Spawned() as processes:
        yield processes


def run(spawned: Spawned, store: Store, *args: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "fedavg.cli", "run", "--root", store.root, "--poll", "0.05"]
    code = "import sys; from fedavg.cli import main; sys.exit(main(sys.argv[1:]))"
    return spawned.start([sys.executable, "-c", code, *argv[3:], *args], env=ENV)


def command(program: str, store: Store, *args: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys; from {program}.cli import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", code, *args, "--root", store.root],
        env={**os.environ, **ENV},
        capture_output=True,
        text=True,
        timeout=240,
    )


# -- killed and stopped at every call


@pytest.fixture
def fast() -> Iterator[Path]:
    with in_memory("aggregator-") as folder:
        yield folder


def template(folder: Path) -> Path:
    """A group in its last round with one to refuse, one late, and a rule that keeps a state."""
    store = Store(make_root(folder / "template"))
    make_group(store, "abcd", rule="fedavgm", quorum=2, keep_rounds=1, episodes=3)
    keeper = GroupKeeper(store, "g", threads=1)
    for episode, jobs in ((1, "abc"), (2, "ab")):
        for job in jobs:
            upload(store, "g", job, episode, float(episode))
        assert keeper.step().merged
    upload(store, "g", "c", 2, 2.0)
    upload(store, "g", "d", 3, float("nan"))
    for job, value in (("a", 1.0), ("b", 2.0), ("c", 4.0)):
        upload(store, "g", job, 3, value)
    return Path(store.root)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["kill", "pause"])
def test_disturbed_at_any_call_it_publishes_the_same_bytes_once(fast: Path, mode: str) -> None:
    (fast / "work").mkdir()
    argv = [sys.executable, "-m", "tests.support.aggregator_kills", mode]
    done = subprocess.run(
        [*argv, str(template(fast)), str(fast / "work")],
        cwd=REPO,
        env={**os.environ, **ENV},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["bad"] == [], found
    assert found["calls"] > 100 and (mode == "pause" or found["states"] > 20)
    assert mode == "pause" or {"fsync", "fdatasync", "rename"} <= found["killed_at"].keys(), found


# -- a bad group


@pytest.mark.filterwarnings("ignore")
def test_a_group_of_eight_closes_at_its_quorum_and_names_the_five_that_are_not_in(
    store: Store, spawned: Spawned, tmp_path: Path
) -> None:
    jobs = ["good1", "good2", "good3", "silent", "nan", "hostile", "misshapen", "late"]
    make_group(store, jobs, quorum=3)
    process = run(spawned, store)
    for job in jobs:
        if job not in ("silent",):
            upload(store, "g", job, 1, 1.0)
    wait_until(lambda: federation.read_global(store, "g", 2), what="the first round")
    # The first round had no model to compare with; from here on there is one.
    touched = tmp_path / "ran"
    bad = weights(1.0)
    bad["q_net_state_dict"]["0.weight"] = torch.ones(5, 2)
    upload(store, "g", "nan", 2, float("nan"))
    upload(store, "g", "hostile", 2, saves({"q_net_state_dict": Shell(f"touch {touched}")}))
    upload(store, "g", "misshapen", 2, saves(bad))
    eye = GroupEye(store, "g")
    wait_until(lambda: len(eye.refusals(2)) == 3, what="three refusals")
    assert federation.read_global(store, "g", 3) is None
    # A participant that was moved to another host uploads twice, and counts once.
    upload(store, "g", "good1", 2, 2.0)
    assert not upload(store, "g", "good1", 2, 200.0, attempt=2)
    for job in ("good2", "good3"):
        upload(store, "g", job, 2, 2.0)
    wait_until(lambda: federation.read_global(store, "g", 3), what="the second round")
    upload(store, "g", "late", 2, 9.0)
    wait_until(lambda: "late" in eye.refusals(2), what="the late one's refusal")
    plan = eye.plan(2)
    assert plan is not None and [c.job for c in plan.contributors] == ["good1", "good2", "good3"]
    assert {job: words.partition(":")[0] for job, words in plan.refused.items()} == {
        "hostile": "unsafe", "misshapen": "misshapen", "nan": "not finite",
    }  # fmt: skip
    assert plan.missing == ("late", "silent")
    assert {job: r.kind for job, r in eye.refusals(2).items()} == {
        "hostile": "unsafe", "misshapen": "misshapen", "nan": "not finite", "late": "late",
    }  # fmt: skip
    assert "posix.system" in eye.refusals(2)["hostile"].reason
    assert "0.weight" in eye.refusals(2)["misshapen"].reason
    assert float(model(store, 3)["q_net_state_dict"]["0.weight"][0, 0]) == 2.0
    assert not touched.exists()
    shown = json.loads(command("ctl", store, "rounds", "g", "--json").stdout)
    told = shown["groups"][0]["rounds"][0]
    assert set(told["refused"]) | set(told["missing"]) == {
        "hostile", "misshapen", "nan", "late", "silent",
    }  # fmt: skip
    assert shown["aggregator"]["alive"] and shown["aggregator"]["pid"] == process.pid
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 0
    shown = json.loads(command("ctl", store, "rounds", "g", "--json").stdout)
    assert shown["aggregator"]["stopped"] and not shown["aggregator"]["alive"]


# -- two at once, killed again and again


def feed(store: Store, episode: int) -> None:
    for job, value in (("a", 1.0), ("b", 2.0), ("c", 6.0)):
        upload(store, "g", job, episode, value * episode, samples=episode)


def alone(path: Path, rounds: int) -> dict[str, str]:
    """What one aggregator that nobody disturbs publishes."""
    store = Store(make_root(path))
    make_group(store, "abc", rule="fedadam", episodes=rounds)
    for episode in range(1, rounds + 1):
        feed(store, episode)
        assert GroupKeeper(store, "g").step().merged
    assert GroupKeeper(store, "g").step().finished
    return published(store)


def test_a_second_one_takes_over_from_one_that_is_killed(
    store: Store, spawned: Spawned, tmp_path: Path
) -> None:
    rounds, rng = 3, random.Random(5)
    expected = alone(tmp_path / "alone", rounds)
    make_group(store, "abc", rule="fedadam", episodes=rounds)
    pair = [run(spawned, store, "--until-finished") for _ in range(2)]
    for episode in range(1, rounds + 1):
        feed(store, episode)
        if episode < rounds:
            victim = rng.randrange(2)
            pair[victim].kill()
            pair[victim].wait()
            pair[victim] = run(spawned, store, "--until-finished")
        wait_until(
            lambda e=episode: federation.read_global(store, "g", e + 1),  # type: ignore[misc]
            60,
            what=f"round {episode}",
        )
    assert [process.wait(120) for process in pair] == [0, 0]
    assert published(store) == expected
    done = command("fedavg", store, "verify", "g", "--recompute", "--json")
    assert done.returncode == 0, done.stderr
    links = json.loads(done.stdout)["rounds"]
    assert [link["round"] for link in links] == [1, 2, 3]
    assert [link["found"] for link in links][-1] == "recomputed"


# -- for weeks


def test_fifty_rounds_do_not_fill_the_disk(fast: Path) -> None:
    store = Store(make_root(fast / "root"))
    make_group(store, "ab", keep_rounds=2, rule="fedavgm")
    keeper, sizes = GroupKeeper(store, "g", threads=1), {}
    for episode in range(1, 51):
        for job in "ab":
            upload(store, "g", job, episode, saves(weights(float(episode), 20_000)))
        if episode % 10 == 0:  # an upload that a killed job left half made
            prepare(store, groups.upload_dir("g", episode, "a"), "a", episode, saves(weights(1.0)))
        assert keeper.step().merged
        keeper.step()
        sizes[episode] = usage(store)
    records = 50 * 6000  # what is kept of a round for ever
    assert sizes[50] < sizes[5] + records, sizes
    assert len(os.listdir(store.path(groups.uploads_dir("g")))) == 2
    done = command("fedavg", store, "verify", "g", "--json")
    assert done.returncode == 0, done.stdout
    links: list[dict[str, Any]] = json.loads(done.stdout)["rounds"]
    assert [link["found"] for link in links] == ["retired"] * 47 + ["good"] * 3


def usage(store: Store) -> int:
    """Bytes of all files of the group."""
    total = 0
    for folder, _, files in os.walk(store.path(groups.group_dir("g"))):
        total += sum(os.path.getsize(os.path.join(folder, name)) for name in files)
    return total
