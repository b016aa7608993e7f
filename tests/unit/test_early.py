"""Early results and work that lies behind a long task: when which is let go. Tables, no clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsworker.loop import intake
from fsworker.loop.custody import Custody
from fsworker.loop.early import Early
from fsworker.loop.heartbeat import Counters
from fsworker.loop.intake import Intake
from fsworker.protocol import layout, ledger, packing, segment
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Owner, Token
from fsworker.protocol.records.run import Manifest, WorkerSpec
from fsworker.protocol.segment import Segment
from tests.unit.test_custody import Idle

pytestmark = pytest.mark.unit

ME = Owner("n1", "a" * 12)


def published(counts: list[int], step: float = 0.25) -> list[float]:
    """When a batch publishes that has finished so many tasks at each look."""
    found, times = Early(0.0), []
    for turn, count in enumerate(counts, 1):
        if found.is_due(turn * step, count) and count > found.published:
            found.did(count - found.published)
            times.append(turn * step)
    return times


def test_what_goes_on_is_published_after_two_seconds_and_ever_more_seldom() -> None:
    assert published(list(range(1, 60))) == [2.0, 4.0, 7.0, 11.5]


def test_what_waits_for_a_straggler_is_published_at_once() -> None:
    assert published([3, 7, 9, 9, 9, 9, 9, 9]) == [1.0]  # and not again
    assert published([0, 0, 0, 0, 0, 0, 0, 0, 0, 0]) == []


def test_tasks_that_are_all_slow_do_not_publish_each_for_itself() -> None:
    slow = [n // 4 for n in range(1, 400)]  # one a second
    times = published(slow)
    assert len(times) < 25, times


def test_somebody_who_waits_gets_what_there_is() -> None:
    found = Early(0.0)
    assert not found.is_due(0.1, 1)
    found.hurry()
    assert found.is_due(0.2, 2)


class HeldUp(Idle):
    """An executor whose slots are all at tasks that take long."""

    held_up = True

    def room(self) -> int:
        return 0


def test_what_has_not_begun_behind_a_long_task_is_given_to_others(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for folder in (*layout.FOLDERS, layout.inbox_dir(0), layout.outbox_dir("s"), ME.folder):
        store.mkdir(folder)
    batch = segment.encode(Segment(segment.BATCH, {"stream": "s"}, [packing.pack([None, []])]))
    tokens = [Token(layout.batch_id("s", "c" * 12, i), 0, 1, 0) for i in range(3)]
    for token in tokens:
        store.put(layout.claim_path(ME, token), batch)
    manifest = Manifest("r", "m:f", 1, (WorkerSpec("n1", 0),))
    executor = HeldUp()
    custody = Custody(store, manifest, ME, executor, Intake(store, manifest, "n1", 0), Counters())
    custody.check_folder(0.0)
    (begun,) = [work for work in executor.works if tokens[1].batch in work.key]
    begun.started = True
    custody.turn(1.0, [])
    assert [t.batch for t in store.run(ledger.adopt(ME))] == [tokens[1].batch]
    back = sorted(store.scan(layout.inbox_dir(0)))
    assert back == sorted(f"{t.batch}.1.0" for t in (tokens[0], tokens[2]))


def test_foreign_shards_are_looked_at_often_while_a_run_is_in_use(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for shard in range(4):
        store.mkdir(layout.inbox_dir(shard)) if shard else (
            store.mkdir(layout.INBOX),
            store.mkdir(layout.inbox_dir(0)),
        )
    workers = tuple(WorkerSpec(f"n{i}", i) for i in range(4))
    found = Intake(store, Manifest("r", "m:f", 4, workers), "n0", 0)
    token = Token(layout.batch_id("s", "c" * 12, 0), 0)
    store.put(layout.inbox_path(token), b"")
    now = 0.0
    assert found.next(now, steal=True) == token
    found.took(token, won=True, now=now)
    store.remove(layout.inbox_path(token))
    while now < intake.AWAKE / 2:
        assert found.next(now, steal=True) is None
        now = max(found.due, now + 1e-6)
    other = Token(layout.batch_id("s", "c" * 12, 1), 2)
    store.put(layout.inbox_path(other), b"")
    begun = now
    while found.next(now, steal=True) is None:
        now = max(found.due, now + 1e-6)
    assert now - begun <= 3 * intake.FOREIGN_AWAKE + 0.01
