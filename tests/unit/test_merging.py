"""Merging whole checkpoints: what comes out, and that it depends on nothing but what goes in."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fedavg.agreement import Unmergeable
from fedavg.checkpoint import Checkpoint, open_checkpoint
from fedavg.engine import pieces
from fedavg.inspection import inspect
from fedavg.merging import Contribution, Merged, merge
from fedavg.policy import Policy, policy_from
from fedavg.strategies import RULES, rule
from fsworker.errors import UsageError

pytestmark = pytest.mark.unit

Tree = dict[str, Any]


class Site:
    """Checkpoints of participants in a folder, and merges of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = itertools.count()

    def save(self, tree: Tree, name: str = "") -> Checkpoint:
        path = self.folder / f"{name or next(self._numbers)}.pt"
        torch.save(tree, path)
        return open_checkpoint(path)

    def inputs(self, trees: Mapping[str, Tree], counts: Sequence[Any] = ()) -> list[Contribution]:
        given = itertools.chain(counts, itertools.repeat(None))
        return [
            Contribution(name, self.save(tree, name), count)
            for (name, tree), count in zip(trees.items(), given, strict=False)
        ]

    def merge(
        self, inputs: Sequence[Contribution], name: str = "fedavg", params: Any = None, **how: Any
    ) -> tuple[Tree, Merged, Path]:
        of, out = rule(name, params), self.folder / f"out{next(self._numbers)}.pt"
        how.setdefault("state_out", str(out) + ".state")
        merged = merge(of, inputs, str(out), **how)
        return torch.load(out, weights_only=True), merged, out


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@contextmanager
def small_pieces(chunk: int = 256, smallest: int = 8, block: int = 64) -> Iterator[None]:
    """Cut tiny tensors into many pieces too."""
    before = pieces.CHUNK, pieces.SMALLEST, pieces.BLOCK, pieces.LEAST_BLOCK
    pieces.CHUNK, pieces.SMALLEST, pieces.BLOCK, pieces.LEAST_BLOCK = chunk, smallest, block, 4
    try:
        yield
    finally:
        pieces.CHUNK, pieces.SMALLEST, pieces.BLOCK, pieces.LEAST_BLOCK = before


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("scale", torch.full((3,), 60000, dtype=torch.float16))


def trained(seed: int, batches: int) -> Tree:
    torch.manual_seed(seed)
    net = Net()
    net.norm.num_batches_tracked += batches
    net.norm.running_var += torch.rand(8)
    return dict(net.state_dict())


# -- the field case: three shards, key order differs, counters, a mask, float16, counts, a NaN


def test_three_shards_that_differ_in_order_and_counts(site: Site) -> None:
    a, b, c = trained(1, 5), trained(2, 6), trained(3, 9)
    b = dict(sorted(b.items()))
    c = dict(reversed(c.items()))
    merged, told, path = site.merge(site.inputs({"a": a, "b": b, "c": c}, [10, 20, 0]))
    assert told.weights == {"a": pytest.approx(1 / 3), "b": pytest.approx(2 / 3)}
    assert {k: v.dtype for k, v in merged.items()} == {k: v.dtype for k, v in a.items()}
    assert merged["scale"].tolist() == [60000.0] * 3
    assert merged["norm.num_batches_tracked"] == 6  # the greatest of those with weight
    assert merged["mask"].tolist() == [True, False, True]
    for key in ("first.weight", "last.bias", "norm.running_var"):
        exact = (a[key].double() * 10 + b[key].double() * 20) / 30
        assert torch.equal(merged[key], exact.float())
    Net().load_state_dict(merged, strict=True)
    assert told.digest == hashlib.sha256(path.read_bytes()).hexdigest()


def test_no_weight_at_all_leaves_no_file(site: Site) -> None:
    inputs = site.inputs({"a": trained(1, 1), "b": trained(2, 2)}, [0, 0])
    out = site.folder / "out.pt"
    with pytest.raises(UsageError, match="nothing to merge, and the old model stays"):
        merge(rule("fedavg"), inputs, str(out))
    assert not out.exists()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", RULES)
