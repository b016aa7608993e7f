"""The merge rules against the papers' formulas, other implementations, and known mistakes.

Every rule has one row in ORACLES: the same rule on numpy arrays in float64, written from the paper
and not from the code.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import trim_mean

from fedavg import policy
from fedavg.arithmetic import ordered, squared_distances, weighted_mean, widen
from fedavg.rule import Chunk, Rule
from fedavg.selection import scores
from fedavg.strategies import RULES, rule
from fedavg.weighting import weights_of
from fsworker.errors import UsageError
from fsworker.protocol.records import rules
from fsworker.protocol.records.round import Group, terms_problem

pytestmark = pytest.mark.unit

Array = NDArray[np.float64]
F64 = torch.float64


def apply(
    of: Rule,
    models: Any,
    counts: list[float] | None = None,
    base: Any = None,
    state: Mapping[str, torch.Tensor] | None = None,
    staleness: tuple[int, ...] | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """One round of one chunk, as the engine does it; `state` None is the first round."""
    models = widen(torch.as_tensor(models))
    names = [f"{i:03}" for i in range(len(models))]
    weights = weights_of(dict(zip(names, counts or [1.0] * len(models), strict=True)))
    rows = [i for i, name in enumerate(names) if name in weights]
    shares = tuple(weights.values())
    if of.kind.choose is not None:
        distances = squared_distances(models[rows]).tolist()
        rows = [rows[i] for i in of.kind.choose(distances, of.params)]
        shares = (1.0,) * len(rows)
    n = models.shape[1]
    start = {k: torch.full((n,), v, dtype=F64) for k, v in of.initial_state().items()}
    chunk = Chunk(
        models[rows].clone(),
        shares,
        None if base is None else torch.as_tensor(base, dtype=F64),
        start if state is None else state,
        staleness or (0,) * len(rows),
    )
    return of.kind.apply(chunk, of.numbers)


# -- golden values: x0 = 1, Δ1 = 0.5, Δ2 = −0.25, worked out by hand from the formulas

GOLDEN = {
    "fedavgm": (1.5, 1.7),
    "fedadagrad": (1.0998002, 1.0551588),
    "fedadam": (1.0980202, 1.1333020),
    "fedyogi": (1.0098020, 1.0133163),
    "diloco": (1.665, 1.616),
    "fedbuff": (1.5, 1.25),
}


@pytest.mark.parametrize(("name", "expected"), GOLDEN.items())
def test_golden_scalars(name: str, expected: tuple[float, float]) -> None:
    of, x, state = rule(name), 1.0, None
    for delta, value in zip((0.5, -0.25), expected, strict=True):
        merged, state = apply(of, torch.tensor([[x + delta]], dtype=F64), base=[x], state=state)
        x = float(merged[0])
        assert x == pytest.approx(value, abs=5e-8)


def test_every_rule_that_moves_a_global_model_has_golden_scalars() -> None:
    assert {name for name, kind in RULES.items() if kind.needs_base} == set(GOLDEN)


# -- the same rules in numpy


def np_mean(w: Array, n: Array, x: Array, p: Mapping[str, float]) -> Array:
    return np.asarray(np.average(w, axis=0, weights=n))


def np_delta(w: Array, n: Array, x: Array) -> Array:
    return np.asarray(np.average(w - x, axis=0, weights=n))


def np_adaptive(
    second: Callable[[Array, Array, float], Array],
) -> Callable[[Array, Array, Array, Mapping[str, float]], Array]:
    def first_round(w: Array, n: Array, x: Array, p: Mapping[str, float]) -> Array:
        d = np_delta(w, n, x)
        v = second(np.full_like(x, p["tau"] ** 2), d, p.get("beta2", 0.0))
        m = (1 - p["beta1"]) * d
        return np.asarray(x + p["lr"] * m / (np.sqrt(v) + p["tau"]))

    return first_round


def np_diloco(w: Array, n: Array, x: Array, p: Mapping[str, float]) -> Array:
    """torch's own optimiser, which is what the paper used."""
    parameter = torch.nn.Parameter(torch.from_numpy(x.copy()))
    outer = torch.optim.SGD([parameter], lr=p["lr"], momentum=p["momentum"], nesterov=True)
    parameter.grad = torch.from_numpy(-np_delta(w, n, x))
    outer.step()
    return parameter.detach().numpy()


