"""The decisions inside a client: batch sizes, pauses, silence, and what "submitted" means."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsworker.client import liveness
from fsworker.client.liveness import Liveness
from fsworker.client.outbound import fitting
from fsworker.client.pace import FIRST, LATER, SOON, Pace
from fsworker.client.sizing import UNKNOWN, Sizer
from fsworker.client.submitter import Submitter
from fsworker.errors import NoWorkers, StorageError
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Token
from tests.support.small_worker import SmallWorker, make_run

# -- sizes


def test_sizes_follow_what_tasks_take() -> None:
    sizer = Sizer(4096, 2)
    assert sizer.choose(None) == UNKNOWN
    for _ in range(20):
        sizer.learn(64, 64 * 5e-6)
    assert sizer.choose(None) == 4096
    for _ in range(40):
        sizer.learn(10, 10 * 2.0)
    assert sizer.choose(None) == 1


def worked(sizer: Sizer, batches: int, overhead: float, each: float) -> list[int]:
    """The sizes of so many batches that take a fixed time and one for each task."""
    sizes = []
    for _ in range(batches):
        sizes.append(sizer.choose(None))
        sizer.learn(sizes[-1], overhead + each * sizes[-1])
    return sizes


@pytest.mark.parametrize("overhead", [0.3, 0.9])
def test_slow_storage_does_not_make_batches_small(overhead: float) -> None:
    sizer = Sizer(4096, 2)
    for _ in range(40):  # a bad moment
        sizer.learn(3, 1.5)
    assert sizer.choose(None) <= 3
    assert min(worked(sizer, 400, overhead, 1e-4)[-100:]) > 200, "where 2,000 tasks take 0.2 s"


@pytest.mark.parametrize(("each", "most"), [(0.1, 2), (0.02, 10), (2.0, 1)])
def test_larger_batches_are_tried_now_and_then_and_cost_little(each: float, most: int) -> None:
    sizes = worked(Sizer(4096, 2), 400, 0.01, each)[-160:]
    assert sorted(sizes)[140] <= most, "nine of ten are as small as ever"
    assert max(sizes) <= 4 * most


@pytest.mark.parametrize(
    ("waiting", "size"), [(1, 8), (100, 50), (128, 64), (1000, 64), (None, 64), (10, 8)]
)
def test_few_tasks_are_spread_over_the_shards(waiting: int | None, size: int) -> None:
    assert Sizer(4096, 2).choose(waiting) == size


@pytest.mark.parametrize("elapsed", [None, "x", float("nan"), float("inf"), 0, -1, True])
def test_durations_that_are_none_do_no_harm(elapsed: Any) -> None:
    sizer = Sizer(100, 1)
    for _ in range(100):
        sizer.learn(50, elapsed)
        sizer.learn(0, 1.0)
        assert 1 <= sizer.choose(None) <= 100


def test_a_limit_is_never_exceeded() -> None:
    assert Sizer(5, 3).choose(None) == 5 and Sizer(1, 3).choose(1000) == 1


@pytest.mark.parametrize(
    ("sizes", "count"), [([], 0), ([5, 5], 2), ([9, 9], 1), ([20, 1], 1), ([1] * 20, 10)]
)
def test_a_batch_is_full_by_its_bytes(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], count: int
) -> None:
    monkeypatch.setattr("fsworker.client.outbound.MAX_BATCH_BYTES", 10)
    assert fitting([b"x" * size for size in sizes]) == count


def test_pauses_grow_and_begin_anew() -> None:
    pace = Pace()
    pauses = [pace.next() for _ in range(400)]
    assert pauses[0] == FIRST and pauses == sorted(pauses)
    assert SOON in pauses and pauses[-1] == LATER
    pace.reset()
    assert pace.next() == FIRST


# -- silence


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def worker(tmp_path: Path) -> SmallWorker:
    return SmallWorker(make_run(tmp_path / "run"), {})


def _silent_for(watch: Liveness, clock: Clock, limit: float, act: Callable[[], object]) -> float:
    """How long until it gives up, with `act` before every look."""
    start = clock.now
    while clock.now < start + limit:
        clock.now += 1.0
        act()
        if watch.check() is not None:
            return clock.now - start
    return limit


def test_silence_is_counted_until_the_limit(worker: SmallWorker, clock: Clock) -> None:
    worker.beat()
    watch = Liveness(worker.store, 60.0, clock)
    assert 58 <= _silent_for(watch, clock, 200, lambda: None) <= 64
    watch = Liveness(worker.store, None, clock)
    assert _silent_for(watch, clock, 200, lambda: None) == 200


def test_a_beat_or_a_result_ends_the_silence(worker: SmallWorker, clock: Clock) -> None:
    watch = Liveness(worker.store, 10.0, clock)
    assert _silent_for(watch, clock, 200, worker.beat) == 200
    assert _silent_for(watch, clock, 200, watch.heard) == 200
    assert _silent_for(watch, clock, 200, lambda: None) < 20


def test_a_new_life_counts_as_a_beat(worker: SmallWorker, clock: Clock) -> None:
    watch = Liveness(worker.store, 10.0, clock)

    def respawn() -> None:
        worker.owner = layout.Owner("h0", layout.new_incarnation())
        worker.seq = 0
        worker.beat()

    assert _silent_for(watch, clock, 100, respawn) == 100


def test_a_process_that_was_frozen_looks_again_before_it_gives_up(
    worker: SmallWorker, clock: Clock
) -> None:
    watch = Liveness(worker.store, 60.0, clock)
    worker.beat()
    clock.now += 3.0
    assert watch.check() is None
    clock.now += 3600.0  # SIGSTOP, a suspended machine
    assert watch.check() is None
    assert _silent_for(watch, clock, 200, lambda: None) > 30


@pytest.mark.parametrize("content", [b"", b"{", b"null", b'{"format": "2.0"}', b"\0" * 50])
def test_a_heartbeat_that_cannot_be_read_is_no_beat_and_no_error(
    worker: SmallWorker, clock: Clock, content: bytes
) -> None:
    worker.beat()
    watch = Liveness(worker.store, 10.0, clock)
    (Path(worker.store.root) / layout.status_path("h0")).write_bytes(content)
    assert _silent_for(watch, clock, 100, lambda: None) < 20


def test_a_storage_that_does_not_answer_is_told_apart(
    worker: SmallWorker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scan(self: Store, folder: str) -> list[str]:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    watch = Liveness(worker.store, 10.0, clock)
    monkeypatch.setattr(Store, "scan", scan)
    clock.now += 3
    assert watch.check() is None
    while (reason := watch.check()) is None:
        clock.now += 1
    assert isinstance(reason, StorageError) and "Input/output error" in str(reason)


def test_looks_are_rare(worker: SmallWorker, clock: Clock) -> None:
    watch = Liveness(worker.store, 60.0, clock)
    before = sum(worker.store.calls.values())
    for _ in range(1000):
        clock.now += 0.01
        watch.check()
    looks = 10 / liveness.LOOK_EVERY
    assert sum(worker.store.calls.values()) - before <= 2 * looks
    worker.beat()
    assert not isinstance(watch.check(), NoWorkers)


# -- submitted or not


TOKEN = Token("s-0123456789ab-0", 0)


def _inbox(store: Store) -> list[str]:
    return store.scan(layout.inbox_dir(0))


def test_a_rename_that_lies_has_submitted(
    worker: SmallWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Store.rename

    def rename(self: Store, source: str, target: str) -> None:
        real(self, source, target)
        raise OSError(errno.EIO, "it says it failed")

    submitter = Submitter(worker.store, "u", patience=0.05)
    submitter.prepare(TOKEN, b"data")
    monkeypatch.setattr(Store, "rename", rename)
    submitter.enqueue(TOKEN)
    submitter.enqueue(TOKEN)  # and again: nothing more happens
    assert _inbox(worker.store) == ["s-0123456789ab-0.0.0"]


@pytest.mark.parametrize("withdraw", [True, False])
def test_a_rename_that_is_refused_for_good(
    worker: SmallWorker, monkeypatch: pytest.MonkeyPatch, withdraw: bool
) -> None:
    def rename(self: Store, source: str, target: str) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    submitter = Submitter(worker.store, "u", patience=0.05, withdraw=withdraw)
    submitter.prepare(TOKEN, b"data")
    with monkeypatch.context() as patch:
        patch.setattr(Store, "rename", rename)
        with pytest.raises(StorageError, match="refuses to rename"):
            submitter.enqueue(TOKEN)
    assert len(_inbox(worker.store)) == (0 if withdraw else 1)
    if not withdraw:
        submitter.enqueue(TOKEN)
        assert _inbox(worker.store) == ["s-0123456789ab-0.0.0"]


def test_trouble_that_passes_is_waited_for(
    worker: SmallWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_put, real_rename, failures = Store.put, Store.rename, [5]

    def flaky(real: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any, **kwargs: Any) -> None:
            failures[0] -= 1
            if failures[0] % 2:
                raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            real(*args, **kwargs)

        return call

    monkeypatch.setattr(Store, "put", flaky(real_put))
    monkeypatch.setattr(Store, "rename", flaky(real_rename))
    submitter = Submitter(worker.store, "u")
    submitter.prepare(TOKEN, b"data")
    submitter.enqueue(TOKEN)
    assert worker.store.read(layout.inbox_path(TOKEN)) == b"data"