def test_a_value_that_is_not_finite_is_refused_by_participant_and_key(
    site: Site, name: str, bad: float
) -> None:
    trees = {f"job-{i}": trained(i, i) for i in range(5)}
    trees["job-3"]["first.weight"].view(-1)[17] = bad
    base = site.save(trained(9, 0), "base")
    with small_pieces(), pytest.raises(Unmergeable) as error:
        site.merge(site.inputs(trees), name, base=base)
    assert error.value.participant == "job-3" and error.value.key == "first.weight"
    assert error.value.exit_code == 5
    assert f"element 17 is {bad}" in str(error.value) and "job-3.pt" in str(error.value)
    assert not list(site.folder.glob("out*"))


def test_an_upload_is_inspected_by_itself(site: Site) -> None:
    good, bad = trained(1, 1), trained(2, 1)
    bad["last.weight"][1, 2] = math.nan
    assert inspect(site.save(good)).tensors == len(good)
    with pytest.raises(
        Unmergeable, match=r"^last.weight in \S+bad.pt is not finite .element 10 is nan"
    ):
        inspect(site.save(bad, "bad"))
    inspect(site.save(bad), policy=policy_from([("last.*", "first")]))  # is not averaged then


# -- refused by name


def changed(tree: Tree, **changes: Any) -> Tree:
    found = {**tree, **changes}
    return {k: v for k, v in found.items() if v is not None}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"w": None}, "b: it lacks w, which a has"),
        ({"extra": torch.zeros(1)}, "b: it alone has extra, compared with a"),
        ({"w": torch.zeros(3, 1)}, "b: w has the shape 3×1 and not 3×4 as in a"),
        ({"w": torch.zeros(3, 4).double()}, "b: w is float64 and not float32 as in a"),
        ({"n": torch.tensor([1])}, "b: n has the shape 1 and not of a single number as in a"),
    ],
)
def test_what_differs_is_refused_and_never_broadcast(site: Site, changes: Any, says: str) -> None:
    tree = {"w": torch.zeros(3, 4), "n": torch.tensor(1)}
    with pytest.raises(Unmergeable, match=says):
        site.merge(site.inputs({"a": tree, "b": changed(tree, **changes), "c": tree}))
    assert not list(site.folder.glob("out*"))


def test_weights_that_are_tied_in_one_alone_are_refused(site: Site) -> None:
    w = torch.randn(4, 4)
    with pytest.raises(Unmergeable, match="a keeps emb and head as one tensor, it does not"):
        site.merge(site.inputs({"a": {"emb": w, "head": w}, "b": {"emb": w, "head": w + 1}}))


def test_types_that_nobody_knows_how_to_merge_are_refused(site: Site) -> None:
    tree = {"w": torch.zeros(4, dtype=torch.float8_e4m3fn), "c": torch.zeros(2).to(torch.complex64)}
    inputs = site.inputs({"a": tree, "b": tree})
    with pytest.raises(Unmergeable, match="nothing is known about merging float8_e4m3fn, the type"):
        site.merge(inputs)
    kept, _, _ = site.merge(inputs, policy=policy_from([("*", "first")]))
    assert kept["w"].dtype == torch.float8_e4m3fn
    with pytest.raises(UsageError, match="w is float8_e4m3fn, which has no largest"):
        site.merge(inputs, policy=policy_from([("*", "max")]))


