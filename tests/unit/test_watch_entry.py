"""How a watcher begins: patiently, and with a child that goes quietly when it is given up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ctl.journal import Journal
from ctl.lookout import LATE, Lookout
from ctl.observe import Report
from ctl.patience import QUICK_LOOKS, Patience
from ctl.rootio import Late
from ctl.watch import ENTER_PATIENCE

pytestmark = pytest.mark.unit


class Patient:
    """Notes how long each answer may take."""

    generation = 1

    def __init__(self) -> None:
        self.asked: list[tuple[str, float]] = []

    def call(self, verb: str, timeout: float, **_: Any) -> str:
        self.asked.append((verb, timeout))
        return ""


def test_the_first_answer_may_take_as_long_as_a_busy_node_needs_for_a_new_process() -> None:
    io = Patient()
    lookout = Lookout(io, Journal(), 10.0)  # type: ignore[arg-type]
    lookout.lock(ENTER_PATIENCE)
    lookout.lock()
    assert io.asked == [("lock", ENTER_PATIENCE), ("lock", LATE)]
    assert ENTER_PATIENCE > 2 * LATE


class Slow(Patient):
    """Answers the third time."""

    def call(self, verb: str, timeout: float, **_: Any) -> str:
        super().call(verb, timeout)
        if len(self.asked) < 3:
            raise Late("the root does not answer", path="/r")
        return ""

    def recover(self, timeout: float) -> bool:
        return True


def test_a_root_that_does_not_answer_at_first_is_waited_for() -> None:
    io = Slow()
    lookout = Lookout(io, Journal(), 10.0)  # type: ignore[arg-type]
    assert lookout.insist(lambda: lookout.lock(ENTER_PATIENCE), lambda: False)
    assert io.asked == [("lock", ENTER_PATIENCE)] * 3
    assert not Lookout(Slow(), Journal(), 10.0).insist(  # type: ignore[arg-type]
        lookout.lock, lambda: True
    ), "who is told to end meanwhile ends"


def test_a_child_that_was_given_up_says_nothing_about_its_broken_pipe(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "ctl.rootchild", str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert child.stdin and child.stdout and child.stderr
    child.stdout.close()
    child.stdin.write(b'{"verb": "memory"}\n')
    child.stdin.close()
    said = child.stderr.read()
    child.stderr.close()
    assert (child.wait(120), said) == (0, b"")


class Sluggish(Patient):
    """A root where a look takes `seconds`: an answer in time, or none."""

    generation, running, abandoned = 1, True, 0
    root, seconds = "/r", 6.0

    def __init__(self, report: dict[str, Any]) -> None:
        super().__init__()
        self._report = report

    def call(self, verb: str, timeout: float, **_: Any) -> Any:
        super().call(verb, timeout)
        if verb == "look" and timeout < self.seconds:
            raise Late("the root does not answer", path="/r")
        return self._report if verb == "look" else ""

    def recover(self, timeout: float) -> bool:
        return True


@pytest.fixture
def sluggish() -> Sluggish:
    return Sluggish(Report(now=1.0, readings={}).to_plain())


def test_where_every_look_is_slow_more_is_allowed_in_the_end(
    sluggish: Sluggish, capsys: pytest.CaptureFixture[str]
) -> None:
    lookout = Lookout(sluggish, Journal(), 10.0, late=5.0, latest=30.0)  # type: ignore[arg-type]
    lookout.lock()
    assert [lookout.look() is None for _ in range(4)] == [True, True, False, False]
    assert not lookout.lost
    assert "looks take longer than 5 s here: 10 s are allowed" in capsys.readouterr().err


def test_a_single_slow_look_still_makes_the_storage_suspect(sluggish: Sluggish) -> None:
    lookout = Lookout(sluggish, Journal(), 10.0, late=5.0, latest=30.0)  # type: ignore[arg-type]
    lookout.lock()
    for _ in range(3):
        sluggish.seconds = 6.0
        assert lookout.look() is None and lookout.lost
        sluggish.seconds = 0.1
        assert lookout.look() is not None


def test_patience_ends_at_its_most_and_goes_when_looks_are_quick() -> None:
    patience = Patience(5.0, 7.5)
    assert [patience.late() for _ in range(4)] == [False, True, False, False]
    assert patience.limit == 7.5
    for _ in range(QUICK_LOOKS - 1):
        patience.kept(1.0)
    patience.kept(6.0)
    assert patience.limit == 7.5, "only looks in a row count"
    for _ in range(QUICK_LOOKS):
        patience.kept(1.0)
    assert patience.limit == 5.0
    assert Patience(5.0, 2.5).limit == 5.0
