"""The machines, booted once for all tests of this level."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs import vmcluster
from tests.rigs.vmcluster import Cluster

LONG = os.environ.get("SHARDFLEET_LONG", "") not in ("", "0")
"""Whether there is time: `make test-cluster-long`."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out, without a skip, what only the long level has time for."""
    if LONG:
        return
    left_out = [item for item in items if item.get_closest_marker("long")]
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


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
