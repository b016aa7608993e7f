"""Means by compiled loops: the same bytes as without them, and the same sentences."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedavg.checkpoint import Checkpoint, open_checkpoint
from fedavg.engine import compiled, kernels
from fedavg.formats.errors import DamagedCheckpoint
from fedavg.merging import Contribution, merge
from fedavg.strategies import rule
from tests.support.waiting import wait_until

pytestmark = pytest.mark.unit

KINDS = [torch.float32, torch.bfloat16]


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Use the loops for merges of any size; what each of their calls answered."""
    assert set(compiled.loops()) == set(KINDS), "this environment should have numba"
    answers: list[bool] = []
    take = compiled.Streams.take

    def recorded(self: compiled.Streams, key: str, start: int, out: Tensor) -> bool:
        found = take(self, key, start, out)
        answers.append(found)
        return found

    monkeypatch.setattr(compiled.Streams, "take", recorded)
    monkeypatch.setattr(compiled, "WORTH", 0)
    yield answers


def saved(folder: Path, count: int, tree: dict[str, Tensor] | None = None) -> list[Contribution]:
    """Models that are saved in a folder, with values of very different sizes."""
    found = []
    for i in range(count):
        torch.manual_seed(i)
        path = folder / f"{i}.pt"
        torch.save(tree or {"w": wild(3, 1001), "b": wild(7).bfloat16(), "s": wild()}, path)
        found.append(Contribution(f"{i:02}", open_checkpoint(path), 100 + 37 * i))
    return found


def wild(*shape: int) -> Tensor:
    return torch.randn(shape) * torch.rand(shape).mul(12).exp()


def merged(inputs: list[Contribution], out: Path, name: str = "fedavg", threads: int = 2) -> bytes:
    merge(rule(name), inputs, str(out), threads=threads)
    return out.read_bytes()


@pytest.mark.parametrize("room", [64, 4096, compiled.ROOM])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 13])
def test_the_bytes_are_those_of_a_merge_without(
    used: list[bool], tmp_path: Path, count: int, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "ROOM", room)
    monkeypatch.setattr(compiled, "LEAST_READ", 16)
    inputs = saved(tmp_path, count)
    with_loops = merged(inputs, tmp_path / "with")
    assert used and all(used)
    monkeypatch.setattr(compiled, "WORTH", 1 << 60)
    assert with_loops == merged(inputs, tmp_path / "without")


