"""Two minutes of chaos, in the long level ten: `bench/chaos.py` on these machines."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.cluster.conftest import LONG
from tests.cluster.ground import restore
from tests.rigs.hosts import REPO
from tests.rigs.vmcluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2400 if LONG else 900)]

SEED = os.environ.get("SHARDFLEET_SEED", "7")
SIZE = [] if LONG else ["--quick"]


def test_chaos_loses_no_task_and_ends_nobody_who_lives(cluster: Cluster) -> None:
    cluster.save()
    argv = [sys.executable, str(REPO / "bench" / "chaos.py"), *SIZE, "--check", "--seed", SEED]
    env = {**os.environ, "PYTHONPATH": str(REPO), "SHARDFLEET_CLUSTER": str(cluster.folder)}
    try:
        done = subprocess.run(argv, env=env, check=False)
        assert done.returncode == 0, "what was missed is in the program's output"
    finally:
        cluster.server.resume()
        for machine in cluster.workers.values():
            machine.unhang()
            restore(machine)