def test_what_does_not_fit_together_is_told(site: Site) -> None:
    tree = {"w": torch.zeros(3)}
    one, two = site.inputs({"a": tree, "b": tree})
    base = site.save({"w": torch.zeros(2)}, "base")
    with pytest.raises(UsageError, match="a contributes twice"):
        site.merge([one, one])
    with pytest.raises(UsageError, match=r"fedadam moves the model .* give that base"):
        site.merge([one, two], "fedadam")
    with pytest.raises(UsageError, match="fedadam keeps an optimiser state"):
        site.merge([one, two], "fedadam", base=base, state_out=None)
    with pytest.raises(Unmergeable, match=r"the base .*base.pt: w has the shape 2 and not 3"):
        site.merge([one, two], "fedadam", base=base)
    more = site.save({"w": torch.zeros(3), "v": torch.zeros(1)}, "more")
    with pytest.raises(Unmergeable, match=r"the base .*more.pt: it alone has v, compared with"):
        site.merge([one, two], "fedadam", base=more)
    with pytest.raises(UsageError, match="a has a base of its own"):
        site.merge([Contribution("a", one.checkpoint, base=base), two])
    with pytest.raises(UsageError, match="a staleness of -1 rounds"):
        site.merge([Contribution("a", one.checkpoint, staleness=-1), two])
    with pytest.raises(UsageError, match="w is to stay as in the base"):
        site.merge([one, two], policy=policy_from([("w", "base")]))
    with pytest.raises(UsageError, match="there is no action 'avg'"):
        policy_from([("w", "avg")])


# -- by policy


def test_integers_and_masks_are_never_scaled(site: Site) -> None:
    trees = {
        name: {
            "step": torch.tensor(n, dtype=torch.int32),
            "bn.num_batches_tracked": torch.tensor([n, 1]),
            "ids": torch.tensor([n, n + 1, 7]),
            "frames": torch.tensor([n, 255], dtype=torch.uint8),
            "mask": torch.tensor([n > 5, True]),
            "big": torch.tensor(2**63 - n),
            "huge": torch.tensor(2**64 - n, dtype=torch.uint64),
        }
        for name, n in (("b", 6), ("a", 5), ("c", 9))
    }
    merged, _, _ = site.merge(site.inputs(trees, [1, 1, 1]))
    assert merged["step"] == 9 and merged["step"].dtype == torch.int32
    assert merged["bn.num_batches_tracked"].tolist() == [9, 1]
    assert merged["ids"].tolist() == [5, 6, 7]  # the first participant's by name
    assert merged["frames"].tolist() == [5, 255]
    assert merged["mask"].tolist() == [False, True]
    assert merged["big"] == 2**63 - 5 and merged["huge"].item() == 2**64 - 5
    keep = policy_from([("ids", "max"), ("step", "first"), ("*", "mean")])
    merged, _, _ = site.merge(site.inputs(trees), policy=keep)
    assert merged["ids"].tolist() == [9, 10, 7] and merged["step"] == 5


def test_buffers_and_the_participants_optimisers_are_averaged_and_not_stepped(site: Site) -> None:
    def tree(n: float) -> Tree:
        return {
            "model": {"w": torch.full((2,), n), "bn.running_var": torch.full((2,), n)},
            "optimizer": {"state": {0: {"step": torch.tensor(n), "exp_avg": torch.full((2,), n)}}},
        }

    base = site.save(tree(10.0), "base")
    merged, _, _ = site.merge(site.inputs({"a": tree(1.0), "b": tree(4.0)}), "diloco", base=base)
    assert merged["model"]["bn.running_var"].tolist() == [2.5, 2.5]
    assert merged["model"]["w"].tolist() == pytest.approx([10 - 0.7 * 1.9 * 7.5] * 2)
    assert merged["optimizer"]["state"][0]["exp_avg"].tolist() == [2.5, 2.5]
    assert merged["optimizer"]["state"][0]["step"] == 4


def test_leaves_that_are_no_tensors(site: Site) -> None:
    def tree(n: int) -> Tree:
        return {
            "net": {"w": torch.full((2,), float(n))},
            "episode": n, "epsilon": n / 10, "name": f"run {n}", "loss": None, "done": n > 8,
            "memory": [n, n + 1],
        }  # fmt: skip

    merged, _, _ = site.merge(site.inputs({"b": tree(9), "a": tree(7)}))
    assert merged["episode"] == 9 and merged["memory"] == [7, 8]
    assert (merged["epsilon"], merged["name"], merged["done"]) == (0.7, "run 7", False)
    kept, _, _ = site.merge(
        site.inputs({"b": tree(9), "a": tree(7)}), policy=Policy((("episode", "first"),))
    )
    assert kept["episode"] == 7