def np_krum(best: int | None) -> Callable[[Array, Array, Array, Mapping[str, float]], Array]:
    def of(w: Array, n: Array, x: Array, p: Mapping[str, float]) -> Array:
        count = len(w)
        f = (count - 3) // 2
        apart = ((w[:, None] - w[None]) ** 2).sum(-1)
        found = [np.sort(np.delete(row, i))[: count - f - 2].sum() for i, row in enumerate(apart)]
        m = best or count - f - 2
        return np.asarray(w[np.argsort(found, kind="stable")[:m]].mean(0))

    return of


ORACLES: dict[str, Callable[[Array, Array, Array, Mapping[str, float]], Array]] = {
    "fedavg": np_mean,
    "fedavgm": lambda w, n, x, p: x + p["lr"] * np_delta(w, n, x),
    "fedadagrad": np_adaptive(lambda v, d, b: v + d**2),
    "fedadam": np_adaptive(lambda v, d, b: b * v + (1 - b) * d**2),
    "fedyogi": np_adaptive(lambda v, d, b: v - (1 - b) * d**2 * np.sign(v - d**2)),
    "diloco": np_diloco,
    "fedbuff": lambda w, n, x, p: np.asarray(x + p["lr"] * (w - x).mean(0)),
    "median": lambda w, n, x, p: np.asarray(np.median(w, axis=0)),
    "trimmed-mean": lambda w, n, x, p: np.asarray(trim_mean(w, p["beta"], axis=0)),
    "krum": np_krum(1),
    "multi-krum": np_krum(None),
}


def test_every_rule_has_an_oracle() -> None:
    assert list(ORACLES) == list(RULES)


@pytest.mark.parametrize("name", RULES)
@given(
    count=st.integers(3, 9),
    size=st.integers(1, 50),
    seed=st.integers(0, 2**31),
    scale=st.sampled_from([1e-4, 1.0, 1e4]),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
)
@settings(max_examples=25, deadline=None)
def test_a_rule_is_what_its_paper_says(
    name: str, count: int, size: int, seed: int, scale: float, dtype: torch.dtype
) -> None:
    rng = np.random.default_rng(seed)
    scale = min(scale, 1e3) if dtype == torch.float16 else scale
    models = torch.from_numpy(rng.standard_normal((count, size)) * scale).to(dtype)
    x = rng.standard_normal(size) * scale
    samples = rng.integers(1, 1000, count).astype(float)
    of = rule(name)
    merged, _ = apply(of, models, list(samples) if of.kind.weighted else None, base=x)
    wide = models.to(F64).numpy()
    expected = ORACLES[name](wide, samples if of.kind.weighted else np.ones(count), x, of.numbers)
    largest = float(np.abs(wide).max() + np.abs(x).max())
    np.testing.assert_allclose(merged.numpy(), expected, rtol=1e-11, atol=1e-13 * largest)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_changes_neither_base_nor_state(name: str) -> None:
    models, x = torch.randn(5, 7, dtype=F64), torch.randn(7, dtype=F64)
    of = rule(name)
    state = {k: torch.rand(7, dtype=F64) for k in of.initial_state()}
    before = [t.clone() for t in (x, *state.values())]
    apply(of, models, base=x, state=state)
    assert all(torch.equal(a, b) for a, b in zip(before, (x, *state.values()), strict=True))


