"""Two aggregators at work at once, of which one is killed at any of its calls."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedavg.keeper import GroupKeeper
from fsworker.protocol.fsops import Store
from tests.fleet.test_aggregator import template
from tests.support.folders import in_memory
from tests.support.roots import make_root
from tests.support.rounds import make_group, upload

pytestmark = pytest.mark.fleet

REPO = Path(__file__).parents[2]
LONG = bool(os.environ.get("SHARDFLEET_LONG"))
LIVES = 0 if LONG else 40
"""Calls at which one is killed; 0: at every one."""


@pytest.fixture
def fast() -> Iterator[Path]:
    with in_memory("aggregator-") as folder:
        yield folder


def with_late_ones(folder: Path) -> Path:
    """A group in its last round, in which a late upload counts as a change, and by its age."""
    store = Store(make_root(folder / "template"))
    make_group(store, "abcd", rule="fedbuff", quorum=3, episodes=3, late="delta", deadline=0.0)
    keeper = GroupKeeper(store, "g", threads=1)
    for episode, jobs in ((1, "abcd"), (2, "abd")):
        for job in jobs:
            upload(store, "g", job, episode, float(episode))
        assert keeper.step().merged
    for job, episode, value in (("c", 2, 7.0), ("d", 3, 1e25), ("a", 3, 1.0), ("b", 3, 2.0)):
        upload(store, "g", job, episode, value)
    return Path(store.root)


@pytest.mark.timeout(1800 if LONG else 600)
@pytest.mark.parametrize("template", [template, with_late_ones])
def test_one_of_two_is_killed_and_each_round_is_published_once(
    fast: Path, template: Callable[[Path], Path]
) -> None:
    (fast / "work").mkdir()
    seed = random.SystemRandom().randrange(1 << 30) if LONG else 5
    argv = [sys.executable, "-m", "tests.support.aggregator_pairs", str(template(fast))]
    done = subprocess.run(
        [*argv, str(fast / "work"), str(seed), str(LIVES)],
        cwd=REPO,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (seed, done.stderr)
    found = json.loads(done.stdout)
    print(f"seed {seed}: {found}")
    assert found["bad"] == [], (seed, found)
    assert found["calls"] > 100 and found["lives"] == (LIVES or found["calls"])
    assert found["killed"] > found["lives"] / 4 and found["stopped"] > found["lives"] / 4
