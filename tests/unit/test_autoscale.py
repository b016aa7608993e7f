"""The example that chooses replica counts: its trace, its service, its two simple agents."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.unit

HERE = Path(__file__).parents[2] / "examples" / "autoscale"


@pytest.fixture(scope="module")
def service() -> Any:
    sys.path.insert(0, str(HERE))
    try:
        import service

        return service
    finally:
        sys.path.remove(str(HERE))


def run(*argv: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    args = [sys.executable, *map(str, argv)]
    return subprocess.run(args, cwd=cwd, capture_output=True, text=True)


def test_the_trace_is_what_its_script_writes(tmp_path: Path) -> None:
    assert run(HERE / "make_trace.py", "--out", "t", cwd=tmp_path).returncode == 0
    assert (tmp_path / "t").read_bytes() == (HERE / "trace.msgpack").read_bytes()


def test_replicas_start_late_and_stop_at_once(service: Any) -> None:
    trace = service.Trace([100] * 50, 288)
    at = service.Service(trace, 1, 1, 20)
    assert at.running == 2
    at.step(5)  # six replicas
    assert (at.running, sum(at.starting)) == (2, 4)
    at.step(5)
    at.step(3)  # two of those that start are not wanted any more
    assert at.running + sum(at.starting) == 4
    for _ in range(service.WARM_UP):
        at.step(3)
    assert (at.running, sum(at.starting)) == (4, 0)
    at.step(0)
    assert (at.running, sum(at.starting)) == (1, 0)


@pytest.mark.parametrize(("load", "reward"), [(100, 0.2 - 0.2), (300, 0.4 - 0.4 - 0.2), (0, -0.2)])
def test_what_a_step_earns(service: Any, load: int, reward: float) -> None:
    """Two replicas serve 200; what is served earns, what is lost and what runs costs."""
    at = service.Service(service.Trace([load] * 50, 288), 1, 1, 20)
    features, got = at.step(1)
    assert got == pytest.approx(reward) and len(features) == service.FEATURES


def test_all_agents_meet_the_same_episodes(service: Any) -> None:
    trace = service.Trace.read(HERE / "trace.msgpack")
    places = [service.Service(trace, 7, episode, 288).at for episode in range(1, 6)]
    assert places == [service.Service(trace, 7, episode, 288).at for episode in range(1, 6)]
    assert len(set(places)) == 5
    assert places != [service.Service(trace, 8, episode, 288).at for episode in range(1, 6)]


@pytest.mark.parametrize("agent", ["greedy", "random"])
def test_simple_agents_save_what_they_did(agent: str, tmp_path: Path) -> None:
    whole = ("--agent", agent, "--episodes", 4, "--steps", 50, "--save", "whole.pt")
    half = ("--agent", agent, "--episodes", 2, "--steps", 50, "--save", "half.json")
    for argv in (whole, half, (*half, "--load", "half.json")):
        done = run(HERE / "train.py", *argv, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    saved = json.loads((tmp_path / "whole.json").read_text())
    assert saved["agent"] == agent and saved["episodes"] == 4 == len(saved["rewards"])
    assert saved["total_reward"] == pytest.approx(sum(saved["rewards"]))
    assert json.loads((tmp_path / "half.json").read_text()) == saved
    done = run(HERE / "train.py", *half, "--load", "whole.json", "--transfer", cwd=tmp_path)
    assert json.loads((tmp_path / "half.json").read_text())["rewards"] == saved["rewards"][:2]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--load", "missing.json"), "cannot read missing.json"),
        (("--load", "bad.json"), "bad.json is no checkpoint"),
        (("--load", "empty.json"), "has no rewards"),
        (("--trace", "missing"), "missing"),
        (("--trace", "bad.json"), "train.py: "),
    ],
)
def test_what_cannot_be_used_is_told_in_one_sentence(
    tmp_path: Path, argv: tuple[str, ...], words: str
) -> None:
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "empty.json").write_text("{}")
    done = run(HERE / "train.py", "--agent", "greedy", *argv, cwd=tmp_path)
    assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1
