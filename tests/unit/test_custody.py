"""What a worker believes of a listing of its own folder, which may be older than its last move."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from fsworker import outcomes
from fsworker.loop.custody import Custody
from fsworker.loop.heartbeat import Counters
from fsworker.loop.intake import Intake
from fsworker.protocol import layout, ledger, packing, segment
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Owner, Token
from fsworker.protocol.records.run import Manifest, WorkerSpec
from fsworker.protocol.segment import Segment
from fsworker.slots.backlog import Work

pytestmark = pytest.mark.unit

ME = Owner("n1", "a" * 12)
CLAIMED = Token(layout.batch_id("s", "c" * 12, 0), 0, 1, 0)


class Idle:
    """An executor that executes nothing; the test puts the results in."""

    ready = True
    refused: str | None = None
    held_up = False

    def __init__(self) -> None:
        self.works: list[Work] = []

    def add(self, work: Work) -> None:
        self.works.append(work)

    def room(self) -> int:
        return 10

    def total(self) -> int:
        return 2

    def release(self, work: Work, index: int) -> None: ...

    def drop(self, key: str) -> None: ...

    def cancel(self, work: Work, indexes: Iterable[int]) -> None: ...

    def step(self, now: float) -> list[Work]:
        return []

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"not needed here: {name}")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path)
    for folder in (*layout.FOLDERS, layout.inbox_dir(0), layout.outbox_dir("s"), ME.folder):
        store.mkdir(folder)
    return store


def test_a_listing_from_before_the_commit_does_not_bring_the_claim_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = Manifest("r", "m:f", 1, (WorkerSpec("n1", 0),))
    task = packing.pack([None, []])
    batch = segment.encode(Segment(segment.BATCH, {"stream": "s"}, [task]))
    store.put(layout.claim_path(ME, CLAIMED), batch)
    executor = Idle()
    custody = Custody(store, manifest, ME, executor, Intake(store, manifest, "n1", 0), Counters())
    custody.check_folder(0.0)
    (work,) = executor.works
    before = store.scan(ME.folder)
    work.answer(0, outcomes.OK, 1)
    custody.turn(1.0, [work])
    out = layout.outcome(ME, CLAIMED)
    assert sorted(os.path.basename(p) for p in (out.done, out.result)) == sorted(
        store.scan(layout.outbox_dir("s"))
    )
    committed = store.read(out.result)

    # A local disk always lists what is there; a network filesystem may list what was there.
    real = os.listdir
    monkeypatch.setattr(os, "listdir", lambda p: before if str(p).endswith(ME.name) else real(p))
    custody.check_folder(2.0)  # the name is listed, but the batch cannot be opened any more
    assert custody.quiet and len(executor.works) == 1, "it must not be executed again"
    monkeypatch.undo()
    assert store.read(out.result) == committed
    assert store.run(ledger.adopt(ME)) == []


class Lame(Idle):
    """An executor none of whose places can be used any more."""

    def total(self) -> int:
        return 0


def test_without_a_slot_every_claim_is_given_back(store: Store) -> None:
    manifest = Manifest("r", "m:f", 1, (WorkerSpec("n1", 0),))
    task = packing.pack([None, []])
    batch = segment.encode(Segment(segment.BATCH, {"stream": "s"}, [task]))
    store.put(layout.claim_path(ME, CLAIMED), batch)
    executor = Lame()
    custody = Custody(store, manifest, ME, executor, Intake(store, manifest, "n1", 0), Counters())
    custody.check_folder(0.0)
    executor.works[0].started = True
    custody.turn(1.0, [])
    assert custody.quiet
    assert store.scan(layout.inbox_dir(0)) == [
        os.path.basename(layout.inbox_path(CLAIMED.returned(died=False)))
    ]