def test_tied_and_sliced_tensors_are_merged_once_and_stay_tied(site: Site) -> None:
    def tree(seed: int) -> Tree:
        torch.manual_seed(seed)
        large = torch.randn(100, 10)
        w = torch.randn(6, 3)
        return {"emb": w, "head": w, "row": large[7], "column": large[:, 3], "t": w.T}

    a, b = tree(1), tree(2)
    merged, _, path = site.merge(site.inputs({"a": a, "b": b}))
    for key in a:
        assert torch.equal(merged[key], ((a[key].double() + b[key].double()) / 2).float()), key
    assert merged["emb"].data_ptr() == merged["head"].data_ptr()
    assert path.stat().st_size < 8000  # slices, and not what they were sliced from


def test_prefixes_of_wrappers_make_no_difference(site: Site) -> None:
    a = {"w": torch.ones(2)}
    b = {"module._orig_mod.w": torch.full((2,), 3.0)}
    merged, _, _ = site.merge(site.inputs({"a": a, "b": b}))
    assert merged["w"].tolist() == [2.0, 2.0]


# -- LoRA


def adapter(seed: int, rank: int = 2) -> Tree:
    torch.manual_seed(seed)
    prefix = "base_model.model.q"
    return {
        f"{prefix}.lora_A.weight": torch.randn(rank, 6, dtype=torch.float64),
        f"{prefix}.lora_B.weight": torch.randn(5, rank, dtype=torch.float64),
        "head": torch.randn(3, dtype=torch.float64),
    }


def product(tree: Tree) -> Tensor:
    values = list(tree.values())
    found: Tensor = values[1] @ values[0]
    return found


def test_lora_factors_need_a_choice(site: Site) -> None:
    trees = {"a": adapter(1), "b": adapter(2)}
    inputs = site.inputs(trees, [1, 3])
    with pytest.raises(
        Unmergeable, match=r"lora_A.weight is a factor of .* .--lora product or --lora"
    ):
        site.merge(inputs)
    factors, _, _ = site.merge(inputs, policy=Policy(lora="factors"))
    expected = {k: (trees["a"][k] + 3 * trees["b"][k]) / 4 for k in factors}
    torch.testing.assert_close(factors, expected, rtol=1e-12, atol=1e-12)
    mean = (product(trees["a"]) + 3 * product(trees["b"])) / 4
    assert not torch.allclose(product(factors), mean, rtol=0.1)
    merged, _, _ = site.merge(inputs, policy=Policy(lora="product"))
    u, s, vh = torch.linalg.svd(mean)
    torch.testing.assert_close(product(merged), (u[:, :2] * s[:2]) @ vh[:2])
    torch.testing.assert_close(merged["head"], expected["head"])
    again, _, _ = site.merge(inputs[::-1], policy=Policy(lora="product"), threads=1)
    assert all(torch.equal(merged[k], again[k]) for k in merged)


def test_the_product_is_exact_where_the_rank_allows_it(site: Site) -> None:
    one = adapter(1)
    two = changed(one, **{k: v * 2 for k, v in one.items() if "lora_B" in k})
    merged, _, _ = site.merge(site.inputs({"a": one, "b": two}), policy=Policy(lora="product"))
    torch.testing.assert_close(product(merged), product(one) * 1.5)
    wide = adapter(3, rank=8)  # a rank above what the matrix can have
    merged, _, _ = site.merge(site.inputs({"c": wide}), policy=Policy(lora="product"))
    torch.testing.assert_close(product(merged), product(wide))


def test_a_factor_alone_and_other_rules_have_no_product(site: Site) -> None:
    half = {k: v for k, v in adapter(1).items() if "lora_B" not in k}
    with pytest.raises(Unmergeable, match="is a LoRA factor without its partner"):
        site.merge(site.inputs({"a": half}), policy=Policy(lora="product"))
    with pytest.raises(UsageError, match="merged by fedavg alone, not by median"):
        site.merge(site.inputs({"a": adapter(1)}), "median", policy=Policy(lora="product"))


SHARED = torch.arange(12.0).reshape(2, 6)
ROWS = torch.arange(24.0).reshape(4, 6)