@pytest.mark.parametrize(("counts", "fits"), [
    ([3, 7 << 40, 5], True), ([0.1, 0.7, 0.3], False), ([10**12 + 1, 10**12 + 3, 7], False),
    ([2.0**-600, 3 * 2.0**-600, 1], False),
])  # fmt: skip
def test_weights_whose_products_would_be_rounded_go_the_usual_way(
    used: list[bool],
    tmp_path: Path,
    counts: list[float],
    fits: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What remains where models cancel shows how their products were rounded."""
    torch.manual_seed(1)
    values = [torch.randn(5000), torch.randn(5000)]
    left = counts[0] * values[0].double() + counts[1] * values[1].double()
    inputs = []
    for i, x in enumerate([*values, (-left / counts[2]).float()]):
        torch.save({"w": x, "b": x.bfloat16()}, tmp_path / f"{i}.pt")
        inputs.append(Contribution(str(i), open_checkpoint(tmp_path / f"{i}.pt"), counts[i]))
    with_loops = merged(inputs, tmp_path / "with")
    assert (bool(used) and all(used)) is fits
    monkeypatch.setattr(compiled, "WORTH", 1 << 60)
    assert with_loops == merged(inputs, tmp_path / "without")


@pytest.mark.parametrize(
    ("number", "bits"),
    [(1.0, 1), (3.0, 2), (0.625, 3), (2.0**-1074, 1), (1 / 3, 53), (0.1, 52)],
)
def test_the_significant_bits_of_a_weight(number: float, bits: int) -> None:
    assert compiled.significant_bits(number) == bits


def test_more_models_than_a_process_may_open_go_the_usual_way(
    used: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "MOST_MODELS", 3)
    merged(saved(tmp_path, 3), tmp_path / "few")
    assert used and all(used)
    used.clear()
    merged(saved(tmp_path, 4), tmp_path / "many")
    assert not any(used)


@pytest.mark.parametrize("kind", KINDS)
def test_halves_go_to_even_and_overflow_is_not_hidden(
    used: list[bool], tmp_path: Path, kind: torch.dtype
) -> None:
    step = 2.0 ** -(7 if kind == torch.bfloat16 else 23)
    pairs = [(1.0, 1 + step), (1 + step, 1 + 2 * step), (-1.0, -1 - step), (0.0, -0.0)]
    inputs = []
    for i, column in enumerate(zip(*pairs, strict=True)):
        path = tmp_path / f"{i}.pt"
        torch.save({"w": torch.tensor(column, dtype=kind)}, path)
        inputs.append(Contribution(str(i), open_checkpoint(path), 1))
    merged(inputs, tmp_path / "out")
    found = torch.load(tmp_path / "out", weights_only=True)["w"]
    assert found.tolist() == [1.0, 1 + 2 * step, -1.0, 0.0] and all(used)

    for i in range(2):
        torch.save({"w": torch.tensor([1.0, float("inf") if i else 1.0], dtype=kind)},
                   tmp_path / f"{i}.pt")  # fmt: skip
    spoilt = [Contribution(str(i), open_checkpoint(tmp_path / f"{i}.pt"), 1) for i in range(2)]
    with pytest.raises(Exception, match=r"1.*w.*finite"):
        merged(spoilt, tmp_path / "none")


def test_what_does_not_lie_in_a_row_goes_the_usual_way(used: list[bool], tmp_path: Path) -> None:
    inputs = saved(tmp_path, 3, {"turned": wild(40, 30).T, "plain": wild(9)})
    merged(inputs, tmp_path / "out")
    assert sorted(used) == [False, True]
    found = torch.load(tmp_path / "out", weights_only=True)
    assert found["turned"].shape == (30, 40)


def test_a_file_that_was_cut_is_named(used: list[bool], tmp_path: Path) -> None:
    inputs = saved(tmp_path, 3)
    os.truncate(tmp_path / "1.pt", 5000)
    with pytest.raises(DamagedCheckpoint, match=r"1\.pt"):
        merged(inputs, tmp_path / "out")
    assert False in used and not (tmp_path / "out").exists()


def test_what_is_not_in_memory_is_fetched(tmp_path: Path) -> None:
    """As far as the filesystem says what is in memory; one that lives there always has it."""
    size, room = 1 << 20, np.zeros((1, 16), np.uint8)
    fetch: Any = kernels.fetch  # compiled, of which the types know nothing
    (tmp_path / "file").write_bytes(bytes(size))
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        what = [np.array([number], np.int64) for number in (fd, 0, size)]
        assert fetch(*what, room) == 0, "what was just written is there"
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if fetch(*what, room):
            wait_until(lambda: not fetch(*what, room) or None, what="the file in memory")
        lost = [np.array([number], np.int64) for number in (-1, 0, size)]
        assert fetch(*lost, room) == 1, "whose error is told by who reads it"
    finally:
        os.close(fd)


def test_other_types_and_rules_do_without(used: list[bool], tmp_path: Path) -> None:
    inputs = saved(tmp_path, 3, {"w": wild(9).half(), "d": wild(9).double()})
    merged(inputs, tmp_path / "out")
    merged(inputs, tmp_path / "median", "median")
    assert used == [False] * 4


def test_small_merges_do_not_load_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "loops", lambda: pytest.fail("loaded for some bytes"))
    merged(saved(tmp_path, 2), tmp_path / "out")


@pytest.mark.parametrize("fault", [ImportError("no numba"), RuntimeError("unknown processor")])
def test_where_numba_is_missing_or_broken_merges_do_without(
    fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def find_spec(self, name: str, path: object, target: object = None) -> None:
            if name == "fedavg.engine.kernels":
                raise fault

    monkeypatch.delitem(sys.modules, "fedavg.engine.kernels", raising=False)
    monkeypatch.delattr("fedavg.engine.kernels", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    assert compiled.loops.__wrapped__() == {}


def test_a_damaged_cache_of_numba_is_done_without(tmp_path: Path) -> None:
    code = "from fedavg.engine.compiled import loops; print(len(loops()))"
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    for damaged in ("nbi", "nbc", "nbi"):
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        )
        assert done.stdout == "2\n" and not done.stderr, done
        kept = list(tmp_path.rglob(f"*.{damaged}"))
        assert kept, "nothing was kept, so nothing can be damaged"
        for path in kept:
            os.truncate(path, 0)


def test_descriptors_are_given_back(used: list[bool], tmp_path: Path) -> None:
    inputs = saved(tmp_path, 3)
    merged(inputs, tmp_path / "out")
    opened: list[Checkpoint] = [given.checkpoint for given in inputs]
    before = len(os.listdir("/proc/self/fd"))
    for checkpoint in opened:
        checkpoint.close()
    assert len(os.listdir("/proc/self/fd")) == before - 3
