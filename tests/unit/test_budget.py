"""A level whose time is spent ends, and each test that fails for it says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

REPO = Path(__file__).parents[2]
CONFTEST = """
from pathlib import Path
from tests.support.budget import Budget
def pytest_configure(config):
    config.pluginmanager.register(Budget(2.0, Path(__file__).parent))
"""
SUITE = """
import time
import pytest
def test_quick():
    pass
@pytest.mark.timeout(300)
def test_long():
    time.sleep(600)
def test_late():
    pass
"""


def test_a_test_that_the_budget_ends_says_so_and_what_comes_after_fails(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(SUITE)
    argv = ["-m", "pytest", "-p", "no:cacheprovider", "-rfE", "--rootdir", str(tmp_path), "."]
    env = {**os.environ, "PYTHONPATH": str(REPO), "CI": "true"}  # in CI no line is cut
    done = subprocess.run(
        [sys.executable, *argv], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stdout
    assert "1 failed, 1 passed, 1 error" in done.stdout, done.stdout
    rows = done.stdout.splitlines()
    (ended,) = [row for row in rows if row.startswith("FAILED")]
    (late,) = [row for row in rows if row.startswith("ERROR ")]
    assert "test_long - the 2 s for all tests of this level ran out" in ended
    assert "of the 300 s that it may take: Failed: Timeout" in ended, ended
    assert "test_late" in late
    assert "2 s for all tests of this level are spent: this one was not run" in done.stdout