@pytest.mark.parametrize(
    ("tree", "factor", "other"),
    [
        ({"q.lora_A": SHARED, "q.lora_B": torch.ones(5, 2), "v.lora_A": SHARED,
          "v.lora_B": torch.ones(3, 2)}, "v.lora_A", "q.lora_A"),
        ({"q.lora_A": torch.ones(2, 6), "q.lora_B": ROWS[:, :2], "v.lora_A": torch.ones(2, 6),
          "v.lora_B": ROWS[:, :2]}, "v.lora_B", "q.lora_B"),
        ({"q.lora_A": SHARED[:, :2], "q.lora_B": SHARED[:, :2]}, "q.lora_B", "q.lora_A"),
        ({"all": ROWS, "q.lora_A": ROWS[:2], "q.lora_B": torch.ones(5, 2)}, "q.lora_A", "all"),
        ({"q.lora_A": SHARED, "q.lora_B": torch.ones(5, 2), "row": SHARED[0]}, "q.lora_A", "row"),
    ],
    ids=["A of two", "B of two", "A is B", "A in a larger one", "a part of A"],
)  # fmt: skip
def test_a_factor_that_shares_its_numbers_has_no_product(
    site: Site, tree: Tree, factor: str, other: str
) -> None:
    inputs = site.inputs({"a": tree, "b": tree})
    words = f"^{factor} is a LoRA factor that shares its numbers with {other}.*--lora factors$"
    with pytest.raises(Unmergeable, match=words):
        site.merge(inputs, policy=Policy(lora="product"))
    merged, _, _ = site.merge(inputs, policy=Policy(lora="factors"))
    assert all(torch.equal(merged[key], value) for key, value in tree.items())


# -- rounds


