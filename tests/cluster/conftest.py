"""The machines, booted once for all tests of this level, and the time that all of it may take."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.calls import close_all, prepare
from tests.cluster.fleets import Fleets
from tests.cluster.ground import Run
from tests.rigs import vmcluster
from tests.rigs.vmcluster import Cluster
from tests.support.budget import Budget

LONG = os.environ.get("SHARDFLEET_LONG", "") not in ("", "0")
"""Whether there is time: `make test-cluster-long`."""

BUDGET = os.environ.get("SHARDFLEET_BUDGET")
"""Seconds that all tests of this level may take together; what is left over then fails."""

OTHERS = ("test_slurm.py", "test_systemd.py")
"""What needs no machines, and waits most of the time: a process beside may do it."""

ORDER = (
    "test_agent.py",
    "test_training.py",
    "test_whole_life.py",
    "test_corners.py",
    "test_machines.py",
    "test_server.py",
    "test_the_end.py",
    *OTHERS,
    "test_chaos.py",
)
"""One fleet lives through the tests from its start to its end; what it is measured by comes before
there are watchers. Chaos is last: it resets machines, and takes as long as it takes."""

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put them in order; leave out, without a skip, what only the long level has time for."""
    items.sort(key=lambda item: ORDER.index(item.path.name) if item.path.name in ORDER else -1)
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


def pytest_configure(config: pytest.Config) -> None:
    if BUDGET:
        config.pluginmanager.register(Budget(float(BUDGET), HERE))


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, Any]:
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Three workers, a head and a file server; all of it ends with the session."""
    running = os.environ.get("SHARDFLEET_CLUSTER")
    if running:
        kept = Cluster.load(Path(running))
        prepare(kept.head)
        yield kept
        close_all()
        kept.save()  # machines that were switched off and on are other processes now
        return
    why = vmcluster.missing()
    if why:
        pytest.skip(why)
    base = Path(tempfile.mkdtemp(prefix="shardfleet-cluster-", dir="/tmp"))
    try:
        made = Cluster.boot(base / "rig")
        try:
            prepare(made.head)
            yield made
        finally:
            close_all()
            made.close()
    finally:
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture(scope="session")
def fleets(cluster: Cluster) -> Iterator[Fleets]:
    made = Fleets(cluster)
    yield made
    made.close()


@pytest.fixture
def fleet(request: pytest.FixtureRequest, fleets: Fleets) -> Iterator[Run]:
    """The run that most tests share; whoever fails leaves it to nobody."""
    yield fleets.get("fleet")
    if request.node.stash.get(FAILED, False):
        fleets.close()
