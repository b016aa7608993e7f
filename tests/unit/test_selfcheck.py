"""Loops that compute otherwise than torch are found when they are loaded, and not used."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fedavg.engine import compiled, kernels, selfcheck

pytestmark = pytest.mark.unit

LOOPS = {torch.float32: kernels.mean_of_floats, torch.bfloat16: kernels.mean_of_bfloats}


def values(out: Any) -> Any:
    """A loop's result as float32."""
    return out if out.dtype == np.float32 else (out.astype(np.uint32) << 16).view(np.float32)


def backwards(loop: Any, fds: Any, offsets: Any, *args: Any) -> None:
    """Adds the models in the other order, as another library may."""
    lengths, room, weights, *rest = args
    turned = [np.ascontiguousarray(a[::-1]) for a in (fds, offsets, weights)]
    loop(turned[0], turned[1], lengths, room, turned[2], *rest)


def flushing(loop: Any, *args: Any) -> None:
    """Has no subnormal numbers."""
    loop(*args)
    args[-1][np.abs(values(args[-1])) < np.finfo(np.float32).tiny] = 0


def hiding(loop: Any, *args: Any) -> None:
    """Makes infinity the greatest number."""
    loop(*args)
    out = args[-1]
    out[np.isinf(values(out))] = np.finfo(np.float32).max if out.dtype == np.float32 else 0x7F7F


def away(loop: Any, *args: Any) -> None:
    """Rounds up where it should go to even, as a sum that is a little too large does."""
    *given, factor, out = args
    little = 2.0**-50 if out.dtype == np.float32 else 2.0**-20
    loop(*given, factor * (1 + little), out)


def late(loop: Any, fds: Any, offsets: Any, *rest: Any) -> None:
    """Reads from the wrong place."""
    loop(fds, offsets + rest[-1].itemsize, *rest)


@pytest.mark.parametrize("kind", LOOPS)
@pytest.mark.parametrize("wrong", [backwards, flushing, hiding, away, late])
def test_what_is_computed_otherwise_is_found(kind: torch.dtype, wrong: Callable[..., None]) -> None:
    loop = LOOPS[kind]
    told = selfcheck.differing({kind: lambda *args: wrong(loop, *args)}, compiled._array)
    assert told is not None and str(kind) in told and "instead of" in told


def test_these_loops_pass_and_leave_torch_as_it_was() -> None:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    assert selfcheck.differing(LOOPS, compiled._array) is None
    assert torch.get_num_threads() == threads and torch.equal(torch.get_rng_state(), state)


def test_loops_that_differ_are_told_of_once_and_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop = kernels.mean_of_bfloats
    monkeypatch.setattr(kernels, "mean_of_bfloats", lambda *args: flushing(loop, *args))
    caplog.set_level(logging.WARNING)
    compiled.loops.cache_clear()
    try:
        assert compiled.loops() == {} and compiled.loops() == {}
        (said,) = [record.getMessage() for record in caplog.records]
        assert "torch.bfloat16" in said
    finally:
        compiled.loops.cache_clear()


def test_a_check_that_cannot_be_made_stops_no_merge(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: Any) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(selfcheck, "differing", broken)
    assert compiled.loops.__wrapped__() == {}
    assert "No space left on device" in caplog.text