def test_optimiser_state_goes_from_round_to_round(site: Site) -> None:
    of = rule("fedadam")
    x = torch.randn(40, dtype=torch.float64)
    m, v = torch.zeros(40, dtype=torch.float64), torch.full((40,), 1e-6, dtype=torch.float64)
    state = None
    for turn in range(4):
        models = [x + torch.randn(40, dtype=torch.float64) for _ in range(3)]
        base = site.save({"w": x}, f"base{turn}")
        trees = {f"{turn}-{i}": {"w": w} for i, w in enumerate(models)}
        with small_pieces():
            merged, told, path = site.merge(
                site.inputs(trees), "fedadam", base=base, state_in=state
            )
        delta = sum(models) / 3 - x
        m = 0.9 * m + 0.1 * delta
        v = 0.99 * v + 0.01 * delta**2
        x = x + 0.1 * m / (v.sqrt() + 1e-3)
        torch.testing.assert_close(merged["w"], x, rtol=1e-12, atol=1e-12)
        state = open_checkpoint(str(path) + ".state")
        assert told.state_digest == hashlib.sha256(Path(state.path).read_bytes()).hexdigest()
        kept = load_file(state.path)  # as safetensors itself reads it
        torch.testing.assert_close(kept["m/w"], m, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(kept["v/w"], v, rtol=1e-12, atol=1e-12)
    assert list(of.initial_state()) == ["m", "v"]


def test_the_state_of_narrow_models_is_float32(site: Site) -> None:
    def tree(n: float) -> Tree:
        return {"w": torch.full((3,), n).bfloat16(), "d": torch.full((3,), n).double()}

    base = site.save(tree(0), "base")
    _, _, path = site.merge(site.inputs({"a": tree(1.0), "b": tree(2.0)}), "fedavgm", base=base)
    kept = load_file(str(path) + ".state")
    assert {k: (t.dtype, t.tolist()) for k, t in kept.items()} == {
        "v/w": (torch.float32, [1.5] * 3),
        "v/d": (torch.float64, [1.5] * 3),
    }


def test_a_state_of_another_rule_or_model_is_refused(site: Site) -> None:
    tree = {"w": torch.ones(3)}
    base, inputs = site.save(tree, "base"), site.inputs({"a": tree, "b": tree})
    _, _, path = site.merge(inputs, "fedavgm", base=base)
    state = open_checkpoint(str(path) + ".state")
    with pytest.raises(Unmergeable, match="optimiser state of fedavgm, not of diloco"):
        site.merge(inputs, "diloco", base=base, state_in=state)
    other = {"w": torch.ones(4)}
    with pytest.raises(Unmergeable, match="v/w has another shape or type"):
        site.merge(site.inputs({"c": other}), "fedavgm", base=site.save(other), state_in=state)


def test_a_step_out_of_the_types_range_is_no_infinity(site: Site) -> None:
    base = site.save({"w": torch.zeros(3, dtype=torch.float16)}, "base")
    inputs = site.inputs({"a": {"w": torch.full((3,), 60000.0, dtype=torch.float16)}})
    with pytest.raises(Unmergeable, match="takes w out of the range of its type"):
        site.merge(inputs, "fedavgm", {"lr": 2.0}, base=base)


@pytest.mark.parametrize("name", ["fedadam", "fedyogi", "fedadagrad"])
def test_a_state_out_of_its_types_range_is_no_infinity(site: Site, name: str) -> None:
    """The step is small and finite, and the square in the state would spoil every later round."""
    base = site.save({"w": torch.zeros(3)}, "base")
    inputs = site.inputs({"a": {"w": torch.tensor([1.0, 1e21, 1.0])}})
    with pytest.raises(Unmergeable, match="takes w out of the range of its type"):
        site.merge(inputs, name, base=base)
    assert not list(site.folder.glob("out*"))


def test_a_late_model_enters_by_what_it_changed(site: Site) -> None:
    """x + (w − its base): it has not seen what the others did since, and does not undo it."""
    x, old = torch.randn(50), torch.randn(50)
    late, fresh = old + 0.25, x + torch.randn(50)
    base, own = site.save({"w": x}, "base"), site.save({"w": old}, "old")
    inputs = [
        Contribution("late", site.save({"w": late}), base=own, staleness=1),
        Contribution("fresh", site.save({"w": fresh}), base=base),
    ]
    moved = x.double() + (late.double() - old.double())
    with small_pieces():
        merged, _, _ = site.merge(inputs, base=base)
        torch.testing.assert_close(merged["w"], ((moved + fresh) / 2).float())
        buffered, _, _ = site.merge(inputs, "fedbuff", base=base)
    deltas = (late.double() - old.double()) / math.sqrt(2) + (fresh.double() - x.double())
    torch.testing.assert_close(buffered["w"], (x + deltas / 2).float())


@pytest.mark.parametrize(
    "name", ["fedavg", "median", "trimmed-mean", "fedavgm", "fedadam", "fedbuff"]
)
def test_statistics_of_a_late_model_enter_as_they_are(site: Site, name: str) -> None:
    """A variance less what changed since an older base could be negative."""

    def tree(variance: float, weight: float) -> Tree:
        moments = {"state": {0: {"exp_avg_sq": torch.full((50,), variance)}}}
        net = {"bn.running_var": torch.full((50,), variance), "w": torch.full((50,), weight)}
        return {"net": net, "optimizer": moments}

    own, base = site.save(tree(1.0, 1.0)), site.save(tree(0.1, 2.0))
    inputs = [Contribution(j, site.save(tree(0.1, 2.0))) for j in "ab"]
    inputs.append(Contribution("late", site.save(tree(0.1, 1.0)), base=own, staleness=1))
    for small in (False, True):
        with small_pieces() if small else nullcontext():
            merged, _, _ = site.merge(inputs, name, base=base)
        expected = torch.full((50,), 0.1)
        torch.testing.assert_close(merged["net"]["bn.running_var"], expected)
        torch.testing.assert_close(merged["optimizer"]["state"][0]["exp_avg_sq"], expected)
        torch.testing.assert_close(merged["net"]["w"], torch.full((50,), 2.0))


def test_what_no_base_is_taken_for_is_not_compared_with_one(site: Site) -> None:
    """Statistics enter as they are, so that a base's may have another shape, or be lacking."""
    tree = {"w": torch.full((4,), 2.0), "bn.running_var": torch.full((3,), 0.5)}
    base = site.save({"w": torch.full((4,), 1.0), "bn.running_var": torch.ones(2)})
    own = site.save({"w": torch.full((4,), 0.0)})
    inputs = [Contribution("a", site.save(tree)), Contribution("b", site.save(tree), base=own)]
    merged, _, _ = site.merge(inputs, "fedavgm", base=base)
    assert merged["bn.running_var"].tolist() == [0.5] * 3
    assert merged["w"].tolist() == [2.5] * 4  # b is 3 when its change is put on the base


def test_krum_merges_those_that_it_chose_and_nothing_of_the_others(site: Site) -> None:
    torch.manual_seed(0)
    trees = {f"job-{i}": {"w": torch.randn(300), "step": torch.tensor(i)} for i in range(7)}
    trees["job-0"]["w"] += 100
    trees["job-5"]["w"] -= 100
    trees["job-5"]["step"] += 1000
    with small_pieces():
        merged, told, _ = site.merge(site.inputs(trees), "multi-krum", {"f": 2})
    assert len(told.weights) == 3 and not {"job-0", "job-5"} & told.weights.keys()
    chosen = [trees[name] for name in told.weights]
    mean = torch.stack([t["w"].double() for t in chosen]).mean(0)
    torch.testing.assert_close(merged["w"], mean.float())
    assert merged["step"] == max(t["step"] for t in chosen)
    assert sorted(told.scores, key=lambda n: told.scores[n])[-2:] != []
    assert {"job-0", "job-5"} == set(sorted(told.scores, key=lambda n: told.scores[n])[-2:])


# -- the same bytes

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool]
SHAPES = st.lists(st.integers(0, 7), max_size=3).map(tuple)
LEAVES = st.tuples(SHAPES, st.sampled_from(DTYPES))
TREES = st.recursive(
    st.dictionaries(
        st.sampled_from([*"abcd", "step", "running_var"]), LEAVES, min_size=1, max_size=4
    ),
    lambda inner: st.dictionaries(st.sampled_from("pqrs"), inner, min_size=1, max_size=3),
    max_leaves=6,
)


