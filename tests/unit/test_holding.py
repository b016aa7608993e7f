"""What becomes of results that are too large, and of batches that are no files."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from pathlib import Path

import pytest

from fsworker import outcomes
from fsworker.loop import fitting, holding
from fsworker.loop.holding import Holding
from fsworker.protocol import layout, packing, segment
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Owner, Token
from fsworker.protocol.ledger import Move
from fsworker.protocol.segment import Records, Segment
from fsworker.slots.backlog import Work
from fsworker.slots.memory import Entry

pytestmark = pytest.mark.unit

ME = Owner("n1", "a" * 12)
CLAIMED = Token(layout.batch_id("s", "c" * 12, 0), 0, 1, 0)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path)
    for folder in (*layout.FOLDERS, layout.inbox_dir(0), layout.outbox_dir("s"), ME.folder):
        store.mkdir(folder)
    return store


def work_with(sizes: list[int]) -> Work:
    work = Work("w", {}, Records.of(packing.pack([f"t{i}", []]) for i in range(len(sizes))))
    for i, size in enumerate(sizes):
        work.answer(i, outcomes.OK, b"x" * size, 0.5)
    return work


def held(store: Store, sizes: list[int]) -> Holding:
    found = Holding(store, ME, CLAIMED, 0.0)
    batch = Segment(segment.BATCH, {"stream": "s"}, work_with(sizes).records)
    store.put(found.path, segment.encode(batch))
    assert found.read("m:f", None)
    assert found.work
    found.work.results = work_with(sizes).results
    return found


def answers(store: Store, found: Holding) -> list[list[object]]:
    data = store.read(found.outcome.result)
    records = segment.decode(data, segment.RESULT, "result").values()
    return [
        [r[0], r[1], r[2], r[3]["type"] if isinstance(r[3], dict) else len(r[3])] for r in records
    ]


class Full(Store):
    """A filesystem of some size, with room for files up to another."""

    room, size = 0, 1 << 40

    def capacity(self) -> int:
        return self.size

    def put(self, rel: str, data: bytes, *, durable: bool = True) -> None:
        if len(data) > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), rel)
        super().put(rel, data, durable=durable)


def test_the_largest_results_give_way_and_no_more_than_it_takes() -> None:
    work = work_with([100, 50_000, 2_000, 9_000])
    same = [work.results[i] for i in range(4)]
    assert fitting.shrink(work, 100_000, "T", "why") == same
    found = [packing.unpack(r) for r in fitting.shrink(work, 20_000, "T", "why")]
    assert [f[:3] for f in found] == [
        [0, "t0", "ok"],
        [1, "t1", "invalid"],
        [2, "t2", "ok"],
        [3, "t3", "ok"],
    ]
    assert "50" in found[1][3]["message"] and "why" in found[1][3]["message"]
    found = [packing.unpack(r) for r in fitting.shrink(work, 0, "T", "why")]
    assert [f[2] for f in found] == ["ok", "invalid", "invalid", "invalid"]


def test_results_that_do_not_fit_into_one_data_file_are_errors_of_their_tasks() -> None:
    work = work_with([100, 200_000, 100])
    assert [len(r) for r in fitting.results(work)] == [len(r) for r in work.results.values()]
    found = [packing.unpack(r) for r in fitting.results(work, limit=150_000)]
    assert [f[2] for f in found] == ["ok", "invalid", "ok"]
    assert found[1][3]["type"] == "ResultTooLarge"


def test_a_part_is_cut_before_it_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "PART_BYTES", 1000)
    found = [Entry(0, 1, 0, 0.0, b"x" * size) for size in (400, 400, 400, 5000, 1)]
    assert fitting.portion(found) == 2
    assert fitting.portion(found[3:]) == 1
    assert fitting.portion([]) == 0


def test_of_a_run_only_the_results_that_are_too_large_give_way() -> None:
    work = Work("w", {"form": "arg"}, Records.of([packing.pack(i) for i in range(4)]))
    values = [packing.pack(b"x" * size) for size in (10, 5_000, 3_000, 20)]
    work.keep([Entry(0, 4, 0, 1.0, outcomes.run(0, values, 1.0))])
    assert len(fitting.results(work)) == 1
    found = [packing.unpack(r) for r in fitting.results(work, limit=(1 << 16) + 4_500)]
    assert [f[:3] for f in found] == [
        [0, None, "ok"],
        [1, None, "invalid"],
        [2, None, "ok"],
        [3, None, "ok"],
    ]


def test_a_result_that_no_disk_can_hold_becomes_an_error_and_its_neighbours_are_kept(
    store: Store,
) -> None:
    full = Full(store.root)
    found = held(store, [100, 50_000, 100])
    found.store = full
    full.room = full.size = 8_000
    for _ in range(holding.NO_ROOM_TRIES - 1):
        assert found.commit() is None
        assert store.scan(layout.outbox_dir("s")) == []
    assert found.commit() is Move.DONE
    assert answers(store, found) == [
        [0, "t0", "ok", 100],
        [1, "t1", "invalid", "NotStored"],
        [2, "t2", "ok", 100],
    ]


def test_a_result_that_could_fit_waits_for_room_though_a_smaller_one_would_not_have_to(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Full(store.root)
    full.room = 8_000
    patient, tired = held(store, [100, 50_000]), held(store, [50_000, 100])
    patient.store = tired.store = full
    for _ in range(2 * holding.NO_ROOM_TRIES):
        assert patient.commit() is tired.commit() is None
    assert store.scan(layout.outbox_dir("s")) == []
    monkeypatch.setattr(holding, "ROOM_PATIENCE", 0.0)
    assert tired.commit() is Move.DONE
    assert [answer[2] for answer in answers(store, tired)] == ["invalid", "ok"]
    full.room = 1 << 20
    store.rename(tired.outcome.done, tired.path)  # one batch, held twice
    assert patient.commit() is Move.DONE
    assert [answer[2] for answer in answers(store, patient)] == ["ok", "ok"]


def test_no_result_is_given_up_while_nothing_at_all_can_be_written(store: Store) -> None:
    full = Full(store.root)
    found = held(store, [100, 50_000])
    found.store = full
    for _ in range(2 * holding.NO_ROOM_TRIES):
        assert found.commit() is None
    full.room = 1 << 20
    assert found.commit() is Move.DONE
    assert answers(store, found) == [[0, "t0", "ok", 100], [1, "t1", "ok", 50_000]]


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
def test_what_is_no_file_in_place_of_a_batch_is_moved_away(store: Store, kind: str) -> None:
    found = Holding(store, ME, CLAIMED, 0.0)
    path = store.path(found.path)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        server = socket.socket(socket.AF_UNIX)
        with server, contextlib.chdir(os.path.dirname(path)):
            server.bind(os.path.basename(path))
    else:
        os.symlink(os.devnull, path)
    assert not found.read("m:f", None)
    assert found.over and store.scan(ME.folder) == []
    (moved,) = [n for n in store.scan(layout.QUARANTINE) if not n.endswith(".reason.json")]
    assert b"it is a pipe, a socket" in store.read(f"{layout.QUARANTINE}/{moved}.reason.json")


@pytest.mark.parametrize("before", [False, True])
def test_a_folder_in_place_of_a_batch_is_moved_away_whole(store: Store, before: bool) -> None:
    if before:
        store.mkdir(f"{layout.QUARANTINE}/{CLAIMED.batch}.{CLAIMED.attempt}")
    found = Holding(store, ME, CLAIMED, 0.0)
    store.mkdir(found.path)
    store.put(f"{found.path}/inside", b"kept")
    assert not found.read("m:f", None)
    assert found.over and not found.trouble
    assert store.scan(ME.folder) == []
    names = [n for n in store.scan(layout.QUARANTINE) if n.startswith(f"{CLAIMED.batch}.1.")]
    assert len(names) == 2
    (moved,) = [n for n in names if not n.endswith(".reason.json")]
    assert store.read(f"{layout.QUARANTINE}/{moved}/inside") == b"kept"
    assert b"it is a folder" in store.read(f"{layout.QUARANTINE}/{moved}.reason.json")