def test_diloco_is_torchs_nesterov_over_many_rounds() -> None:
    torch.manual_seed(0)
    x = torch.randn(20, dtype=F64)
    parameter = torch.nn.Parameter(x.clone())
    outer = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=True)
    state = None
    for _ in range(10):
        models = x + torch.randn(4, 20, dtype=F64)
        outer.zero_grad()
        parameter.grad = parameter.detach() - models.mean(0)
        outer.step()
        x, state = apply(rule("diloco"), models, base=x, state=state)
        torch.testing.assert_close(x, parameter.detach(), rtol=1e-12, atol=1e-12)


def test_fedadam_without_moments_is_a_sign_step() -> None:
    of = rule("fedadam", {"lr": 1.0, "beta1": 0.0, "beta2": 0.0, "tau": 1e-12})
    merged, _ = apply(of, torch.tensor([[5.0, -3.0]], dtype=F64), base=[0.0, 0.0])
    assert merged.tolist() == pytest.approx([1.0, -1.0])


def test_momentum_without_memory_and_a_step_of_one_is_the_mean() -> None:
    models, x = torch.randn(4, 9, dtype=F64), torch.randn(9, dtype=F64)
    mean = models.mean(0)
    for of in (
        rule("fedavgm", {"beta": 0.0}),
        rule("diloco", {"lr": 1.0, "momentum": 0.0}),
        rule("fedbuff"),
    ):
        torch.testing.assert_close(apply(of, models, base=x)[0], mean, rtol=1e-12, atol=1e-12)


def test_stale_models_count_less() -> None:
    models = torch.tensor([[1.0], [1.0]], dtype=F64)
    merged, _ = apply(rule("fedbuff"), models, base=[0.0], staleness=(0, 3))
    assert merged.tolist() == [0.75]  # (1 + 1/√4) / 2


# -- what others got wrong


def test_an_even_median_averages_the_middle_two() -> None:
    merged, _ = apply(rule("median"), torch.tensor([[1.0], [2.0], [10.0], [4.0]]))
    assert merged.tolist() == [3.0]
    assert torch.median(torch.tensor([1.0, 2.0, 10.0, 4.0])) == 2.0  # not so


def test_float16_is_not_summed_in_float16() -> None:
    models = torch.full((3, 4), 60000, dtype=torch.float16)
    out = torch.empty(4, dtype=torch.float16)
    for name in ("fedavg", "median", "trimmed-mean", "krum", "multi-krum"):
        out.copy_(apply(rule(name), models, [10, 20, 5])[0])
        assert out.tolist() == [60000.0] * 4


def test_krum_takes_differences_first() -> None:
    """Close together and far from zero: ‖x‖² + ‖y‖² − 2xy in float32 has no correct digit left."""
    rng = np.random.default_rng(1)
    spread = rng.standard_normal((7, 1000)) * 1e-3
    spread[2] *= 0.01  # the one in the middle
    models = torch.from_numpy(1000 + spread).to(torch.float32)
    apart = squared_distances(widen(models)).numpy()
    exact = models.to(F64).numpy()
    expected = ((exact[:, None] - exact[None]) ** 2).sum(-1)
    np.testing.assert_allclose(apart, expected, rtol=1e-9)
    single = models.numpy()
    norms = (single**2).sum(1)
    careless = norms[:, None] + norms[None] - 2 * single @ single.T
    assert np.argmin(scores(careless.tolist(), 2)) != 2
    merged, _ = apply(rule("krum"), models)
    assert torch.equal(merged, models[2].to(F64))


def test_krum_leaves_out_what_is_far_away() -> None:
    models = torch.randn(7, 50, dtype=F64)
    models[1] += 1e3
    models[4] -= 1e3
    merged, _ = apply(rule("multi-krum", {"f": 2}), models)
    assert merged.abs().max() < 10
    best, _ = apply(rule("krum", {"f": 2}), models)
    assert any(torch.equal(best, models[i]) for i in (0, 2, 3, 5, 6))


