"""What a request to cancel means, and what it does not."""

from __future__ import annotations

import pytest

from fsworker.protocol import layout
from fsworker.protocol.records.cancel import CancelRequest

pytestmark = pytest.mark.unit

CLIENT = "c0ffee000001"


def batch(seq: int, stream: str = "s", client: str = CLIENT) -> str:
    return layout.batch_id(stream, client, seq)


def test_a_batch_or_some_of_its_tasks() -> None:
    whole = CancelRequest("all of it", batch(3))
    assert list(whole.indexes(batch(3), 4)) == [0, 1, 2, 3]
    assert list(whole.indexes(batch(4), 4)) == []
    some = CancelRequest("two of it", batch(3), (2, 7, 0, -1))
    assert list(some.indexes(batch(3), 4)) == [2, 0]
    assert not some.covers(batch(2))


def test_a_stream_means_what_was_there_and_not_what_comes() -> None:
    request = CancelRequest("s", upto={f"s-{CLIENT}": 10})
    assert list(request.indexes(batch(10), 2)) == [0, 1]
    assert request.covers(batch(0))
    assert not request.covers(batch(11))
    assert not request.covers(batch(3, client="c0ffee000002"))
    assert not request.covers(batch(3, stream="t"))


def test_it_is_read_back_as_it_was_written() -> None:
    request = CancelRequest("x", batch(1), (1, 2), {f"s-{CLIENT}": 4})
    assert CancelRequest.from_json(request.to_json(), "f") == request


@pytest.mark.parametrize("stream", ["s", "a/b ~:é", "x-" + "0" * 12 + "-1", "n" * 160])
def test_the_name_of_its_file_says_whom_it_concerns(stream: str) -> None:
    for target in (layout.encode(stream), batch(9, stream)):
        folder, _, name = layout.cancel_path(target, "0a1b2c3d").rpartition("/")
        assert folder == "ctl/cancel"
        assert layout.parse_cancel_name(name) == target
        # A temporary's name has to fit as well.
        assert len(layout.temporary(name, "4194304-0a1b2c3d")) <= 255


@pytest.mark.parametrize("name", [".nfs0001", ".tmp~1-a~x~0a1b2c3d", "x", "x~1", "a.b~0a1b2c3d"])
def test_other_files_are_no_requests(name: str) -> None:
    assert layout.parse_cancel_name(name) is None
