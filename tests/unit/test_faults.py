"""Who is named when a rule leaves the range of the type with values that are all finite."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from fedavg.checkpoint import Checkpoint, open_checkpoint
from fedavg.engine import pieces
from fedavg.engine.faults import OutOfRange
from fedavg.merging import Contribution, merge
from fedavg.strategies import rule

pytestmark = pytest.mark.unit

MOST = 1.7e308
"""Nearly the largest of float64: twice as much is infinite."""
STEP: Mapping[str, Any] = {"lr": 1e38}


def saved(path: Path, values: float | list[float], dtype: torch.dtype) -> Checkpoint:
    torch.save({"w": torch.tensor(values, dtype=dtype).view(-1)}, path)
    return open_checkpoint(path)


def farthest(
    folder: Path,
    models: Mapping[str, float | list[float]],
    *,
    by: str = "fedavgm",
    params: Mapping[str, Any] | None = None,
    base: float | list[float] | None = None,
    counts: Mapping[str, float] | None = None,
    started: Mapping[str, float] | None = None,
    dtype: torch.dtype = torch.float64,
) -> str:
    """Who is named of these models; `started` are the bases of those who are late."""
    own = {n: saved(folder / f"{n}.own", v, dtype) for n, v in (started or {}).items()}
    inputs = [
        Contribution(n, saved(folder / n, v, dtype), (counts or {}).get(n), own.get(n))
        for n, v in models.items()
    ]
    of = rule(by, params)
    state = str(folder / "state") if of.kind.state else None
    moved = None if base is None else saved(folder / "base", base, dtype)
    with pytest.raises(OutOfRange) as error:
        merge(of, inputs, str(folder / "out"), base=moved, state_out=state)
    assert f"{error.value.farthest} is the farthest" in str(error.value)
    return error.value.farthest


def test_a_difference_counts_by_its_weight(tmp_path: Path) -> None:
    given: dict[str, Any] = {"params": STEP, "base": 0.0, "dtype": torch.float32}
    models = {"a": 10.0, "b": 9.0}
    assert farthest(tmp_path, models, counts={"a": 1, "b": 1000}, **given) == "b"
    assert farthest(tmp_path, models, counts={"a": 1, "b": 1}, **given) == "a"


def test_of_differences_that_float64_cannot_hold_the_largest_is_told(tmp_path: Path) -> None:
    assert farthest(tmp_path, {"a": 0.5 * MOST, "b": MOST}, base=-MOST) == "b"


@pytest.mark.parametrize("sign", [1, -1])
def test_of_two_it_is_the_one_with_the_larger_value(tmp_path: Path, sign: int) -> None:
    """A median of two would be one of them, who then were no distance from it."""
    for name, other in ("ab", "ba"):
        models = {name: sign * MOST, other: sign * 0.9 * MOST}
        assert farthest(tmp_path, models, by="trimmed-mean") == name


def test_of_three_it_is_the_one_farthest_from_the_median(tmp_path: Path) -> None:
    models = {"a": MOST, "b": 0.95 * MOST, "c": 0.1 * MOST}
    assert farthest(tmp_path, models, by="trimmed-mean") == "c"


def test_a_distance_that_is_no_number_is_none_that_is_small(tmp_path: Path) -> None:
    """Two moved themselves out of the range, and infinity less infinity is no number."""
    models, started = {"a": MOST, "b": MOST, "c": 1.0}, {"a": -MOST, "b": -MOST}
    assert farthest(tmp_path, models, by="fedavg", base=0.0, started=started) == "a"


def test_only_the_first_piece_that_leaves_the_range_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "CHUNK", 512)
    monkeypatch.setattr(pieces, "SMALLEST", 8)
    elements = 1000
    a, b = [0.0] * elements, [0.0] * elements
    a[0], b[-1] = 100.0, 1e6
    given: dict[str, Any] = {"params": STEP, "base": [0.0] * elements, "dtype": torch.float32}
    assert farthest(tmp_path, {"a": a, "b": b}, **given) == "a"
