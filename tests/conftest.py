"""Rules that hold for every test: its level, what a skip means, and that no process is left.

A level is the folder that a test lies in. A machine that cannot run a test skips it with a
sentence; where `CI` is set nothing may be missing, so there a skip is a failure. A process that
outlives its test fails that test: such a process is what this project promises not to leave.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support import leftovers

LEVELS = ("unit", "contract", "fleet", "cluster")
IN_CI = os.environ.get("CI", "").lower() not in ("", "0", "false")

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if IN_CI else "local")

# Who runs the tests in the background of a script has its shell ignore interrupts for them, and so
# for every process that they start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its level, and refuse one that claims another."""
    tests = Path(__file__).parent
    for item in items:
        level = item.path.relative_to(tests).parts[0]
        if level not in LEVELS:
            level = "unit"
        claimed = {mark.name for mark in item.iter_markers() if mark.name in LEVELS}
        if claimed - {level}:
            where = item.path.relative_to(tests)
            raise pytest.UsageError(f"tests/{where} is marked {claimed}, its folder says {level}")
        item.add_marker(level)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a test that skips itself has failed."""
    report = yield
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped where nothing may be missing: {_reason(report.longrepr)}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """In CI a module that skips itself has failed."""
    report = yield
    if IN_CI and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped where nothing may be missing: {_reason(report.longrepr)}"
    return report


def _reason(longrepr: object) -> str:
    return str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)


@pytest.fixture(autouse=True, scope="session")
def _no_process_is_left() -> Iterator[None]:
    """Set up before every other fixture, so it ends last: then nothing of ours may run."""
    token = os.environ[leftovers.SESSION] = secrets.token_hex(8)
    yield
    left = leftovers.end(leftovers.with_environ(f"{leftovers.SESSION}={token}"))
    assert not left, f"the tests left processes behind: {'; '.join(left)}"


@pytest.fixture(autouse=True)
def _no_process_of_the_test_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """A process that speaks of the test's own folder must have ended with the test."""
    yield
    folder = getattr(request.node, "funcargs", {}).get("tmp_path")
    if folder is not None:
        left = leftovers.end(leftovers.that_name(str(folder)), str(folder))
        assert not left, f"the test left processes behind: {'; '.join(left)}"