def test_of_equal_scores_the_first_wins() -> None:
    models = torch.tensor([[1.0], [1.0], [1.0], [1.0], [1.0]])
    assert RULES["multi-krum"].choose is not None
    distances = squared_distances(models).tolist()
    assert RULES["multi-krum"].choose(distances, {"f": 1, "m": 2}) == [0, 1]


def test_a_trim_that_is_whole_is_not_rounded_down() -> None:
    models = torch.arange(100, dtype=F64).reshape(100, 1)
    models[:29] -= 1e6
    merged, _ = apply(rule("trimmed-mean", {"beta": 0.29}), models)
    assert 0.29 * 100 < 29
    assert merged.tolist() == [49.5]


def test_a_single_participant_is_itself_to_the_bit() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        model = torch.randn(1, 1000).to(dtype)
        for name in ("fedavg", "median", "trimmed-mean"):
            out = torch.empty(1000, dtype=dtype)
            out.copy_(apply(rule(name), model, [7])[0])
            assert torch.equal(out, model[0])


# -- weights


@pytest.mark.parametrize("bad", [math.nan, -1, math.inf, -math.inf, "many", True, 10**400])
def test_a_count_that_is_none_is_refused_by_name(bad: Any) -> None:
    with pytest.raises(UsageError, match=r"^job-b: the sample count .* is no number"):
        weights_of({"job-a": 10, "job-b": bad})


def test_zero_has_no_weight_and_all_zero_fails() -> None:
    assert list(weights_of({"a": 10, "b": 0, "c": 20})) == ["a", "c"]
    with pytest.raises(UsageError, match=r"a, b\): there is nothing to merge, and the old model"):
        weights_of({"a": 0, "b": 0})
    with pytest.raises(UsageError, match="nothing to merge"):
        weights_of({})
    with pytest.raises(UsageError, match="b: no sample count where others have one"):
        weights_of({"a": 1, "b": None})


@given(st.dictionaries(st.text(min_size=1), st.floats(1e-9, 1e12), min_size=1))
def test_weights_are_the_counts_times_a_power_of_two(counts: dict[str, float]) -> None:
    weights = weights_of(counts)
    assert list(weights) == sorted(counts)
    assert math.fsum(weights.values()) <= 1
    equal = len(set(counts.values())) == 1
    factors = {math.frexp(w / (1.0 if equal else counts[name])) for name, w in weights.items()}
    assert len(factors) == 1 and factors.pop()[0] == 0.5
    assert weights_of(dict.fromkeys(counts)) == weights_of(dict.fromkeys(counts, 7))


# -- arithmetic


