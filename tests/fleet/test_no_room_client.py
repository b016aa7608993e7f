"""A client on a disk that is really full: what it is given to send waits, and is sent."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsworker.client import Client
from tests.fleet.test_no_room import fill
from tests.support.folders import tiny_filesystem
from tests.support.small_worker import SmallWorker, make_run
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tiny filesystem needs root"),
]

FIRST = "tests.fn:first"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with tiny_filesystem(tmp_path / "small", 2) as place:
        yield place


@pytest.mark.parametrize("stream", [None, "named"])
def test_what_is_sent_to_a_full_disk_waits_for_room(
    small: Path, stream: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """With a name it keeps a journal of ids as well, which finds no room either."""
    caplog.set_level(logging.DEBUG, "fsworker.client.submitter")
    root = make_run(small / "run")
    worker = SmallWorker(root, {FIRST: lambda x=None: x})
    with Client(root, stream=stream) as client:
        fill(small)
        futures = [
            client.submit(FIRST, bytes(i)) if stream is None
            else client.submit_as(f"id {i}", FIRST, bytes(i))
            for i in range(20)
        ]  # fmt: skip
        wait_until(lambda: caplog.text.count("No space left") >= 3, what="refusals")
        assert not any(future.done() for future in futures)
        (small / "filler").unlink()
        with worker:
            assert [future.result(120) for future in futures] == [bytes(i) for i in range(20)]
    assert worker.calls[FIRST] == 20
