"""JSON uploads against the model of their round: lists may grow, and nothing else may differ."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fedavg import admission, strategies
from fedavg.agreement import Unmergeable
from fedavg.checkpoint import UnsupportedCheckpoint, open_checkpoint
from fedavg.growing import as_floats, departure
from fedavg.keeper import GroupKeeper
from fedavg.merging import Contribution, merge
from fsworker.protocol import artifacts, federation
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import groups
from fsworker.protocol.rounds import Upload
from tests.support.rounds import keep, make_group, refusals, saves, upload

pytestmark = pytest.mark.unit


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "root").mkdir(mode=0o700)
    return Store(tmp_path / "root")


def writes(document: object) -> Callable[[str], None]:
    def write(path: str) -> None:
        Path(path).write_text(json.dumps(document))

    return write


def json_upload(store: Store, job: str, episode: int, document: object) -> None:
    upload(store, "g", job, episode, writes(document), name="checkpoint.json")


def written(tmp_path: Path, name: str, document: object) -> str:
    (tmp_path / name).write_text(json.dumps(document))
    return str(tmp_path / name)


BASE = {
    "agent": "greedy", "total": 0, "rewards": [0.5], "table": [[0.5, 1.5]], "seen": [1], "none": [],
    "past": [{"reward": 1.5}], "odd": [[1], [2, 3]], "arms": {"0": {"value": 1.5}},
    "two": [0.5, 1.5],
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"rewards": [0.5, 1.5, 2.5]},
        {"table": [[0.5, 1.5], [2.5, 3.5]]},
        {"seen": [1, 2]},
        {"seen": [1, 2.5]},
        {"none": [0.5]},
        {"none": [[1, 2]]},
        {"past": [{"reward": 1.5}, {"reward": 2.5}]},
        {"odd": [[1], [2, 3], [4]]},
        {"total": 3.5},
        {"agent": "random"},
    ],
)
def test_what_tells_of_the_past_may_grow(tmp_path: Path, change: dict[str, Any]) -> None:
    base = open_checkpoint(written(tmp_path, "base.json", BASE))
    later = open_checkpoint(written(tmp_path, "later.json", BASE | change))
    assert departure(base, later, lambda entry: True) is None


@pytest.mark.parametrize(
    "change",
    [
        {"rewards": [1]},
        {"rewards": [1, 2]},
        {"table": [[1, 2], [3, 4]]},
        {"past": [{"reward": 2}]},
        {"arms": {"0": {"value": 0}}, "two": [1, 0]},
    ],
)
def test_what_is_a_float_may_be_spelt_as_a_whole_number(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    base = open_checkpoint(written(tmp_path, "base.json", BASE))
    later = open_checkpoint(written(tmp_path, "later.json", BASE | change))
    assert departure(base, later, lambda entry: True) is None
    read = as_floats(base, later)
    of = {key: entry.dtype for key, entry in read.entries.items()}
    assert of == {key: entry.dtype for key, entry in base.entries.items()}
    assert read.rest == base.rest


def test_a_number_beyond_float64_is_none(tmp_path: Path) -> None:
    base = open_checkpoint(written(tmp_path, "base.json", {"loss": 0.5}))
    later = open_checkpoint(written(tmp_path, "later.json", {"loss": 10**400}))
    with pytest.raises(UnsupportedCheckpoint, match="'loss' has a number beyond float64"):
        departure(base, later, lambda entry: True)


@pytest.mark.parametrize("rule", ["fedavg", "fedavgm"])
def test_a_group_goes_on_where_numbers_happen_to_be_whole(store: Store, rule: str) -> None:
    make_group(store, "ab", rule=rule)
    for job in "ab":
        json_upload(store, job, 1, {"w": [0.5, 1.5], "loss": 0.25, "episode": 1})
    keep(store)
    for job, loss in (("a", 0), ("b", 1)):
        json_upload(store, job, 2, {"w": [1, 2], "loss": loss, "episode": 2})
    keep(store)
    assert not refusals(store, 2)
    text = store.read(f"{groups.global_dir('g', 3)}/global_weights.json")
    assert json.loads(text) == {"w": [1.0, 2.0], "loss": 0.5, "episode": 2}
    assert b'"w": [1.0, 2.0]' in text and b'"episode": 2}' in text  # each of its type, as before


def test_a_number_may_be_whole_with_one_of_a_round_and_not_with_others(store: Store) -> None:
    make_group(store, "abc", late="delta", quorum=2)
    for job in "abc":
        json_upload(store, job, 1, {"q": [0.5], "loss": 0.25})
    keep(store)
    json_upload(store, "a", 2, {"q": [1], "loss": 0})
    json_upload(store, "b", 2, {"q": [0.5], "loss": 1})
    keep(store)
    json_upload(store, "c", 2, {"q": [1], "loss": 1})  # it is late: 0.5 and 0.75 more than before
    json_upload(store, "a", 3, {"q": [1.75], "loss": 2})
    keep(store)
    assert not refusals(store, 2) and not refusals(store, 3)
    text = store.read(f"{groups.global_dir('g', 4)}/global_weights.json")
    assert json.loads(text) == {"q": [1.5], "loss": 1.625}


def test_a_merge_reads_whole_numbers_as_its_base_has_them(tmp_path: Path) -> None:
    files = {"a": {"q": [1], "n": 0}, "b": {"q": [0.5], "n": 1.5}, "late": {"q": [3], "n": 2}}
    opened = {n: open_checkpoint(written(tmp_path, n, found)) for n, found in files.items()}
    base = open_checkpoint(written(tmp_path, "base", {"q": [0.5], "n": 0.5}))
    own = open_checkpoint(written(tmp_path, "own", {"q": [2], "n": 1}))
    inputs = [Contribution(n, opened[n], base=own if n == "late" else None) for n in opened]
    merge(strategies.rule("fedavg"), inputs, str(tmp_path / "out"), base=base)
    assert json.loads((tmp_path / "out").read_bytes()) == {"q": [1.0], "n": 1.0}
    with pytest.raises(Unmergeable, match=r"b: it lacks n.*written with a fraction.*0\.0, not 0"):
        merge(
            strategies.rule("fedavg"),
            [Contribution("a", opened["b"]), Contribution("b", opened["a"])],
            str(tmp_path / "none"),
        )
    with pytest.raises(Unmergeable, match=r"^b: it alone has x, compared with a$"):
        more = open_checkpoint(written(tmp_path, "more", {"q": [0.5], "n": 1.5, "x": [1.5]}))
        merge(
            strategies.rule("fedavg"),
            [Contribution("a", opened["b"]), Contribution("b", more)],
            str(tmp_path / "none"),
        )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"evil": [1.5, 2.5]}, "alone has evil"),
        ({"rewards": []}, "lacks rewards"),
        ({"two": [0.5]}, "two has the shape 1 and not 2"),
        ({"rewards": 1}, "rewards has the shape"),
        ({"rewards": [[1]]}, "rewards has the shape"),
        ({"arms": {"0": {"value": True}}}, "lacks arms.0.value"),
        ({"arms": {"0": {"value": "1"}}}, "lacks arms.0.value"),
        ({"rewards": [[0.5]]}, "rewards has the shape"),
        ({"rewards": 0.5}, "rewards has the shape"),
        ({"table": [[0.5], [1.5]]}, "table has the shape"),
        ({"table": [[0.5, 1.5, 2.5]]}, "table has the shape"),
        ({"arms": {"0": {"value": 1.5}, "1": {"value": 1.5}}}, "alone has arms.1.value"),
        ({"past": [{"reward": 1.5, "more": 0.5}]}, "alone has past.0.more"),
        ({"agent": 0.5}, "alone has agent"),
    ],
)
def test_what_is_no_growth_is_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    base = open_checkpoint(written(tmp_path, "base.json", BASE))
    later = open_checkpoint(written(tmp_path, "later.json", BASE | change))
    wrong = departure(base, later, lambda entry: True)
    assert wrong is not None and words in wrong[1]


def test_json_does_not_take_the_place_of_tensors(store: Store) -> None:
    make_group(store, "ab", quorum=1, deadline=0.0)
    for job in "ab":
        upload(store, "g", job, 1, 1.0)
    keep(store)
    json_upload(store, "a", 2, {"evil": [1.5, 2.5]})
    upload(store, "g", "b", 2, 2.0)
    keep(store)
    found = federation.read_global(store, "g", 3)
    assert found is not None and found.merge.files[0].name == "global_weights.pt"
    assert refusals(store, 2) == {"a": "misshapen"}


def test_tensors_do_not_take_the_place_of_json(store: Store) -> None:
    make_group(store, "ab", quorum=1, deadline=0.0)
    for job in "ab":
        json_upload(store, job, 1, {"q": [0.5]})
    keep(store)
    upload(store, "g", "a", 2, saves({"q": torch.tensor([9.0], dtype=torch.float64)}))
    json_upload(store, "b", 2, {"q": [1.5]})
    keep(store)
    found = federation.read_global(store, "g", 3)
    assert found is not None and found.merge.files[0].name == "global_weights.json"
    assert refusals(store, 2) == {"a": "misshapen"}


@pytest.mark.parametrize("evil", [{"evil": [1.5]}, {"q": []}, {"q": [9.5, 9.5]}])
def test_of_two_json_uploads_that_differ_the_one_like_the_model_counts(
    store: Store, evil: dict[str, Any]
) -> None:
    make_group(store, "ab", quorum=1, deadline=0.0)
    for job in "ab":
        json_upload(store, job, 1, {"q": [0.5]})
    keep(store)
    json_upload(store, "a", 2, evil)
    json_upload(store, "b", 2, {"q": [1.5]})
    keep(store)
    assert json.loads(store.read(f"{groups.global_dir('g', 3)}/global_weights.json")) == {
        "q": [1.5]
    }
    assert refusals(store, 2) == {"a": "misshapen"}


def test_a_list_that_grows_stops_no_rule_that_moves_it(store: Store) -> None:
    make_group(store, "abc", quorum=2, deadline=3600.0, rule="fedavgm")
    for job in "abc":
        json_upload(store, job, 1, {"q": [0.5], "seen": [1]})
    keep(store)
    json_upload(store, "a", 2, {"q": [0.5, 9.5], "seen": [1, 2]})
    for job in "bc":
        json_upload(store, job, 2, {"q": [1.5], "seen": [1, 2]})
    assert keep(store).report.round == 3
    merged = json.loads(store.read(f"{groups.global_dir('g', 3)}/global_weights.json"))
    assert merged == {"q": [1.5], "seen": [1, 2]} and refusals(store, 2) == {"a": "misshapen"}


def test_who_is_late_goes_with_those_who_are_not(store: Store) -> None:
    make_group(store, "abc", quorum=2, late="delta")
    for job in "abc":
        json_upload(store, job, 1, {"q": [0.5]})
    keep(store)
    for episode in (2, 3):
        for job in "bc":
            json_upload(store, job, episode, {"q": [0.5] * (episode if episode > 2 else 1)})
        if episode == 2:
            keep(store)
            json_upload(store, "a", 2, {"q": [9.5]})
    keep(store)
    merged = json.loads(store.read(f"{groups.global_dir('g', 4)}/global_weights.json"))
    assert merged == {"q": [0.5] * 3} and refusals(store, 2) == {"a": "misshapen"}
    assert refusals(store, 3) == {}


def test_a_job_that_is_late_and_not_is_judged_twice(store: Store) -> None:
    make_group(store, "abc", quorum=2, late="delta")
    for job in "abc":
        json_upload(store, job, 1, {"q": [0.5]})
    keep(store)
    for job in "bc":
        json_upload(store, job, 2, {"q": [0.5]})
    keep(store)
    json_upload(store, "a", 2, {"q": [9.5]})
    for job in "ab":
        json_upload(store, job, 3, {"q": [0.5, 1.5]})
    keep(store)
    merged = json.loads(store.read(f"{groups.global_dir('g', 4)}/global_weights.json"))
    assert merged == {"q": [0.5, 1.5]}


@pytest.mark.parametrize(
    ("rule", "keys", "episode", "fits"),
    [
        ("fedavg", {}, 2, True),
        ("fedavg", {}, 1, False),  # its change is found number by number
        ("fedavgm", {}, 2, False),  # so is what the rule moves
        ("fedavg", {"q": "base"}, 2, False),
        ("fedavg", {"q": "first"}, 1, True),
        ("fedavgm", {"q": "first"}, 2, True),
    ],
)
def test_what_may_grow_depends_on_what_becomes_of_it(
    store: Store, rule: str, keys: dict[str, str], episode: int, fits: bool
) -> None:
    """The model is that of round 1, from which episode 2 starts: an upload of episode 1 is late."""
    make_group(store, "abc", quorum=2, late="delta", rule=rule, keys=keys)
    for job in "ab":
        json_upload(store, job, 1, {"q": [0.5], "w": 0.5})
    keep(store)
    json_upload(store, "c", episode, {"q": [0.5, 1.5], "w": 0.5})
    done = artifacts.read_done(store, groups.upload_dir("g", episode, "c"))
    base = federation.read_global(store, "g", 2)
    group = federation.read_group(store, "g")
    verdict = admission.examine(store, group, Upload("c", episode, done), base)
    if fits:
        assert verdict.problem is None
    else:
        assert verdict.problem is not None and verdict.problem.kind == admission.MISSHAPEN
        assert "q has the shape" in verdict.problem.reason


@pytest.mark.parametrize("restarted", [False, True])
def test_a_list_that_has_grown_is_judged_by_the_rule_of_now(store: Store, restarted: bool) -> None:
    """Neither rule minds how large a number is."""
    make_group(store, "abc", quorum=2, deadline=3600.0, rule="fedavgm")
    for job in "abc":
        json_upload(store, job, 1, {"q": [0.5]})
    keep(store)
    keeper = GroupKeeper(store, "g")
    json_upload(store, "a", 2, {"q": [0.5, 9.5]})
    keeper.step()
    assert refusals(store, 2) == {"a": "misshapen"}
    for rule, refused in (("fedavg", {}), ("fedavgm", {"a": "misshapen"})):
        federation.edit_group(store, "g", rule=rule, options={})
        if restarted:
            keeper = GroupKeeper(store, "g")
        assert keeper.step().report.admitted == (() if refused else ("a",))
        assert refusals(store, 2) == refused


def test_json_has_another_layout_than_tensors_of_the_same_keys_shapes_and_types(
    tmp_path: Path,
) -> None:
    numbers = {"q": torch.tensor([0.5, 1.5], dtype=torch.float64)}
    torch.save(numbers, tmp_path / "a.pt")
    save_file(numbers, tmp_path / "b.safetensors")
    document = written(tmp_path, "c.json", {"q": [0.5, 1.5]})
    opened = [open_checkpoint(p) for p in (tmp_path / "a.pt", tmp_path / "b.safetensors", document)]
    rows = {(e.key, e.dtype, e.shape) for one in opened for e in one.entries.values()}
    assert rows == {("q", "float64", (2,))}
    torch_layout, safetensors_layout, json_layout = map(admission.layout_of, opened)
    assert torch_layout == safetensors_layout != json_layout
