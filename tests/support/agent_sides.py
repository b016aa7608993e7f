"""The two sides of an agent as processes of their own, for tests that kill and freeze them.

    agent_sides.py train ROOT ID NOTES [GATE]      computes each task, until its peer says goodbye
    agent_sides.py steer ROOT ID NOTES ROUNDS      sends rounds one after the other, notes answers

Both write one line a step to NOTES, and `steer` goes on after its last one. With GATE, `train`
computes a task only once a file of its id is in that folder. A round's value is made from the one
before, so that a round that was lost, doubled or swapped is seen in all later ones.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from fsworker.agent import Agent, AgentClosed, Peer, Task, TaskResult

FIRST = [1.0, 2.0, 3.0]


def note(path: Path, **fields: Any) -> None:
    with path.open("a") as file:
        file.write(json.dumps({"pid": os.getpid(), **fields}) + "\n")
        file.flush()
        os.fsync(file.fileno())


def notes(path: Path) -> list[dict[str, Any]]:
    """All complete lines; a writer may have been killed in the midst of one."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def step(weights: Any, number: int) -> Any:
    """What a round does to the weights."""
    return np.asarray(weights, np.float64) * 0.5 + number


def expected(rounds: int) -> list[float]:
    """The weights after so many rounds."""
    weights = np.array(FIRST)
    for number in range(1, rounds + 1):
        weights = step(weights, number)
    return [float(x) for x in weights]


def work(task: Task, gate: Path | None) -> TaskResult:
    while gate is not None and not (gate / task.task_id).exists() and not task.aborted:
        time.sleep(0.01)
    weights = step(task.data["w"], task.meta["round"])
    return TaskResult({"round": task.meta["round"]}, {"w": weights})


def train(root: str, agent_id: str, path: Path, gate: Path | None) -> None:
    with Agent(agent_id, resend_interval=0.5, connection_timeout=2, root=root) as agent:
        note(path, began=True)
        try:
            while True:
                task = agent.get_task()
                assert task is not None
                note(path, got=task.task_id)
                taken = agent.submit_result(work(task, gate))
                note(path, submitted=task.task_id, taken=taken, aborted=task.aborted)
        except AgentClosed as error:
            note(path, closed=str(error))


def steer(root: str, agent_id: str, path: Path, rounds: int) -> None:
    done = [n for n in notes(path) if "answer" in n]
    weights = np.array(done[-1]["w"] if done else FIRST)
    with Peer(agent_id, resend_interval=0.5, connection_timeout=2, root=root) as peer:
        note(path, began=True)
        for number in range(len(done) + 1, rounds + 1):
            peer.send_task("round", f"r{number}", {"round": number}, {"w": weights})
            answer = peer.get_result()
            assert answer is not None and not answer.rejected, answer
            weights = answer.data["w"]
            note(path, answer=answer.task_id, w=list(weights), round=answer.meta["round"])
    note(path, ended=True)


def main() -> None:
    side, root, agent_id, path, *more = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    if side == "train":
        train(root, agent_id, Path(path), Path(more[0]) if more else None)
    else:
        steer(root, agent_id, Path(path), int(more[0]))


if __name__ == "__main__":
    main()
