"""The second act of `make demo`, from its first line to nothing being left."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(600)]  # seven processes import torch

REPO = Path(__file__).parents[2]


def perform(folder: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(folder / "examples" / "digits_demo.py")]
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True)


def test_two_workers_train_one_model_and_nothing_is_left(tmp_path: Path) -> None:
    shutil.copytree(REPO / "examples", tmp_path / "examples")  # the demo's place is beside them
    done = perform(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    rounds = re.findall(
        r"round (\d): accuracy (0\.\d\d) \(two workers, 1438 samples\)", done.stdout
    )
    assert [number for number, _ in rounds] == ["1", "2", "3"]
    first, second, third = (float(accuracy) for _, accuracy in rounds)
    assert first < second < third > 0.8
    assert list((tmp_path / ".demo" / "runs").iterdir()) == []


def test_a_step_that_fails_ends_the_act_and_the_fleet(tmp_path: Path) -> None:
    shutil.copytree(REPO / "examples", tmp_path / "examples")
    script = tmp_path / "examples" / "digits" / "train.py"
    script.write_text(
        script.read_text().replace("def main() -> int:\n", "def main() -> int:\n    return 3\n")
    )
    done = perform(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"DEMO FAILED, .* job half[12] trains 3 episodes; it says: .*3", done.stderr)
    assert "the run root is kept" in done.stderr
