"""The time that all tests of a level may take together, as a plugin of pytest.

A test gets no more than what is left; one that has not begun by then fails. Whoever fails for that
says so: else it looks like a test that hangs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from pathlib import Path

import pytest

CUT = pytest.StashKey[str]()


class Budget:
    """For the tests below `folder`, from now on."""

    def __init__(self, seconds: float, folder: Path) -> None:
        self.seconds, self._folder = seconds, folder
        self._begun = time.monotonic()

    @property
    def left(self) -> float:
        return self.seconds - (time.monotonic() - self._begun)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Before pytest-timeout looks how long a test may take."""
        own = item.get_closest_marker("timeout")
        limit = own.args[0] if own else float(item.config.getini("timeout") or math.inf)
        if self._folder in item.path.parents and (left := max(1.0, self.left)) < limit:
            item.add_marker(pytest.mark.timeout(left), append=False)
            item.stash[CUT] = (
                f"the {self.seconds:.0f} s for all tests of this level ran out: this one was given "
                f"the {left:.0f} s that were left, of the {limit:.0f} s that it may take"
            )
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if self._folder in item.path.parents and self.left <= 0:
            pytest.fail(
                f"the {self.seconds:.0f} s for all tests of this level are spent: "
                "this one was not run",
                pytrace=False,
            )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        cut = item.stash.get(CUT, "")
        if cut and report.failed and "Timeout" in report.longreprtext:
            report.sections.append(("why it was ended", cut))
            crash = getattr(report.longrepr, "reprcrash", None)
            if crash is not None:
                crash.message = f"{cut}: {crash.message}"  # the line of the short summary
        return report