@given(count=st.integers(1, 40), seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_the_network_sorts(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 10, (count, 20)).astype(float)  # with many equal ones
    expected = np.sort(values, axis=0)
    assert np.array_equal(ordered(torch.from_numpy(values)).numpy(), expected)


def test_the_network_sorts_every_order_of_zeros_and_ones() -> None:
    """Which proves it for all inputs (Knuth's 0-1 principle)."""
    for count in range(1, 13):
        every = torch.arange(2**count)
        bits = torch.stack([(every >> i) & 1 for i in range(count)]).to(F64)
        rows = ordered(bits)
        assert bool((rows[1:] >= rows[:-1]).all())


def test_a_mean_depends_on_nothing_but_its_coordinate() -> None:
    """Not on where it stands in a chunk, so that pieces may be cut anywhere."""
    weights = (0.3, 0.1, 0.7, 0.2, 0.9)
    models = torch.randn(5, 40001, dtype=F64)
    whole = weighted_mean(models, weights)
    for a, b in ((0, 1), (1, 9), (7, 4103), (64, 32832), (39999, 40001)):
        assert torch.equal(weighted_mean(models[:, a:b].contiguous(), weights), whole[a:b])


def test_means_of_narrow_types_are_as_good_as_rounded_once() -> None:
    rng = np.random.default_rng(5)
    samples = [int(n) for n in rng.integers(1, 2000, 8)]
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        models = torch.from_numpy(rng.standard_normal((8, 4000))).to(dtype)
        weights = tuple(weights_of({str(i): n for i, n in enumerate(samples)}).values())
        out = torch.empty(4000, dtype=dtype)
        out.copy_(weighted_mean(widen(models), weights))
        exact = np.average(widen(models).numpy().astype(np.longdouble), axis=0, weights=samples)
        ulps = np.abs(widen(out).numpy() - exact) / np.spacing(np.abs(exact).astype(np.float64))
        bits = {torch.float32: 29, torch.bfloat16: 45, torch.float16: 42}[dtype]
        assert float(ulps.max()) <= 0.501 * 2**bits


# -- the registry


@pytest.mark.parametrize(
    ("name", "params", "says"),
    [
        ("fedmagic", {}, "there is no merge rule 'fedmagic'"),
        ("fedavg", {"lr": 1.0}, "has no parameter lr .it has: none"),
        ("fedadam", {"beta1": 1.0}, "beta1 = 1.0 must be at least 0 and below 1"),
        ("fedadam", {"lr": 0.0}, "lr = 0.0 must be above 0"),
        ("fedadam", {"lr": math.nan}, "lr = nan must be above 0"),
        ("fedadam", {"lr": None}, "lr = None must be above 0"),
        ("fedadam", {"lr": "1"}, "lr = '1' must be above 0"),
        ("trimmed-mean", {"beta": 0.5}, "beta = 0.5 must be at least 0 and below 0.5"),
        ("krum", {"f": 1.5}, "f = 1.5 must be a whole number"),
        ("multi-krum", {"m": 0}, "m = 0 must be at least 1"),
        ("fedavgm", {"lr": math.inf}, "lr = inf must be finite"),
        ("krum", {"f": 10**400}, "must be finite"),
    ],
)
def test_a_wrong_parameter_is_named(name: str, params: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        rule(name, params)


@pytest.mark.parametrize(
    ("name", "params", "count", "says"),
    [
        ("krum", {"f": 2}, 6, "against 2 hostile participants needs 7 of them, here are 6"),
        ("krum", {}, 2, "needs 3 of them, here are 2"),
        ("multi-krum", {"m": 9}, 8, "the 9 best of only 8"),
        ("krum", {"f": 1e308}, 4, r"against 1e\+308 hostile participants needs 2f \+ 3 of them"),
        ("trimmed-mean", {"beta": 0.4999999999}, 10, "leaves nothing of 10"),
        ("trimmed-mean", {"beta": 0.4999999999999999}, 2, "0.4999999999999999 at each end leaves"),
    ],
)
def test_too_few_participants_are_refused(name: str, params: Any, count: int, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        rule(name, params).check(count)
    wrong = terms_problem(Group("g", count, rule=name, options=params, quorum=1))
    assert wrong is not None and re.search(
        f"^field 'rule' does not fit the group's size.*{says}", wrong
    )


@pytest.mark.parametrize(
    ("name", "params", "count"),
    [
        ("krum", {"f": 2}, 7),
        ("krum", {}, 3),
        ("multi-krum", {"m": 8}, 8),
        ("trimmed-mean", {"beta": 0.4999999999}, 9),
        ("median", {}, 1),
    ],
)
def test_as_many_as_a_rule_needs_are_enough(name: str, params: Any, count: int) -> None:
    rule(name, params).check(count)
    assert terms_problem(Group("g", count, rule=name, options=params)) is None


@pytest.mark.parametrize("name", RULES)
def test_a_rule_survives_being_written_down(name: str) -> None:
    of = rule(name)
    of.check(10)
    assert rule(**of.record()) == of  # type: ignore[arg-type]


def test_what_groups_may_ask_for_is_what_there_is() -> None:
    assert {name: kind.params for name, kind in RULES.items()} == rules.RULES
    assert (policy.ACTIONS, get_args(policy.Lora)) == (rules.ACTIONS, rules.LORA)