def filled(tree: Any, seed: int) -> Tree:
    """A state dict of this structure; of different seeds also in another order."""
    generator = torch.Generator().manual_seed(seed)
    items = list(tree.items())
    if seed % 2:
        items.reverse()
    found = {}
    for key, what in items:
        if isinstance(what, dict):
            found[key] = filled(what, seed + 1000 * (1 + len(key)))
            continue
        shape, dtype = what
        if dtype.is_floating_point:
            found[key] = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        else:
            least, most = (0, 2) if dtype == torch.bool else (-1000, 1000)
            found[key] = torch.randint(least, most, shape, generator=generator).to(dtype)
    return found


def flat(tree: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


Arrays = np.ndarray[Any, np.dtype[np.float64]]


def moved(rows: Arrays, counts: Arrays, base: Arrays, stepped: bool) -> Arrays:
    mean = np.average(rows, axis=0, weights=counts)
    result: Arrays = base + 0.5 * (mean - base) if stepped else mean
    return result


def trimmed(rows: Arrays) -> Arrays:
    cut = len(rows) // 4
    result: Arrays = np.sort(rows, axis=0)[cut : len(rows) - cut].mean(axis=0)
    return result


ORACLES: dict[str, tuple[dict[str, float], Callable[[Arrays, Arrays, Arrays, bool], Arrays]]] = {
    "fedavg": ({}, lambda rows, counts, base, stepped: moved(rows, counts, base, False)),
    "fedavgm": ({"lr": 0.5, "beta": 0.0}, moved),
    "median": ({}, lambda rows, counts, base, stepped: np.median(rows, axis=0)),
    "trimmed-mean": ({"beta": 0.25}, lambda rows, counts, base, stepped: trimmed(rows)),
}
"""Rules with their parameters and what they are by numpy."""


def check_leaf(value: Tensor, given: list[Tensor], exact: Callable[[], Arrays], key: str) -> None:
    """Whether a merged tensor is what it should be of those of the participants, by their names."""
    assert (value.dtype, value.shape) == (given[0].dtype, given[0].shape)
    if value.dtype.is_floating_point:
        info, wide = torch.finfo(value.dtype), exact()
        step = np.exp2(np.floor(np.log2(np.maximum(np.abs(wide), info.smallest_normal)))) * info.eps
        largest = max((float(t.double().abs().max()) for t in given if t.numel()), default=0.0)
        off = np.abs(value.double().numpy() - wide)
        # Half a step of the output's type, and what float64 loses before it is cast.
        assert (off <= 0.51 * step + 2.0**-48 * largest).all(), (key, off.max())
    elif value.dtype == torch.int64 and (value.numel() == 1 or key.endswith("step")):
        assert torch.equal(value, torch.stack(given).amax(0)), key
    else:
        assert torch.equal(value, given[0]), key


@given(
    tree=TREES,
    counts=st.lists(st.integers(0, 1000), min_size=3, max_size=5).filter(lambda c: sum(c) > 0),
    name=st.sampled_from(list(ORACLES)),
    order=st.randoms(use_true_random=False),
    threads=st.integers(1, 4),
    chunk=st.sampled_from([64, 500, 1 << 20]),
)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_order_threads_and_pieces_give_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory,
    tree: Any,
    counts: list[int],
    name: str,
    order: Any,
    threads: int,
    chunk: int,
) -> None:
    site = Site(tmp_path_factory.mktemp("merge"))
    trees = {f"job-{i}": filled(tree, i) for i in range(len(counts))}
    inputs, start = site.inputs(trees, counts), filled(tree, 99)
    params, oracle = ORACLES[name]
    how: dict[str, Any] = {"base": site.save(start, "base")} if name == "fedavgm" else {}
    merged, told, _ = site.merge(inputs, name, params, threads=1, **how)
    shuffled = list(inputs)
    order.shuffle(shuffled)
    with small_pieces(chunk, 8, 32):
        _, again, _ = site.merge(shuffled, name, params, threads=threads, **how)
    assert again == told
    count = np.array([c for c in counts if c], dtype=np.float64)
    models = [dict(flat(trees[f"job-{i}"])) for i, c in enumerate(counts) if c]
    before = dict(flat(start))
    for key, value in flat(merged):
        given = [model[key] for model in models]

        def exact(key: str = key, given: list[Tensor] = given) -> Arrays:
            rows = np.stack([t.double().numpy() for t in given])
            return oracle(rows, count, before[key].double().numpy(), "running_var" not in key)

        check_leaf(value, given, exact, key)


