"""An agent and its peer as processes that are killed, frozen and started anew, on a real root."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fsworker.agent import Peer
from fsworker.protocol.layout import agents
from tests.support.agent_sides import expected, notes
from tests.support.roots import make_root
from tests.support.waiting import Spawned, wait_until

pytestmark = pytest.mark.fleet

REPO = Path(__file__).parents[2]
GOOD = {"round": 1}


class Sides:
    """Both sides of one agent; each has one log and one file of notes over all its lives."""

    def __init__(self, folder: Path, spawned: Spawned) -> None:
        self.root = make_root(folder / "root")
        self.gate = folder / "gate"
        self.gate.mkdir()
        self.folder, self.spawned = folder, spawned

    def start(self, side: str, *more: object, log: str = "") -> subprocess.Popen[bytes]:
        argv = [sys.executable, str(REPO / "tests/support/agent_sides.py"), side, str(self.root)]
        argv += ["a", str(self.notes_of(log or side)), *map(str, more)]
        with (self.folder / f"{log or side}.log").open("ab") as file:
            return self.spawned.start(argv, env={"PYTHONPATH": str(REPO)}, stderr=file)

    def notes_of(self, side: str) -> Path:
        return self.folder / f"{side}.jsonl"

    def noted(self, side: str, **fields: Any) -> list[dict[str, Any]]:
        """The lines that a side wrote which have these fields."""
        lines = notes(self.notes_of(side))
        return [n for n in lines if all(k in n and n[k] == v for k, v in fields.items())]

    def wait(self, side: str, count: int = 1, **fields: Any) -> list[dict[str, Any]]:
        def look() -> list[dict[str, Any]]:
            found = self.noted(side, **fields)
            return found if len(found) >= count else []

        return wait_until(look, what=f"{side} notes {fields}")

    def open(self, task_id: str) -> None:
        """Let a task be computed."""
        (self.gate / task_id).touch()


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[Sides]:
    with Spawned() as spawned:
        yield Sides(tmp_path, spawned)


@pytest.fixture
def peer(sides: Sides) -> Iterator[Peer]:
    with Peer("a", connection_timeout=2, resend_interval=0.5, root=sides.root) as peer:
        yield peer


def send(peer: Peer, task_id: str) -> None:
    peer.send_task("round", task_id, GOOD, {"w": [1.0]})


def answer(peer: Peer, task_id: str) -> None:
    came = peer.get_result(60)
    assert came is not None and (came.task_id, list(came.data["w"])) == (task_id, [1.5])


def kill(child: subprocess.Popen[bytes]) -> None:
    child.send_signal(signal.SIGKILL)
    child.wait()


def test_a_killed_agent_gets_its_task_again_once_it_asks(sides: Sides, peer: Peer) -> None:
    first = sides.start("train", sides.gate)
    send(peer, "t1")
    sides.wait("train", got="t1")
    kill(first)
    sides.open("t1")
    second = sides.start("train", sides.gate)
    answer(peer, "t1")
    assert len(sides.noted("train", got="t1")) == 2
    peer.bye()
    assert second.wait(120) == 0
    assert sides.noted("train", closed="the other side said goodbye")
    wait_until(lambda: os.listdir(sides.root / agents.AGENTS) == [], what="nothing is left")


def test_a_frozen_agent_is_disconnected_and_goes_on_when_it_thaws(sides: Sides, peer: Peer) -> None:
    child = sides.start("train", sides.gate)
    send(peer, "t1")
    sides.wait("train", got="t1")
    child.send_signal(signal.SIGSTOP)
    wait_until(lambda: not peer.connected, what="disconnected")
    sides.open("t1")
    assert peer.get_result(0.2) is None
    child.send_signal(signal.SIGCONT)
    answer(peer, "t1")
    assert peer.connected
    assert sides.wait("train", submitted="t1")[0]["taken"] is True


def test_a_frozen_agent_that_was_replaced_ends_when_it_thaws(sides: Sides, peer: Peer) -> None:
    frozen = sides.start("train", sides.gate, log="frozen")
    send(peer, "t1")
    sides.wait("frozen", got="t1")
    frozen.send_signal(signal.SIGSTOP)
    other = sides.start("train", sides.gate)
    sides.wait("train", got="t1")
    frozen.send_signal(signal.SIGCONT)
    # Its application works on, but what it submits is not sent any more.
    sides.open("t1")
    answer(peer, "t1")
    assert frozen.wait(120) == 0
    closed = "another life of the agent has taken its place"
    assert sides.noted("frozen", closed=closed) and not sides.noted("frozen", taken=True)
    send(peer, "t2")
    sides.open("t2")
    answer(peer, "t2")
    assert other.poll() is None


def test_a_killed_peer_goes_on_and_what_was_computed_is_not_lost(sides: Sides) -> None:
    first = sides.start("steer", 2)
    sides.start("train", sides.gate)
    sides.wait("train", got="r1")
    kill(first)
    sides.open("r1")  # its result waits for a peer
    sides.open("r2")
    second = sides.start("steer", 2)
    assert second.wait(120) == 0
    assert [n["answer"] for n in sides.noted("steer") if "answer" in n] == ["r1", "r2"]
    assert len(sides.noted("train", got="r1")) == 1
    assert sides.noted("train", submitted="r1")[0]["taken"] is True


def test_an_abort_reaches_a_running_training(sides: Sides, peer: Peer) -> None:
    child = sides.start("train", sides.gate)
    send(peer, "t1")
    sides.wait("train", got="t1")
    peer.abort("t1")
    assert sides.wait("train", submitted="t1")[0] | {"pid": 0} == {
        "pid": 0,
        "submitted": "t1",
        "taken": False,
        "aborted": True,
    }
    sides.open("t2")
    send(peer, "t2")
    answer(peer, "t2")
    assert child.poll() is None


def freeze(child: subprocess.Popen[bytes], dice: random.Random) -> None:
    child.send_signal(signal.SIGSTOP)
    time.sleep(dice.uniform(0.0, 0.3))
    child.send_signal(signal.SIGCONT)


def test_rounds_survive_kills_and_freezes_at_random_moments(sides: Sides) -> None:
    rounds, dice = 150, random.Random(7)
    start: dict[str, Callable[[], subprocess.Popen[bytes]]] = {
        "train": lambda: sides.start("train"),
        "steer": lambda: sides.start("steer", rounds),
    }
    running, killed = {side: begin() for side, begin in start.items()}, list[int]()
    for _ in range(12):
        side = dice.choice(("train", "steer"))
        if running["steer"].poll() is not None:
            break
        # Each life must come so far that it can be interrupted in the midst of something.
        sides.wait(side, began=True, pid=running[side].pid)
        time.sleep(dice.uniform(0.0, 0.15))
        if dice.random() < 0.3:
            freeze(running[side], dice)
        else:
            kill(running[side])
            killed.append(running[side].pid)
            running[side] = start[side]()
    assert running["steer"].wait(120) == 0
    if any(sides.noted("train", submitted=f"r{rounds}", pid=pid) for pid in killed):
        # One that was killed amid its end took the goodbye along: its successor awaits a peer.
        with Peer("a", root=sides.root) as again:
            ended = running["train"].poll
            wait_until(lambda: again.connected or ended() is not None, what="an agent or its end")
    assert running["train"].wait(120) == 0
    answers = [n for n in sides.noted("steer") if "answer" in n]
    assert [n["answer"] for n in answers] == [f"r{i}" for i in range(1, rounds + 1)]
    assert answers[-1]["w"] == expected(rounds)
    assert len(sides.noted("train", began=True)) + len(sides.noted("steer", began=True)) >= 5
    assert os.listdir(sides.root / "quarantine") == []
