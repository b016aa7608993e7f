"""Whatever one participant uploads, a round closes with it or without it, and waits for nobody."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fedavg.cli
from fedavg.aggregator import Aggregator
from fsworker.protocol import federation
from fsworker.protocol.fsops import Store
from fsworker.protocol.groupview import GroupEye
from fsworker.protocol.layout import groups
from tests.support.rounds import (
    Save,
    alter,
    counted,
    make_group,
    model,
    refusals,
    saves,
    swept,
    upload,
)

pytestmark = pytest.mark.unit


def filled(value: float, dtype: torch.dtype = torch.float64) -> Save:
    return saves({"w": torch.full((4,), value, dtype=dtype)})


# -- values that are finite and leave the range

FLOAT16, FLOAT32, FLOAT64 = torch.float16, torch.float32, torch.float64


@pytest.mark.parametrize(
    ("rule", "value", "dtype", "samples"),
    [
        ("krum", 1e200, FLOAT64, None),
        ("multi-krum", -1e200, FLOAT64, None),
        ("fedadam", 1e200, FLOAT64, None),
        ("fedyogi", 1e200, FLOAT64, None),
        ("fedadagrad", 1e200, FLOAT64, None),
        ("fedavgm", -1.7e308, FLOAT64, 1e9),
        ("diloco", 3.4e38, FLOAT32, 1e6),
        ("diloco", 60000.0, FLOAT16, 1e6),
    ],
)
def test_one_finite_value_stops_no_round(
    store: Store, rule: str, value: float, dtype: torch.dtype, samples: float | None
) -> None:
    jobs, options = "abcde", {"lr": 1.9} if rule == "fedavgm" else {}
    make_group(store, jobs, rule=rule, quorum=4, deadline=3600.0, options=options)
    for job in jobs:
        upload(store, "g", job, 1, filled(1.0, dtype))
    swept(store)
    for job in jobs:
        count = None if samples is None else samples if job == "b" else 1.0
        upload(store, "g", job, 2, filled(value if job == "b" else 2.0, dtype), samples=count)
    assert swept(store).errors == {}
    assert list(refusals(store, 2)) == ["b"]
    assert "b" not in dict(counted(store, 2))
    assert torch.isfinite(model(store, 3)["w"]).all()
    assert fedavg.cli.main(["verify", "g", "--recompute"]) == 0


@pytest.mark.parametrize("rule", ["krum", "fedadam"])
@pytest.mark.parametrize("value", [1e150, 1e140])
def test_what_cannot_be_squared_is_refused_on_arrival(
    store: Store, rule: str, value: float
) -> None:
    make_group(store, "abcde", rule=rule)
    for job in "abcde":
        upload(store, "g", job, 1, filled(1.0))
    swept(store)
    upload(store, "g", "b", 2, filled(-value))
    swept(store)
    assert refusals(store, 2) == ({"b": "not finite"} if value > 2.0**480 else {})
    for job in "acde":
        upload(store, "g", job, 2, filled(2.0))
    state = "stuck" if value > 2.0**480 else "idle"
    assert swept(store).reports["g"].state == state


def test_who_is_farthest_is_named_though_the_round_cannot_close_without(store: Store) -> None:
    make_group(store, "ab", rule="diloco")
    for job in "ab":
        upload(store, "g", job, 1, filled(1.0, FLOAT16))
    swept(store)
    upload(store, "g", "a", 2, filled(2.0, FLOAT16), samples=1.0)
    upload(store, "g", "b", 2, filled(60000.0, FLOAT16), samples=1e6)
    told = str(swept(store).errors["g"])
    assert "diloco takes w out of the range" in told and "b is the farthest" in told
    assert GroupEye(store, "g").plan(2) is None and refusals(store, 2) == {}
    federation.edit_group(store, "g", quorum=1)
    assert swept(store).errors == {}
    assert refusals(store, 2) == {"b": "out of range"} and counted(store, 2) == [("a", 2)]


def test_a_round_that_waits_for_others_says_who_is_too_far(store: Store) -> None:
    make_group(store, "abc", rule="diloco", quorum=2)
    for job in "abc":
        upload(store, "g", job, 1, filled(1.0, FLOAT16))
    swept(store)
    upload(store, "g", "a", 2, filled(2.0, FLOAT16), samples=1.0)
    upload(store, "g", "b", 2, filled(60000.0, FLOAT16), samples=1e6)
    aggregator = swept(store)
    report = aggregator.reports["g"]
    assert report.state == "waiting" and "b is the farthest" in report.why
    upload(store, "g", "c", 2, filled(3.0, FLOAT16), samples=1.0)
    aggregator.sweep()
    assert counted(store, 2) == [("a", 2), ("c", 2)] and refusals(store, 2) == {"b": "out of range"}


def test_a_late_change_that_goes_too_far_is_out_for_good(store: Store) -> None:
    make_group(store, "abc", quorum=2, late="delta")
    for job in "abc":
        upload(store, "g", job, 1, filled(-60000.0, FLOAT16))
    swept(store)
    for job in "ab":
        upload(store, "g", job, 2, filled(60000.0, FLOAT16))
    aggregator = swept(store)
    upload(store, "g", "c", 2, filled(65000.0, FLOAT16))
    for job in "ab":
        upload(store, "g", job, 3, filled(60000.0, FLOAT16))
    while aggregator.sweep():
        pass
    assert aggregator.errors == {} and counted(store, 3) == [("a", 3), ("b", 3)]
    assert refusals(store, 2) == {"c": "out of range"} and refusals(store, 3) == {}
    upload(store, "g", "c", 4, filled(1.0, FLOAT16))
    upload(store, "g", "a", 4, filled(1.0, FLOAT16))
    aggregator.sweep()
    assert counted(store, 4) == [("a", 4), ("c", 4)]


@pytest.mark.parametrize(
    ("rule", "value", "dtype", "samples"),
    [
        ("fedavgm", 60000.0, FLOAT16, 1e6),
        ("fedavgm", 3.4e38, FLOAT32, None),
        ("diloco", 60000.0, FLOAT16, None),
        ("diloco", 3.4e38, FLOAT32, None),
        ("fedavgm", 1.7e308, FLOAT64, 100.0),
    ],
)
def test_what_fits_and_moves_the_state_stops_no_later_round(
    store: Store, rule: str, value: float, dtype: torch.dtype, samples: float | None
) -> None:
    """The momentum that it left takes the honest out of the range: then it begins anew."""
    jobs = "abcde"
    make_group(store, jobs, rule=rule, quorum=4, deadline=3600.0)
    aggregator = Aggregator(store, threads=1)
    for job in jobs:
        upload(store, "g", job, 1, filled(1.0, dtype))
    while aggregator.sweep():
        pass
    for episode in range(2, 10):
        near = float(model(store, episode)["w"][0])
        for job in jobs:
            count = None if samples is None else samples if job == "b" else 1.0
            given = filled(value if job == "b" else near, dtype)
            upload(store, "g", job, episode, given, samples=count)
        while aggregator.sweep():
            pass
        assert aggregator.errors == {}, episode
        assert torch.isfinite(model(store, episode + 1)["w"]).all()


# -- uploads that are altered after they were admitted


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("how", ["cut", "changed", "removed"])
def test_an_upload_that_is_altered_after_it_was_admitted(
    store: Store, how: str, alone: bool
) -> None:
    make_group(store, "abc", quorum=2, deadline=3600.0)
    aggregator = Aggregator(store, threads=1, alone=alone)
    upload(store, "g", "a", 1, 1.0)
    aggregator.sweep()
    alter(store, "a", how)
    for job in "bc":
        upload(store, "g", job, 1, 2.0)
    aggregator.sweep()
    assert aggregator.errors == {} and refusals(store, 1) == {"a": "damaged"}
    assert counted(store, 1) == [("b", 1), ("c", 1)]


def test_a_damaged_model_is_laid_at_nobodys_door(store: Store) -> None:
    make_group(store, "ab", rule="fedavgm")
    for job in "ab":
        upload(store, "g", job, 1, 1.0)
    aggregator = swept(store)
    for job in "ab":
        upload(store, "g", job, 2, 2.0)
    path = Path(store.path(groups.global_dir("g", 2))) / "global_weights.pt"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    aggregator.sweep()
    assert "global_weights.pt" in str(aggregator.errors["g"])
    assert refusals(store, 2) == {} and GroupEye(store, "g").plan(2) is None


# -- late uploads


def test_the_variance_of_a_late_one_stays_positive(store: Store) -> None:
    make_group(store, "abc", quorum=2, late="delta")

    def variance(value: float) -> Save:
        return saves({"bn": {"running_var": torch.full((2,), value), "weight": torch.ones(2)}})

    for job in "abc":
        upload(store, "g", job, 1, variance(1.0))
    aggregator = swept(store)
    for job in "ab":
        upload(store, "g", job, 2, variance(0.1))
    swept(store)
    upload(store, "g", "c", 2, variance(0.1))
    for job in "ab":
        upload(store, "g", job, 3, variance(0.1))
    while aggregator.sweep():
        pass
    assert ("c", 2) in counted(store, 3)
    torch.testing.assert_close(model(store, 4)["bn"]["running_var"], torch.full((2,), 0.1))


def test_an_older_upload_does_not_stand_for_a_job_whose_newer_one_counted(store: Store) -> None:
    make_group(store, "abc", quorum=2, deadline=0.0, late="delta")
    for job in "abc":
        upload(store, "g", job, 1, 1.0)
    aggregator = swept(store)
    for job in "ab":
        upload(store, "g", job, 2, 1.0)
    while aggregator.sweep():
        pass
    federation.edit_group(store, "g", deadline=3600.0)
    upload(store, "g", "c", 2, 5.0)
    for job in "abc":
        upload(store, "g", job, 3, 1.0)
    aggregator.sweep()
    assert counted(store, 3) == [("a", 3), ("b", 3), ("c", 3)]
    for job in "ab":
        upload(store, "g", job, 4, 1.0)
    for _ in range(12):
        aggregator.sweep()
    assert GroupEye(store, "g").plan(4) is None, "c may still come"
    assert refusals(store, 2) == {"c": "late"}
    view = GroupEye(store, "g").look(late=True)
    assert view.late == ()
    upload(store, "g", "c", 4, 1.0)
    aggregator.sweep()
    assert counted(store, 4) == [("a", 4), ("b", 4), ("c", 4)]


# -- LoRA, and keys that stay as in a model that there is not


def adapter(seed: int, rank: int = 2) -> Save:
    torch.manual_seed(seed)
    return saves({"q.lora_A.weight": torch.randn(rank, 6), "q.lora_B.weight": torch.randn(5, 2)})


def test_a_late_change_of_a_product_is_refusals(store: Store) -> None:
    make_group(store, "abc", quorum=2, lora="product", late="delta")
    for job in "abc":
        upload(store, "g", job, 1, adapter(1))
    aggregator = swept(store)
    for job in "ab":
        upload(store, "g", job, 2, adapter(2))
    while aggregator.sweep():
        pass
    upload(store, "g", "c", 2, adapter(3))
    for job in "ab":
        upload(store, "g", job, 3, adapter(4))
    while aggregator.sweep():
        pass
    assert aggregator.errors == {} and refusals(store, 2) == {"c": "late"}
    assert counted(store, 3) == [("a", 3), ("b", 3)]


def pair(a: torch.Tensor, b: torch.Tensor) -> Save:
    return saves({"q.lora_A.weight": a, "q.lora_B.weight": b})


@pytest.mark.parametrize(
    ("save", "words"),
    [
        (saves({"q.lora_A.weight": torch.ones(2, 6)}), "without its partner"),
        (pair(torch.ones(2, 6), torch.ones(5, 3)), "their ranks are 2 and 3"),
        (pair(torch.ones(2), torch.ones(5)), "which is no matrix"),
        (pair(torch.ones(0, 6), torch.ones(5, 0)), "which is no matrix"),
        (pair(torch.ones(2, 6).to(torch.int8), torch.ones(5, 2).to(torch.int8)), "is int8"),
        (pair(torch.ones(2, 6, 3), torch.ones(5, 2, 3)), "their ranks are 2 and 6"),
        (pair(*[torch.ones(2, 2)] * 2), "shares its numbers with q.lora_A.weight"),
    ],
)
def test_what_has_no_product_is_refused_when_it_arrives(
    store: Store, save: Save, words: str
) -> None:
    make_group(store, "abc", lora="product", quorum=1, deadline=3600.0)
    upload(store, "g", "a", 1, save)
    aggregator = swept(store)
    assert words in GroupEye(store, "g").refusals(1)["a"].reason
    for job in "bc":
        upload(store, "g", job, 1, adapter(1))
    aggregator.sweep()
    assert aggregator.errors == {} and counted(store, 1) == [("b", 1), ("c", 1)]


def test_factors_count_once_the_group_says_what_becomes_of_them(store: Store) -> None:
    make_group(store, "ab")
    for job in "ab":
        upload(store, "g", job, 1, adapter(1))
    report = swept(store).reports["g"]
    assert report.state == "stuck" and refusals(store, 1) == {"a": "misshapen", "b": "misshapen"}
    assert "say what to average" in GroupEye(store, "g").refusals(1)["a"].reason
    federation.edit_group(store, "g", rule="median", lora="product")
    assert swept(store).reports["g"].state == "stuck"
    assert "merged by fedavg alone" in GroupEye(store, "g").refusals(1)["a"].reason
    federation.edit_group(store, "g", lora="factors")
    assert swept(store).errors == {}
    assert counted(store, 1) == [("a", 1), ("b", 1)] and refusals(store, 1) == {}


def test_products_out_of_the_range_are_laid_at_one_door(store: Store) -> None:
    make_group(store, "abc", lora="product", quorum=2, deadline=3600.0)
    for job, value in (("a", 1.0), ("b", 1e200), ("c", 2.0)):
        a, b = torch.ones(2, 6, dtype=FLOAT64), torch.ones(5, 2, dtype=FLOAT64)
        upload(store, "g", job, 1, pair(a * value, b * value))
    assert swept(store).errors == {}
    assert refusals(store, 1) == {"b": "out of range"} and counted(store, 1) == [("a", 1), ("c", 1)]


def test_a_key_that_stays_as_in_the_base_begins_as_the_first_ones(store: Store) -> None:
    make_group(store, "ab", keys={"q_net*": "base"})
    for episode in (1, 2):
        upload(store, "g", "a", episode, 1.0 * episode)
        upload(store, "g", "b", episode, 3.0 * episode)
        assert swept(store).errors == {}
    assert float(model(store, 3)["q_net_state_dict"]["0.weight"][0, 0]) == 1.0
    assert float(model(store, 2)["target_net_state_dict"]["0.weight"][0, 0]) == 3.0
    plan = GroupEye(store, "g").plan(1)
    assert plan is not None and plan.keys == {"q_net*": "first"}
    assert fedavg.cli.main(["verify", "g", "--recompute"]) == 0