@pytest.mark.parametrize("name", RULES)
def test_every_rule_gives_the_same_bytes_whatever_the_order(site: Site, name: str) -> None:
    trees = {f"job-{i}": {"w": torch.randn(999), "h": torch.randn(77).half()} for i in range(5)}
    inputs = site.inputs(trees, [3, 1, 4, 1, 5])
    base = site.save({"w": torch.randn(999), "h": torch.randn(77).half()}, "base")
    _, told, _ = site.merge(inputs, name, base=base)
    for threads, turned in ((1, inputs[::-1]), (3, inputs[2:] + inputs[:2])):
        # Distances are summed by pieces, so their last digits depend on how these are cut.
        with nullcontext() if RULES[name].choose else small_pieces():
            _, again, _ = site.merge(turned, name, base=base, threads=threads)
        assert again == told


def test_formats_may_be_mixed_and_the_first_gives_the_outputs(site: Site) -> None:
    tree = {"w": torch.randn(3, 4), "b": torch.randn(3).bfloat16()}
    path = site.folder / "a.safetensors"
    save_file(tree, path)
    inputs = [
        Contribution("b", site.save({k: v + 1 for k, v in tree.items()})),
        Contribution("a", open_checkpoint(path)),
    ]
    out = site.folder / "out.safetensors"
    merge(rule("fedavg"), inputs, str(out))
    merged = load_file(out)
    torch.testing.assert_close(merged["w"], tree["w"] + 0.5)
    assert merged["b"].dtype == torch.bfloat16
