"""A training loop that leaves by itself: a clear end of its job, unless it comes back."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsworker.errors import FleetError
from fsworker.jobs import environment, looped
from fsworker.jobs.attempt import AttemptFolder
from fsworker.jobs.control import Claim, Control
from fsworker.jobs.looped import Loop
from fsworker.jobs.templates import Turn
from fsworker.jobs.ticket import Ticket
from fsworker.protocol import layout
from fsworker.protocol.layout import Owner
from fsworker.protocol.records.job import Job
from tests.support.runs import make_run

pytestmark = pytest.mark.fleet

LIFE = "c0ffee000001"
SCRIPT = """
import os, sys, time
from fsworker.agent import Agent, TaskResult
how = sys.argv[1]
agent = Agent.from_env()
agent.start()
task = agent.get_task()
agent.stop()
if how == "stays":
    time.sleep(60)
if how == "returns":
    with Agent.from_env() as again:
        task = again.get_task()
        open(task.data["checkpoint"], "w").close()
        again.submit_result(TaskResult({"episode": 1}, {"checkpoint": task.data["checkpoint"]}))
        again.get_task()
"""


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        os.close(fd)


@pytest.mark.parametrize(
    ("how", "ends"),
    [
        ("leaves", "the training loop ended with exit code 0 before it answered episode 1"),
        ("stays", "the training loop said goodbye and went on before it answered episode 1"),
        ("returns", "exit"),
        ("drained", "drain"),
    ],
)
def test_a_loop_that_says_goodbye(
    tmp_path: Path, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch, how: str, ends: str
) -> None:
    monkeypatch.setattr(looped, "GOODBYE", 60.0 if how in ("returns", "drained") else 0.5)
    run = make_run(tmp_path / "run")
    job = Job("j", ("x",), grace=0.5, agent_loop=True)
    batch = layout.batch_id(layout.job_stream("j"), LIFE, 0)
    ticket = Ticket(run.root, f"n1~{LIFE}", f"0~{batch}.1.0", job.to_json().decode())
    control = Control(pipe[0], Claim(run.store, Owner("n1", LIFE), ticket.claim))
    at = AttemptFolder(run.store, ticket, job, control)
    turn = Turn(1, 1, str(tmp_path / "checkpoint.json"))
    loop = Loop(at)
    told = threading.Timer(1.0, os.write, (pipe[1], b"drain\n"))
    if how == "drained":
        told.start()  # it was told first, as when a whole allocation gets TERM
    try:
        argv = [sys.executable, "-c", SCRIPT, how]
        env = environment.of_turn(at.env, turn, 1)
        if ends in ("exit", "drain"):
            assert loop.train(turn, argv, env).why == ends
        else:
            with pytest.raises(FleetError, match=ends):
                loop.train(turn, argv, env)
    finally:
        told.cancel()
        control.told = "gone"
        loop.close()
    assert not at.left
