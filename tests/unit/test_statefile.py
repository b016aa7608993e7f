"""The optimiser state can be read again, whatever the keys of a model are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedavg import strategies
from fedavg.agreement import Unmergeable
from fedavg.checkpoint import DamagedCheckpoint, open_checkpoint
from fedavg.engine.faults import OutOfRange
from fedavg.engine.statefile import open_state, state_key
from fedavg.formats import keys, safetensor
from fedavg.merging import Contribution, merge
from fedavg.policy import policy_from
from fsworker.protocol import federation
from fsworker.protocol.fsops import Store
from tests.support.rounds import keep, make_group, model, saves, upload

pytestmark = pytest.mark.unit

ODD = [
    "a\nb", "a\\nb", "k" * 999, "\n" * 1000, "a b/ü", "\ud800", "\x1b[31m",
    "a._orig_mod._orig_mod.b", "__metadata__", "", ".", "m/w",
]  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "root").mkdir(mode=0o700)
    return Store(tmp_path / "root")


class Site:
    """Merges in a folder, each with the state of the one before."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.turn = folder, 0
        self.last: str | None = None

    def merge(self, tree: dict[str, Any], name: str = "fedavgm", keys: str = "") -> dict[str, Any]:
        """The new state, as safetensors itself reads it, of two models `tree` over a base of 0."""
        self.turn += 1
        torch.save(tree, self.folder / "a")
        torch.save({k: torch.zeros_like(v) for k, v in tree.items()}, self.folder / "base")
        inputs = [Contribution(n, open_checkpoint(self.folder / "a")) for n in "ab"]
        state = str(self.folder / f"{self.turn}.state")
        pattern, _, action = keys.partition("=")
        merge(
            strategies.rule(name), inputs, str(self.folder / f"{self.turn}.pt"),
            base=open_checkpoint(self.folder / "base"), state_out=state,
            state_in=open_state(self.last) if self.last else None,
            policy=policy_from([(pattern, action)] if keys else []), threads=1,
        )  # fmt: skip
        self.last = state
        return dict(load_file(state))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_state_of_any_key_is_read_again(site: Site) -> None:
    tree = {key: torch.full((2,), float(n)) for n, key in enumerate(ODD, 1)}
    first, second = site.merge(tree), site.merge(tree)
    assert len(first) == len(ODD)
    for name, values in first.items():
        torch.testing.assert_close(second[name], values * 1.9)


def test_names_of_states_are_all_different() -> None:
    assert len({state_key("v", key) for key in ODD}) == len(ODD)
    assert state_key("m", "a.0.weight") == "m/a.0.weight"
    assert state_key("m", "a\nb") == "m/a\\nb" and state_key("m", "a\\nb") == "m/a\\\\nb"


def test_a_state_may_be_larger_than_what_is_uploaded(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = {f"layer.{n}.weight": torch.ones(1) for n in range(40)}
    monkeypatch.setattr(keys, "MAX_LEAVES", 40)
    monkeypatch.setattr(safetensor, "MAX_HEADER", 1000)
    site.merge(tree, "fedadam")
    assert len(site.merge(tree, "fedadam")) == 80


def test_keys_that_go_by_the_rule_from_now_on_begin_anew(site: Site) -> None:
    tree = {name: torch.ones(2) for name in ("b", "a", "c")}
    assert [*site.merge(tree, keys="[ac]=mean")] == ["v/b"]
    assert {k: float(v[0]) for k, v in site.merge(tree).items()} == pytest.approx(
        {"v/a": 1.0, "v/b": 1.9, "v/c": 1.0}
    )
    assert [*site.merge(tree, keys="a=mean")] == ["v/b", "v/c"]


def test_a_state_of_a_model_with_other_keys_is_refused(site: Site) -> None:
    site.merge({"a": torch.ones(2), "b": torch.ones(2)})
    with pytest.raises(Unmergeable, match="it lacks v/c"):
        site.merge({"a": torch.ones(2), "c": torch.ones(2)})


def test_what_is_no_state_is_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "model.pt")
    (tmp_path / "empty").touch()
    (tmp_path / "cut").write_bytes(b"\xff\xff\xff\0\0\0\0\0{")
    for name in ("model.pt", "empty", "cut"):
        with pytest.raises(DamagedCheckpoint, match=name):
            open_state(str(tmp_path / name))


@pytest.mark.parametrize("name", ["fedadam", "fedyogi", "fedadagrad"])
def test_a_state_that_is_negative_where_squares_are_kept_is_the_states_fault(
    site: Site, name: str
) -> None:
    tree = {"a/b": torch.zeros(5), "w": torch.ones(3)}
    state = site.merge(tree, name)
    state["v/a/b"][3] = -4.0
    assert site.last is not None
    save_file(state, site.last, metadata={"rule": name})
    words = rf"^v/a/b in {site.last} is negative \(element 3 is -4\), which no state of {name} is"
    with pytest.raises(Unmergeable, match=words) as caught:
        site.merge(tree, name)
    assert caught.value.participant is None and not isinstance(caught.value, OutOfRange)


def test_what_is_kept_of_steps_may_be_negative(site: Site) -> None:
    """So where a step leaves the range, that is a participant's."""
    tree = {"w": torch.full((2,), 3e38)}
    state = site.merge(tree, "fedavgm")
    state["v/w"] = torch.tensor([3.4e38, -1.0])
    assert site.last is not None
    save_file(state, site.last, metadata={"rule": "fedavgm"})
    with pytest.raises(OutOfRange, match="a is the farthest"):
        site.merge(tree, "fedavgm")


def test_a_group_goes_on_with_odd_keys_and_when_more_keys_go_by_the_rule(store: Store) -> None:
    make_group(store, "ab", rule="fedavgm", keys={"b": "mean"})
    for episode in range(1, 5):
        for job in "ab":
            tree = {key: torch.full((2,), float(episode)) for key in ("a\nb", "b", "k" * 999)}
            upload(store, "g", job, episode, saves(tree))
        if episode == 4:
            federation.edit_group(store, "g", keys={})
        assert keep(store).report.round == episode + 1
    found = model(store, 5)
    assert float(found["b"][0]) == 4.0 and float(found["a\nb"][0]) > 4.0
