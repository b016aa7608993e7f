"""Leaves that are no tensors: who decides what the merged checkpoint says."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fedavg import strategies
from fedavg.checkpoint import UnsupportedCheckpoint, open_checkpoint
from fedavg.merging import Contribution, merge
from fedavg.policy import policy_from

pytestmark = pytest.mark.unit

Tree = dict[str, Any]


def merged(folder: Path, *trees: Tree, base: Tree | None = None, keys: str = "") -> Tree:
    """The leaves of a merge of participants a, b, c, … by name; `keys` is one PATTERN=ACTION."""
    inputs = []
    for name, tree in zip("abcdefgh", trees, strict=False):
        torch.save({"w": torch.ones(2), **tree}, folder / name)
        inputs.append(Contribution(name, open_checkpoint(folder / name)))
    started = None
    if base is not None:
        torch.save({"w": torch.ones(2), **base}, folder / "base")
        started = open_checkpoint(folder / "base")
    pattern, _, action = keys.partition("=")
    policy = policy_from([(pattern, action)] if keys else [])
    (folder / "out").unlink(missing_ok=True)
    merge(strategies.rule("fedavg"), inputs, str(folder / "out"), base=started, policy=policy)
    found: Tree = torch.load(folder / "out", weights_only=True)
    del found["w"]
    return found


def test_nobody_decides_alone_what_most_others_say(tmp_path: Path) -> None:
    honest = {"epsilon": 0.1, "name": "dqn", "groups": [{"lr": 0.5, "betas": (0.9, 0.99)}], "x": 1}
    evil = {"epsilon": math.nan, "name": 5, "groups": [{"lr": 1e300, "betas": (0.9, math.inf)}]}
    assert merged(tmp_path, evil | {"x": 1}, honest, honest) == honest


def test_where_most_do_not_agree_it_is_the_first_s(tmp_path: Path) -> None:
    trees = [{"epsilon": n / 10, "name": f"run {n}", "flag": n == 1} for n in (1, 2, 3)]
    assert merged(tmp_path, *trees) == {"epsilon": 0.1, "name": "run 1", "flag": False}
    trees = [{"a": 0.5}, {"a": 1.5}, {"a": 1.5}, {"a": 0.5}]
    assert merged(tmp_path, *trees) == {"a": 0.5}
    assert merged(tmp_path, {"a": 1.5}, {"a": 0.5}) == {"a": 1.5}


def test_what_stands_in_one_list_stays_together(tmp_path: Path) -> None:
    trees: list[Tree] = [{"r": [1.0, 0.0]}, {"r": [0.0, 1.0]}, {"r": [0.0, 0.0]}]
    assert merged(tmp_path, *trees) == {"r": [1.0, 0.0]}
    assert merged(tmp_path, {"r": [9.0]}, {"r": [1.0]}, {"r": [1.0]}) == {"r": [1.0]}


@pytest.mark.parametrize(
    ("mine", "others"),
    [
        (["a"], ["x", "y"]), (["a", "b", "c"], ["x", "y"]), (["a", "b"], []), ([{"n": "a"}], ["x"]),
        (["a", {"n": "b"}], ["x", "y"]), ([{"n": "a"}, {"n": "b"}], [{"n": "x"}]),
    ],
)  # fmt: skip
def test_a_list_that_has_other_places_is_wholly_the_first_s(
    tmp_path: Path, mine: list[Any], others: list[Any]
) -> None:
    trees: list[Tree] = [{"log": mine, "name": 5}, *[{"log": others, "name": "dqn"}] * 2]
    assert merged(tmp_path, *trees) == {"log": mine, "name": "dqn"}


def test_a_name_of_one_s_own_does_not_keep_the_list(tmp_path: Path) -> None:
    honest = {"groups": [{"lr": 0.5, "betas": (0.9, 0.99), "foreach": None}]}
    evil = {"groups": [{"lr": 1e300, "betas": (0.9, 0.99), "mine": 1}]}
    found = merged(tmp_path, evil, honest, honest)
    assert found == {"groups": [{"lr": 0.5, "betas": (0.9, 0.99), "mine": 1}]}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_finite_value_is_taken_where_there_is_one(tmp_path: Path, bad: float) -> None:
    assert merged(tmp_path, {"best": bad}, {"best": 0.5}) == {"best": 0.5}
    assert merged(tmp_path, {"best": bad}, {"best": 0.5}, {"best": 0.25}) == {"best": 0.5}
    found = merged(tmp_path, {"best": bad, "mine": bad}, {"best": bad})
    assert repr(found) == repr({"best": bad, "mine": bad})


def test_the_types_of_equal_values_are_told_apart(tmp_path: Path) -> None:
    found = merged(tmp_path, {"a": 1.0, "b": True}, {"a": 2, "b": 1}, {"a": 2, "b": 1})
    assert repr(found) == repr({"a": 2, "b": 1})


def test_counters_below_numbers_are_the_greatest(tmp_path: Path) -> None:
    trees: list[Tree] = [{"state": {0: {"step": n, "size": n}}, "memory": [n]} for n in (5, 9)]
    assert merged(tmp_path, *trees) == {"state": {0: {"step": 9, "size": 5}}, "memory": [5]}


def test_patterns_hold_for_leaves_too(tmp_path: Path) -> None:
    trees = [{"a": 0.5, "n": 1}, {"a": 1.5, "n": 2}, {"a": 1.5, "n": 3}]
    assert merged(tmp_path, *trees, keys="*=first") == {"a": 0.5, "n": 1}
    base = {"a": 2.5, "n": 0}
    assert merged(tmp_path, *trees, base=base, keys="a=base") == {"a": 2.5, "n": 3}


def test_an_integer_that_no_file_of_torch_can_hold_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_text(json.dumps({"w": [1.5], "n": 2 ** (8 * 255 - 1)}))
    with pytest.raises(UnsupportedCheckpoint, match="'n' is too large a number"):
        open_checkpoint(path)
    largest = 2 ** (8 * 255 - 1) - 1
    path.write_text(json.dumps({"w": [1.5], "n": largest}))
    torch.save({"w": torch.ones(1, dtype=torch.float64), "n": 1}, tmp_path / "a.pt")
    inputs = [Contribution(n, open_checkpoint(tmp_path / n)) for n in ("a.pt", "b.json")]
    merge(strategies.rule("fedavg"), inputs, str(tmp_path / "out"))
    assert torch.load(tmp_path / "out", weights_only=True)["n"] == largest
