"""The machines, booted once for all tests of this level, and the time that all of it may take."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rigs import vmcluster
from tests.rigs.vmcluster import Cluster

LONG = os.environ.get("SHARDFLEET_LONG", "") not in ("", "0")
"""Whether there is time: `make test-cluster-long`."""

BUDGET = float(os.environ.get("SHARDFLEET_BUDGET") or math.inf)
"""Seconds that all tests of this level may take together; what is left over then fails."""

OTHERS = ("test_slurm.py", "test_systemd.py")
"""What needs no machines, and waits most of the time: a process beside may do it."""

LAST = "test_chaos.py"
"""It resets machines, which then have nothing in their caches, and takes as long as it takes."""

HERE = Path(__file__).parent
_BEGUN = time.monotonic()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out, without a skip, what only the long level has time for; chaos comes last."""
    items.sort(key=lambda item: item.path.name == LAST)
    if LONG:
        return
    left_out = [item for item in items if item.get_closest_marker("long")]
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n 2`: all that needs the machines in one process, what needs none in the other."""
    from xdist.scheduler import LoadScopeScheduling

    class ByRig(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "others" if any(name in nodeid for name in OTHERS) else "machines"

    return ByRig(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """No test takes longer than what is left of the budget; before pytest-timeout looks."""
    if HERE in item.path.parents and math.isfinite(BUDGET):
        own = item.get_closest_marker("timeout")
        seconds = min(own.args[0] if own else math.inf, max(1.0, _left()))
        item.add_marker(pytest.mark.timeout(seconds), append=False)
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    if _left() <= 0:
        pytest.fail(f"the {BUDGET:.0f} s for this level are spent: this test was not run", False)


def _left() -> float:
    return BUDGET - (time.monotonic() - _BEGUN)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Three workers, a head and a file server; all of it ends with the session."""
    running = os.environ.get("SHARDFLEET_CLUSTER")
    if running:
        kept = Cluster.load(Path(running))
        yield kept
        kept.save()  # machines that were switched off and on are other processes now
        return
    why = vmcluster.missing()
    if why:
        pytest.skip(why)
    base = Path(tempfile.mkdtemp(prefix="shardfleet-cluster-", dir="/tmp"))
    try:
        made = Cluster.boot(base / "rig")
        try:
            yield made
        finally:
            made.close()
    finally:
        shutil.rmtree(base, ignore_errors=True)
