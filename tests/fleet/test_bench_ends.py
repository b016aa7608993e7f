"""A measurement that is ended or killed leaves nothing: no driver, no fleet, no folder."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support.waiting import Spawned, gone, wait_until, with_environ

pytestmark = pytest.mark.fleet

REPO = Path(__file__).parents[2]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
def test_nothing_is_left_of_a_measurement(tmp_path: Path, number: signal.Signals) -> None:
    token = f"BENCH_TEST={tmp_path}"
    env = {"TMPDIR": str(tmp_path), "PATH": os.environ["PATH"], "BENCH_TEST": str(tmp_path)}
    argv = [sys.executable, str(REPO / "bench" / "tasks.py"), "--quick", "--peers", "none"]
    argv += ["--only", "idle"]  # its driver is in the middle of a command for ten seconds
    with Spawned(token) as spawned:
        bench = spawned.start(argv, env={**env, "PYTHONPATH": str(REPO)})
        beats = "bench-fleet_map-*/*/fleet/runs/bench/status/bench2.json"
        wait_until(lambda: list(tmp_path.glob(beats)), what="its fleet")
        bench.send_signal(number)
        assert bench.wait(120) == (143 if number == signal.SIGTERM else -9)
        wait_until(lambda: all(map(gone, with_environ(token))), what="the end of all processes")
        wait_until(lambda: os.listdir(tmp_path) == [], what="the end of all files")
