"""Jobs among what a worker holds: one a slot, given back on a word, never in the way of tasks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from fsworker.loop.custody import Custody
from fsworker.loop.heartbeat import Counters
from fsworker.loop.intake import Intake
from fsworker.loop.jobintake import JobIntake
from fsworker.protocol import layout, packing, segment
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Owner, Token
from fsworker.protocol.records.run import Manifest, WorkerSpec
from fsworker.protocol.segment import Segment
from fsworker.slots.backlog import Work

pytestmark = pytest.mark.unit

ME = Owner("n1", "c0ffee000001")
MANIFEST = Manifest("r", "m:f", 1, (WorkerSpec("n1", 0),))


class Hands:
    """An executor that runs nothing, with room for `jobs` jobs and any number of tasks."""

    def __init__(self, jobs: int) -> None:
        self.ready, self.refused, self.held_up = True, None, False
        self.jobs, self.works = jobs, dict[str, Work]()

    def room(self) -> int:
        return 100

    def job_room(self) -> int:
        held = sum(w.meta["kind"] == "job" for w in self.works.values())
        return self.jobs - held

    def add(self, work: Work) -> None:
        work.started = work.meta["kind"] == "job"
        self.works[work.key] = work

    def release(self, work: Work, index: int) -> None:
        work.started = True

    def drop(self, key: str) -> None:
        self.works.pop(key, None)

    def cancel(self, work: Work, indexes: Iterable[int]) -> None: ...

    def step(self, now: float) -> list[Work]:
        return []

    def busy(self) -> int:
        return 0

    def total(self) -> int:
        return 1

    def close(self) -> None: ...


class Bench:
    """A custody with its inbox."""

    def __init__(self, path: Path, jobs: int) -> None:
        self.store = Store(path)
        for folder in (*layout.FOLDERS, layout.inbox_dir(0), layout.outbox_dir("s"), ME.folder):
            self.store.mkdir(folder)
        self.hands = Hands(jobs)
        intake = Intake(self.store, MANIFEST, "n1", 0)
        self.intake = JobIntake(self.store, 0, 1, self.hands.job_room)
        intake.saw_jobs = self.intake.saw
        self.custody = Custody(
            self.store, MANIFEST, ME, self.hands, intake, Counters(), self.intake
        )

    def put(self, stream: str, *, deaths: int = 0, kind: str | None = None) -> str:
        token = Token(layout.batch_id(stream, "c0ffee000009", 0), 0, deaths=deaths)
        record = packing.pack([None, []])
        meta = {"stream": stream, "kind": kind}
        data = segment.encode(Segment(segment.BATCH, meta, [record]))
        self.store.put(layout.inbox_path(token), data)
        return token.batch

    def turn(self, now: float) -> list[str]:
        """One turn of the loop; the batches that are held after it."""
        self.custody.turn(now, [])
        self.custody.take(now)
        self.custody.take_job(now)
        return sorted(h.token.batch for h in self.custody.holdings.values())


def test_a_worker_takes_a_job_only_for_a_free_slot(tmp_path: Path) -> None:
    bench = Bench(tmp_path, jobs=1)
    first, second = bench.put("jobs/a", kind="job"), bench.put("jobs/b", kind="job")
    task = bench.put("s")
    assert bench.turn(1.0) == sorted([first, task])
    assert bench.turn(3.0) == sorted([first, task])
    assert [n for n in bench.store.scan(layout.inbox_dir(0)) if second in n]


def test_a_worker_without_job_slots_takes_none(tmp_path: Path) -> None:
    bench = Bench(tmp_path, jobs=0)
    bench.put("jobs/a", kind="job")
    assert bench.turn(1.0) == bench.turn(3.0) == []


def test_a_job_neither_is_a_suspect_nor_keeps_one_waiting(tmp_path: Path) -> None:
    bench = Bench(tmp_path, jobs=1)
    job = bench.put("jobs/a", kind="job", deaths=2)
    assert bench.turn(1.0) == [job]
    suspect = bench.put("s", deaths=1)
    assert bench.turn(3.0) == sorted([job, suspect])
    bench.hands.jobs = 2
    bench.put("jobs/b", kind="job")
    assert bench.turn(5.0) == sorted([job, suspect]), "a suspect is alone among what comes"


def test_what_an_executor_returns_goes_back_and_is_left_to_others(tmp_path: Path) -> None:
    bench = Bench(tmp_path, jobs=1)
    job = bench.put("jobs/a", kind="job")
    assert bench.turn(1.0) == [job]
    (work,) = bench.hands.works.values()
    work.returned = "preflight"
    bench.custody.turn(2.0, [work])
    assert bench.custody.quiet and not bench.hands.works
    (name,) = bench.store.scan(layout.inbox_dir(0))
    token = layout.parse_inbox_name(0, name)
    assert token is not None and (token.batch, token.attempt, token.deaths) == (job, 1, 0)
    assert bench.turn(3.0) == []
