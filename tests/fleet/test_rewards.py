"""Rewards from real workers: what is slow or crashes is tried again, and that is counted."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsworker import rewards
from fsworker.client.executor import TaskCrashed
from tests.support.fleet import REPO, Fleet
from tests.support.waiting import Spawned

pytestmark = pytest.mark.fleet

HERE = "tests.support.reward_functions"


@pytest.fixture
def spawned() -> Iterator[Spawned]:
    with Spawned() as spawned:
        yield spawned


def test_failures_are_tried_again_and_counted(tmp_path: Path, spawned: Spawned) -> None:
    fleet = Fleet(tmp_path / "run", spawned, [f"{HERE}:grade", f"{HERE}:fail"])
    fleet.start("h0")

    def batch(**times: int) -> dict[str, list[object]]:
        files = [str(tmp_path / f"{how}{n}") for how, n in times.items()]
        return {"how": list(times), "path": files, "times": list(times.values())}

    ways = ["how", "path", "times"]
    with rewards.trl(f"{HERE}:fail", fleet.root, timeout=1.0, takes=ways) as reward:
        got: list[Any] = reward(completions=["", ""], **batch(timeout=1, crashed=2))
        assert got == ["at last", "at last"]
        counts = {"ok": 2, "timeouts": 1, "retries": 3, "defaults": 0, "failed": 0}
        assert reward.stats.as_dict() == counts
        with pytest.raises(TaskCrashed):
            reward(completions=[""], **batch(crashed=9))
        assert (tmp_path / "crashed9").read_text() == "crashed\n" * 4
    lenient = rewards.trl(
        f"{HERE}:fail", fleet.root, max_retries=0, on_error="default", default=None, takes=ways
    )
    with lenient:
        assert lenient(completions=["", ""], **batch(error=5, crashed=8)) == [None, None]
        assert lenient.stats.as_dict()["defaults"] == 2
    with rewards.areal(f"{HERE}:grade", fleet.root) as awaited:
        assert asyncio.run(awaited("p", "4", [1], [2], answer=4)) == 1.0
    assert not fleet.files()


def test_the_grpo_example_learns(tmp_path: Path) -> None:
    argv = [sys.executable, "examples/grpo/train.py", "--steps", "12", "--place", str(tmp_path)]
    done = subprocess.run(
        argv, cwd=REPO, capture_output=True, text=True, timeout=240, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr
    first, *_, last = [line for line in done.stdout.splitlines() if line.startswith("step")]
    assert float(last.split("reward")[1].split()[0]) > float(first.split("reward")[1].split()[0])
