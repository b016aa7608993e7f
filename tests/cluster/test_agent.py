"""An agent and its peer on two machines that share nothing but a mount."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.ground import Run
from tests.rigs.vm import Machine
from tests.rigs.vmcluster import Cluster
from tests.support.agent_sides import expected

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

ROUNDS = 12
BEGUN: list[tuple[Machine, str]] = []
"""On which machine which notes are written, so that whoever writes them is ended with the test."""


@pytest.fixture
def run(cluster: Cluster) -> Iterator[Run]:
    made = Run(cluster, "agent")
    try:
        code = f"from pathlib import Path; make_root(Path({made.root!r}))"
        made.sh(made.python(["-c", f"from tests.support.roots import make_root; {code}"]))
        yield made
    finally:
        for machine, notes in BEGUN:
            for pid in {note["pid"] for note in noted(made, notes)}:
                made.sh(f"kill -KILL {pid} 2>/dev/null", on=machine, check=False)
        BEGUN.clear()
        made.sh(f"rm -rf {made.base}", check=False)


def begin(run: Run, machine: Machine, notes: str, side: str, *more: str) -> None:
    """Start a side in the background; what it notes lies on the mount, written by it alone."""
    BEGUN.append((machine, notes))
    path = f"{run.base}/{notes}"
    words = ["-m", "tests.support.agent_sides", side, run.root, "a", path, *more]
    run.sh(f"setsid {run.python(words)} >{path}.log 2>&1 </dev/null &", on=machine)


def noted(run: Run, notes: str) -> list[dict[str, Any]]:
    text = run.sh(f"cat {run.base}/{notes} 2>/dev/null || true").stdout
    return [json.loads(line) for line in text.splitlines()]


def wait_for(run: Run, notes: str, text: str, count: int = 1) -> None:
    """Until a side has noted a text so often."""
    test = f'[ "$(cat {run.base}/{notes} 2>/dev/null | grep -c {text!r})" -ge {count} ]'
    run.wait(test, what=f"{notes}: {text}")


def test_rounds_go_on_when_the_machine_of_the_agent_freezes(run: Run) -> None:
    """A second agent takes over; the first one thaws and finds that it was replaced."""
    one, two, *_ = run.cluster.workers.values()
    begin(run, run.head, "steer", "steer", str(ROUNDS))
    begin(run, one, "frozen", "train")
    wait_for(run, "steer", "answer", 3)
    one.freeze()
    try:
        begin(run, two, "train", "train")
        wait_for(run, "train", "submitted", 2)
    finally:
        one.thaw()
    wait_for(run, "frozen", "closed")
    wait_for(run, "steer", "ended")
    wait_for(run, "train", "closed")
    answers = [n for n in noted(run, "steer") if "answer" in n]
    assert [n["answer"] for n in answers] == [f"r{i}" for i in range(1, ROUNDS + 1)]
    assert answers[-1]["w"] == expected(ROUNDS)
    assert run.sh(f"ls -A {run.root}/agents {run.root}/quarantine | grep -v :").stdout.split() == []
