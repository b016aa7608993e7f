"""`fsworker.report`: from the call to the file, with the pipe in between."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy
import pytest

import fsworker
from ctl.jobs import points
from fsworker import reporting
from fsworker.jobs import metrics
from fsworker.jobs.metrics import Collector
from fsworker.protocol.fsops import Store

pytestmark = pytest.mark.unit

REPO = str(Path(__file__).parents[2])


@pytest.fixture
def collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Collector:
    found = Collector(Store(tmp_path), "metrics.jsonl")
    monkeypatch.setenv("FLEET_METRICS", found.address)
    reporting._open.clear()
    return found


def test_points_come_as_they_were_reported(collector: Collector, tmp_path: Path) -> None:
    fsworker.report(1, reward=2.5, loss=1)
    fsworker.report(2, reward=numpy.float32(0.5), loss=float("nan"))
    collector.hear()
    collector.flush()
    found = metrics.parse((tmp_path / "metrics.jsonl").read_bytes())
    assert [(step, values) for step, _, values in found] == [
        (1.0, {"reward": 2.5, "loss": 1}),
        (2.0, {"reward": 0.5, "loss": None}),
    ]
    assert abs(found[0][1] - time.time()) < 60
    assert collector.rewards == {1: 2.5, 2: 0.5}
    with pytest.raises(TypeError, match="report: loss must be a number, not 'high'"):
        fsworker.report(3, loss="high")


def test_outside_of_a_job_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("", "x", "1:2", "999:1:1:1", f"0:1:1:{os.getpid()}"):
        monkeypatch.setenv("FLEET_METRICS", address)
        reporting._open.clear()
        fsworker.report(1, loss=1.0)
    reporting._open.clear()


def test_a_process_that_is_killed_has_reported_all_that_it_said(
    collector: Collector, tmp_path: Path
) -> None:
    code = (
        "import fsworker, os\n"
        "for i in range(2000): fsworker.report(i, x=i)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=REPO, pass_fds=(collector.writing,))
    collector.hear()
    collector.flush()
    found = metrics.parse((tmp_path / "metrics.jsonl").read_bytes())
    assert [step for step, _, _ in found] == list(range(2000))


def test_a_helper_that_did_not_inherit_the_pipe_finds_it(collector: Collector) -> None:
    code = "import fsworker; fsworker.report(7, reward=1.0)"
    subprocess.run([sys.executable, "-c", code], cwd=REPO, check=True)
    collector.hear()
    assert collector.rewards == {7: 1.0}


def test_points_are_written_in_batches(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    path = tmp_path / "metrics.jsonl"
    fsworker.report(0, x=1)
    collector.hear()
    assert not path.exists()
    now += metrics.EVERY
    collector.tend()
    assert len(metrics.parse(path.read_bytes())) == 1
    for step in range(metrics.BATCH):
        fsworker.report(step, x=1)
    collector.hear()
    assert len(metrics.parse(path.read_bytes())) == 1 + metrics.BATCH


def test_many_values_fit_into_lines_of_a_pipe(collector: Collector, tmp_path: Path) -> None:
    fsworker.report(1, **{f"layer_{i:04}_gradient_norm": float(i) for i in range(400)})
    collector.hear()
    collector.flush()
    data = (tmp_path / "metrics.jsonl").read_bytes()
    assert max(map(len, data.splitlines())) <= reporting.MOST_LINE
    assert sum(len(values) for _, _, values in metrics.parse(data)) == 400


def test_a_line_that_is_cut_short_is_none() -> None:
    good = json.dumps([1, 2.0, {"a": 1}]).encode() + b"\n"
    assert len(metrics.parse(good + good[:-5])) == 1
    assert metrics.parse(b"nonsense\n[1]\n" + good) == [(1.0, 2.0, {"a": 1})]


def test_a_plot_shows_both_ends() -> None:
    lines = points.plot("reward", {"job_1": [(1, 0.0), (2, 5.0), (3, 10.0)]}, width=20, height=5)
    assert lines[0] == "reward"
    assert lines[1].strip().startswith("10 |") and lines[1].endswith("*")
    assert lines[5].strip().startswith("0 |*")
    assert lines[-1].split() == ["1", "3"]
    assert points.plot("x", {"a": []}) == ["x: no points"]
    assert "* a   + b" in points.plot("x", {"a": [(1, 1)], "b": [(1, 2)]})[-1]
