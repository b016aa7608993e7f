"""The example that reads digits: its halves, its training, and what its act of the demo refuses."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.unit

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT = EXAMPLES / "digits" / "train.py"


@pytest.fixture(scope="module")
def act() -> Iterator[Any]:
    """The second act, and in it the training script as `train`; on one thread, as that is."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    sys.path.insert(0, str(EXAMPLES))
    try:
        yield importlib.import_module("digits_demo")
    finally:
        sys.path.remove(str(EXAMPLES))
        torch.set_num_threads(threads)


def run(folder: Path, *argv: object) -> subprocess.CompletedProcess[str]:
    args = [sys.executable, str(SCRIPT), *map(str, argv)]
    return subprocess.run(args, cwd=folder, capture_output=True, text=True)


def test_the_halves_are_disjoint_and_nothing_held_out_is_trained_on(act: Any) -> None:
    whole, held = act.train.data()
    halves = [act.train.half_of(whole, half) for half in (1, 2)]
    assert [sorted(set(one.labels.tolist())) for one in halves] == [[*range(5)], [*range(5, 10)]]
    assert sum(len(one.labels) for one in halves) == len(whole.labels) == 1438
    assert len(held.labels) == 359 and set(held.labels.tolist()) == set(range(10))


def test_an_episode_is_the_same_each_time_and_another_for_each_number(act: Any) -> None:
    train = act.train
    mine = train.half_of(train.data()[0], 1)
    first, again = (train.train(None, mine, 1, 1, 1) for _ in range(2))
    other = train.train(None, mine, 1, 1, 2)
    assert all(first[key].equal(again[key]) for key in first)
    assert not first["0.weight"].equal(other["0.weight"])


def test_one_half_alone_never_learns_the_other_and_the_mean_of_both_knows_more(act: Any) -> None:
    train = act.train
    whole, held = train.data()
    models = [train.train(None, train.half_of(whole, half), 1, half, 1) for half in (1, 2)]
    merged = {key: (models[0][key] + models[1][key]) / 2 for key in models[0]}
    alone = [train.accuracy(model, held) for model in models]
    assert max(alone) < 0.55 < 0.65 < train.accuracy(merged, held)


def test_the_script_saves_what_a_job_counts_and_goes_on_from_weights(
    act: Any, tmp_path: Path
) -> None:
    import torch

    done = run(tmp_path, "--half", 2, "--save", "one.pt")
    assert done.returncode == 0, done.stderr
    one = torch.load(tmp_path / "one.pt", weights_only=True)
    mine = act.train.half_of(act.train.data()[0], 2)
    assert (one["episodes"], one["samples"]) == (1, len(mine.labels))
    assert f"accuracy={one['rewards'][0]:.3f}" in done.stdout
    done = run(tmp_path, "--half", 2, "--load", "one.pt", "--episode", 2, "--save", "two.pt")
    assert done.returncode == 0, done.stderr
    two = torch.load(tmp_path / "two.pt", weights_only=True)["model"]
    expected = act.train.train(one["model"], mine, 1, 2, 2)
    assert all(two[key].equal(expected[key]) for key in expected)


def test_weights_that_are_none_are_refused_in_a_sentence(act: Any, tmp_path: Path) -> None:
    import torch

    torch.save({"model": {"0.weight": torch.zeros(3)}}, tmp_path / "odd.pt")
    (tmp_path / "text.pt").write_text("no checkpoint")
    for name, says in (
        ("odd.pt", "holds no weights of this model"),
        ("text.pt", "holds no weights of this model"),
        ("none.pt", "cannot read"),
    ):
        with pytest.raises(act.train.Unusable, match=says):
            act.train.load(tmp_path / name)


@pytest.mark.parametrize(
    ("found", "good"),
    [
        ([0.76, 0.88, 0.9], True),
        ([0.8, 0.7, 0.81], False),
        ([0.76, 0.88, 0.88], False),
        ([0.76, 0.9, 0.88], False),
    ],
)
def test_a_round_that_made_the_model_no_better_fails_the_act(
    act: Any, capsys: pytest.CaptureFixture[str], found: list[float], good: bool
) -> None:
    with nullcontext() if good else pytest.raises(act.Broken, match="each round to the next: 0"):
        act.judge(found)
    assert ("accuracy rose from 0.76 to 0.90" in capsys.readouterr().out) is good
