"""Which job a worker takes: only with a slot free, none that waits, none that it just declined."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fsworker.loop import jobintake
from fsworker.loop.jobintake import LOOK_EVERY, PER_NAME, JobIntake
from fsworker.protocol import jobstate, layout, packing, segment
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Token
from fsworker.protocol.layout.jobs import Attempt
from fsworker.protocol.segment import Segment

pytestmark = pytest.mark.unit

LIFE = "c0ffee000001"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    for folder in (*layout.FOLDERS, *map(layout.inbox_dir, range(3)), layout.jobs.JOBS):
        (tmp_path / folder).mkdir(exist_ok=True)
    return Store(tmp_path)


def put(store: Store, job: str, shard: int = 0, after: str | None = None) -> Token:
    token = Token(layout.batch_id(layout.job_stream(job), LIFE, 0), shard)
    meta: dict[str, Any] = {"kind": "job", "after": after}
    data = segment.encode(Segment(segment.BATCH, meta, [packing.pack([job, ["{}"]])]))
    store.put(layout.inbox_path(token), data)
    return token


def end(store: Store, job: str) -> None:
    store.mkdir(layout.jobs.job_dir(job))
    batch = layout.batch_id(layout.job_stream(job), LIFE, 0)
    store.put(layout.jobs.job_token(job, batch, Attempt(1, LIFE)), b"")


def test_a_jobs_batch_ends_in_its_own_folder() -> None:
    token = Token(layout.batch_id(layout.job_stream("a.b"), LIFE, 3), 0)
    assert token.is_job and layout.job_of(token.batch) == "a.b"
    done = layout.outcome(layout.Owner("n1", LIFE), token.claimed()).done
    assert done == layout.jobs.job_token("a.b", token.batch, Attempt(1, LIFE))
    assert not Token(layout.batch_id("jobs", LIFE, 3), 0).is_job


def test_jobs_are_found_at_home_first_and_elsewhere_then(store: Store) -> None:
    away, home = put(store, "a", shard=2), put(store, "b", shard=0)
    jobs = JobIntake(store, 0, 3, lambda: 1)
    assert jobs.next(0.0) == home
    jobs.took(home, 0.0)
    store.remove(layout.inbox_path(home))
    assert jobs.next(1.0) is None  # one foreign shard a look
    assert jobs.next(1.0 + jobintake.FOREIGN_EVERY) == away


def test_a_listing_that_was_made_for_tasks_is_used(store: Store) -> None:
    jobs = JobIntake(store, 0, 1, lambda: 1)
    token = Token(layout.batch_id(layout.job_stream("a"), LIFE, 0), 0)
    jobs.saw(0, [token], 5.0)
    before = store.calls["list"]
    assert jobs.next(5.1) == token
    assert store.calls["list"] == before


def test_a_long_backlog_is_listed_more_seldom(store: Store) -> None:
    count = 11_000
    for i in range(count):
        (Path(store.path(layout.inbox_dir(0))) / f"s-0123456789ab-{i}.0.0").touch()
    jobs = JobIntake(store, 0, 1, lambda: 1)
    assert jobs.next(0.0) is None
    assert jobs.due == PER_NAME * count > LOOK_EVERY
    jobs.saw(0, [], 2.0)  # a listing for tasks, as long
    assert jobs.due == 2.0 + PER_NAME * count


def test_a_job_waits_for_the_one_before_it(store: Store) -> None:
    token = put(store, "b", after="a")
    jobs = JobIntake(store, 0, 1, lambda: 1)
    assert jobs.next(0.0) is None
    end(store, "a")
    assert jobs.next(0.1) is None, "not looked at each time"
    assert jobs.next(jobintake.WAITS_EVERY + 0.1) == token
    assert jobstate.look(store, "a").commit is not None


def test_a_long_chain_costs_no_more_than_a_short_one(store: Store) -> None:
    put(store, "j000", after="running")
    for number in range(1, 200):
        put(store, f"j{number:03}", after=f"j{number - 1:03}")
    jobs = JobIntake(store, 0, 1, lambda: 1)
    now = 0.0
    for _ in range(20):  # until it has read them all, a few at a time
        now += 1.0
        before = store.calls["open"] + store.calls["list"]
        assert jobs.next(now) is None
        assert store.calls["open"] + store.calls["list"] - before <= jobintake.MOST_LOOKS + 1
    before = store.calls["open"] + store.calls["list"]
    assert jobs.next(now + 5) is None
    assert store.calls["open"] + store.calls["list"] - before <= 2
    end(store, "running")
    first = jobs.next(now + 10)
    assert first is not None and layout.job_of(first.batch) == "j000"


def test_a_job_that_was_declined_is_left_to_others_for_longer_each_time(store: Store) -> None:
    token = put(store, "a")
    jobs = JobIntake(store, 0, 1, lambda: 1)
    first, longest = jobintake.DECLINED
    now = 100.0
    jobs.decline(token.batch, now)
    assert jobs.next(now + first - 1) is None
    assert jobs.next(now + first + 1) == token
    for _ in range(12):
        jobs.decline(token.batch, now)
    assert jobs.next(now + longest - 1) is None
    assert jobs.next(now + longest + 1) == token


def test_of_two_commits_that_of_the_last_submission_counts() -> None:
    names = [
        f"jobs%2Fa-{LIFE}-1.4~{LIFE}.done",
        f"jobs%2Fa-{LIFE}-0.3~{LIFE}.done",
        f"jobs%2Fa-{LIFE}-2.5~{LIFE}.result",
        "after_ep_0001",
    ]
    commit = jobstate.last_commit(names)
    assert commit is not None and commit.number == 1 and commit.attempt == Attempt(4, LIFE)
