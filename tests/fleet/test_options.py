"""Options of tasks with real workers: retries in the slot, limits on waiting, who goes first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fsworker.client.executor import Client, TaskError, TaskExpired, TaskTimeout
from fsworker.protocol import turns
from tests.support import client_functions
from tests.support.fleet import NOTE, Fleet
from tests.support.waiting import Spawned, wait_until

pytestmark = pytest.mark.fleet


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Spawned() as spawned:
        allow = ("tests.support.client_functions.*",)
        yield Fleet(tmp_path / "run", spawned, (NOTE,), allow=allow)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_what_raises_is_tried_again_by_count_type_and_delay(fleet: Fleet, tmp_path: Path) -> None:
    fleet.start("h0")
    flaky = client_functions.flaky
    with Client(fleet.root) as client:
        patient = client.with_options(retries=2, retry_on=["OSError"], retry_delay=0.2)
        good, slow, bad, other = (str(tmp_path / name) for name in ("good", "slow", "bad", "other"))
        assert patient.submit(flaky, good, 2, "OSError", [1]).result(120) == [1, "x"]
        assert len(_lines(tmp_path / "good")) == 3
        times = [float(line) for line in _lines(tmp_path / "good")]
        assert times[1] - times[0] >= 0.2 and times[2] - times[1] >= 0.2
        # Neighbours in one batch: each is tried again for itself, the timeout is for each try.
        hasty = client.with_options(retries=9, timeout=0.6)
        mapped = hasty.map(client_functions.flaky, [slow] * 2, [3, 3], ["ValueError"] * 2, [[]] * 2)
        assert list(mapped) == [["x"], ["x"]]
        assert isinstance(patient.submit(flaky, bad, 5, "OSError", []).exception(120), OSError)
        assert len(_lines(tmp_path / "bad")) == 3
        error = patient.submit(flaky, other, 5, "KeyError", []).exception(120)
        assert isinstance(error, TaskError) and error.type == "KeyError"
        assert len(_lines(tmp_path / "other")) == 1
        stuck = client.with_options(retries=9, retry_delay=0.1, timeout=0.5)
        assert isinstance(stuck.submit(NOTE, other, 1, 30).exception(120), TaskTimeout)


def test_a_task_that_waited_too_long_is_answered_and_never_run(
    fleet: Fleet, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    with Client(fleet.root) as client:
        hurried = client.with_options(queue_limit=0.2)
        late = [hurried.submit(NOTE, str(notes), i) for i in range(5)]
        lenient = client.with_options(queue_limit=600).submit(NOTE, str(notes), 10)
        usual = client.submit(NOTE, str(notes), 11)
        sent = wait_until(lambda: [f for f in fleet.files() if "/.tmp" not in f] or None)
        wait_until(lambda: client._store.server_time("inbox") > _newest(sent) + 0.3)
        fleet.start("h0", "h1")
        for future in late:
            error = future.exception(120)
            assert isinstance(error, TaskExpired) and "is its limit" in str(error)
        assert (lenient.result(120), usual.result(120)) == (10, 11)
    assert sorted(_lines(notes)) == ["10", "11"]
    assert not fleet.files()


def _newest(files: list[str]) -> float:
    return max((Path(f).stat().st_mtime for f in files if Path(f).exists()), default=0.0)


def test_what_is_urgent_overtakes_what_was_sent_before(fleet: Fleet, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    with Client(fleet.root, batch_size=1) as client:
        usual = [client.submit(NOTE, str(notes), i, 0.05) for i in range(40)]
        last = [client.with_options(priority=-1).submit(NOTE, str(notes), 200)]
        first = [client.with_options(priority=1).submit(NOTE, str(notes), 100 + i) for i in (0, 1)]
        wait_until(lambda: _waiting(fleet, 4) == 2 and _waiting(fleet, 5) > 2)
        assert not _waiting(fleet, 6), "what is not urgent leaves room to others"
        fleet.start("h0", "h1")
        for future in (*usual, *first, *last):
            future.result(120)
    order = [int(line) for line in _lines(notes)]
    assert {order.index(100), order.index(101)} <= set(range(20))
    assert order.index(200) >= 30


def _waiting(fleet: Fleet, lane: int) -> int:
    """How many batches lie in the inboxes with this lane in their number."""
    names = [Path(f).name.partition(".")[0] for f in fleet.files() if "/.tmp" not in f]
    return sum(turns.turn_of(name)[0] == lane for name in names)
