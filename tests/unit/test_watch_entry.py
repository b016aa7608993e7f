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
    assert (child.wait(60), said) == (0, b"")
