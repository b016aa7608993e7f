"""The aggregator as a part of a run: `ctl start --federation`, kept alive, ended with the run."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsworker.protocol import federation
from fsworker.protocol.fsops import Store
from tests.support.ctlrun import Ctl
from tests.support.rounds import make_group, upload
from tests.support.waiting import gone, wait_until

pytestmark = pytest.mark.fleet


@pytest.fixture
def ctl(tmp_path: Path) -> Iterator[Ctl]:
    with Ctl(tmp_path, FLEET_HOSTS="n1") as calls:
        yield calls


def merging(ctl: Ctl, root: Path) -> dict[str, Any] | None:
    """The aggregator as `status` tells it."""
    found: dict[str, Any] | None = ctl.status(root)["aggregator"]
    return found


def alive(ctl: Ctl, root: Path, but: int = 0) -> dict[str, Any] | None:
    found = merging(ctl, root)
    return found if found and found["alive"] and found["pid"] != but else None


@pytest.mark.timeout(600)
def test_it_comes_and_goes_with_the_run_and_is_kept_alive(ctl: Ctl, tmp_path: Path) -> None:
    root = ctl.runs / "r"
    done = ctl("start", "--root", str(root), "--fn", "math:sqrt", "--federation", "--watch")
    assert done.returncode == 0, done.stderr
    assert "aggregating pid=" in done.stdout
    first = wait_until(lambda: alive(ctl, root), what="the aggregator's first beat")
    store = Store(root)
    make_group(store, "ab", episodes=2)
    for job in "ab":
        upload(store, "g", job, 1, 1.0)
    wait_until(lambda: federation.read_global(store, "g", 2), what="the first round")

    os.kill(first["pid"], signal.SIGKILL)
    wait_until(lambda: gone(first["pid"]))
    second = wait_until(lambda: alive(ctl, root, first["pid"]), what="another one by the watcher")
    again = ctl("aggregator", "keep", "--root", str(root))
    assert (again.returncode, again.stdout) == (0, "")
    for job in "ab":
        upload(store, "g", job, 2, 1.0)
    wait_until(lambda: federation.read_global(store, "g", 3), what="the last round")

    stopped = ctl("stop", "--root", str(root), "--grace", "100s")
    assert stopped.returncode == 0, stopped.stderr
    assert gone(second["pid"])
    found = merging(ctl, root)
    assert found is not None and found["stopped"] and not found["alive"]
    assert ctl("aggregator", "stop", "--root", str(root)).returncode == 3
    kept = ctl("aggregator", "keep", "--root", str(root))
    assert (kept.returncode, kept.stdout) == (0, "")
    shown = json.loads(ctl("rounds", "--root", str(root), "--json").stdout)
    assert shown["groups"][0]["state"] == "finished"
