"""The example's DQN: it learns, it is the same to the bit each time, and so it is as an agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import mean

import pytest

from fsworker.agent import Answer, Peer
from tests.support.roots import make_root
from tests.support.waiting import Spawned, wait_until

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(600)]  # each imports torch some times

REPO = Path(__file__).parents[2]
HERE = REPO / "examples" / "autoscale"
SHORT = ("--steps", "160", "--seed", "3")


def train(folder: Path, save: str, *argv: object, **environ: str) -> Path:
    """Run the script; the checkpoint that it wrote."""
    args = [sys.executable, str(HERE / "train.py"), "--save", save, *map(str, argv)]
    env = {**os.environ, "PYTHONPATH": str(REPO), **environ}
    done = subprocess.run(args, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob(f"{Path(save).stem}.*")
    return path


def test_the_dqn_learns_to_be_better_than_both_others(tmp_path: Path) -> None:
    import torch

    plan = ("--episodes", 7, "--seed", 3)
    saved = torch.load(train(tmp_path, "dqn.pt", *plan), weights_only=True)
    assert saved["episodes"] == 7 == len(saved["rewards"])
    learned = mean(saved["rewards"][-3:])
    for agent in ("greedy", "random"):
        path = train(tmp_path, agent, "--agent", agent, *plan)
        assert learned > mean(json.loads(path.read_text())["rewards"][-3:]) + 10


def test_the_same_seed_gives_the_same_weights_however_it_is_cut(tmp_path: Path) -> None:
    whole = train(tmp_path, "whole.pt", "--episodes", 4, *SHORT)
    half = train(tmp_path, "half.pt", "--episodes", 2, *SHORT)
    rest = train(tmp_path, "rest.pt", "--episodes", 2, "--load", half, *SHORT)
    assert whole.read_bytes() == rest.read_bytes() != half.read_bytes()


def get(peer: Peer) -> Answer:
    answer = peer.get_result(100)
    assert answer is not None
    return answer


def test_one_process_for_all_rounds_gives_what_a_process_a_round_gives(tmp_path: Path) -> None:
    """Also when it is killed amid a round and started anew."""
    weights = ""
    for episode in (1, 2):
        found = {"FLEET_EPISODE": str(episode), "FLEET_WEIGHTS": weights}
        weights = str(train(tmp_path, f"each{episode}.pt", *SHORT, **found))
    root, argv = make_root(tmp_path / "root"), [sys.executable, str(HERE / "agent_loop.py"), *SHORT]
    with Spawned() as spawned, Peer("job1.1", root=root, resend_interval=0.5) as peer:
        env = {**peer.environment, "PYTHONPATH": str(REPO)}
        child = spawned.start(argv, env=env, cwd=tmp_path)
        path = ""
        for episode in (1, 2):
            peer.send_task("train", f"ep{episode}", {"episode": episode}, {"weights": path or None})
            if episode == 2:
                wait_until(lambda: peer._state.open[0].taken_by, what="it is at work")
                child.kill()
                child.wait()
                child = spawned.start(argv, env=env, cwd=tmp_path)
            answer = get(peer)
            assert (answer.return_code, answer.meta["episode"]) == ("OK", episode), answer
            path = answer.data["checkpoint"]
        assert Path(path).read_bytes() == Path(weights).read_bytes()
        peer.send_task("train", "bad", {"episode": 3}, {"weights": str(tmp_path / "none.pt")})
        answer = get(peer)
        assert answer.return_code == "ERROR" and "cannot read" in answer.data["error"]
        peer.bye(30)
        assert child.wait(120) == 0
