"""Arguments that are too large for a batch, as files of their own, with real workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import fsworker
from fsworker.client.executor import Client, NotSent, TaskError
from fsworker.protocol import packing
from tests.support import client_functions
from tests.support.fleet import NOTE, Fleet
from tests.support.waiting import Spawned

pytestmark = pytest.mark.fleet


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Spawned() as spawned:
        allow = ("tests.support.client_functions.*",)
        yield Fleet(tmp_path / "run", spawned, (NOTE,), allow=allow)


def test_what_is_too_large_is_told_the_way_and_goes_it(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsworker.taskpack.MAX_RECORD", 10_000)
    fleet.start("h0")
    large = np.arange(100_000)
    with Client(fleet.root) as client:
        error = client.submit(client_functions.total, large).exception(1)
        assert isinstance(error, NotSent) and "fsworker.Blob" in str(error)
        blob = fsworker.Blob(large)
        future = client.submit_as("a", client_functions.total, blob, more=fsworker.Blob([1, 2]))
        assert future.result(120) == int(large.sum()) + 3
        patient = client.with_options(retries=1)
        assert patient.submit(client_functions.total, blob, fail_once=True).result(120) > 3
        unpackable = client.submit(client_functions.total, fsworker.Blob({1})).exception(1)
        assert isinstance(unpackable, NotSent) and "a set cannot be sent" in str(unpackable)
        inside = client.submit(client_functions.total, [fsworker.Blob(1)]).exception(1)
        assert isinstance(inside, NotSent) and "Blob cannot be sent" in str(inside)
    assert not fleet.files(), "blobs go with their tasks"


@pytest.mark.parametrize("spoil", ["gone", "cut", "elsewhere"])
def test_a_blob_that_is_not_what_was_sent_fails_its_task_alone(fleet: Fleet, spoil: str) -> None:
    with Client(fleet.root, stream="s") as client:
        if spoil == "elsewhere":
            shelf = client._running().shelf
            shelf._put = _elsewhere  # type: ignore[method-assign]
        future = client.submit(client_functions.total, fsworker.Blob([1] * 100))
        fine = client.submit(client_functions.total, [1, 2])
        for path in (fleet.root / "outbox" / "s").glob(".blob~*"):
            path.unlink()
            if spoil == "cut":
                path.write_bytes(b"\x01")
        fleet.start("h0")
        error = future.exception(120)
        assert isinstance(error, TaskError) and error.status == "invalid"
        words = {"gone": "cannot be read", "cut": "is not what was sent"}
        assert words.get(spoil, "is not the place of a blob") in error.remote_message
        assert fine.result(120) == 3


def _elsewhere(value: object, paths: list[str]) -> object:
    return packing.Reference("../../../etc/passwd", 1, 1)
