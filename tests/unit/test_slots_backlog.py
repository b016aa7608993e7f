"""Which tasks go to which slot: none twice, none forgotten, none behind a slow neighbour."""

from __future__ import annotations

import random

import pytest

from fsworker import outcomes
from fsworker.outcomes import CODES, ERROR, OK, TIMEOUT
from fsworker.protocol import packing
from fsworker.protocol.segment import Records
from fsworker.slots.backlog import MOST_BATCHES, RANGE_BYTES, RANGE_SECONDS, Backlog, Work, tail
from fsworker.slots.memory import Entry

pytestmark = pytest.mark.unit


def work(key: str, count: int, size: int = 1) -> Work:
    found = Work(key, {}, Records.of([b"x" * size] * count))
    found.open_all()
    return found


def entry(task: int, status: str = OK, elapsed: float = 0.001) -> Entry:
    return Entry(task, 1, CODES[status], elapsed, outcomes.record(task, None, status, 0, elapsed))


def sizes(backlog: Backlog, slots: int) -> list[int]:
    found = []
    while (taken := backlog.take(slots)) is not None:
        found.append(taken[2] - taken[1])
    return found


def test_first_ranges_are_a_share_of_what_is_left() -> None:
    backlog = Backlog()
    backlog.add(work("a", 100))
    found = sizes(backlog, 4)
    assert found[:4] == [25, 19, 14, 11]
    assert found[-1] == 1 and sum(found) == 100


def test_every_task_is_handed_out_exactly_once_whatever_is_lost() -> None:
    chance = random.Random(5)
    backlog = Backlog()
    works = [work(k, n) for k, n in (("a", 57), ("b", 1), ("c", 0), ("d", 200))]
    for found in works:
        backlog.add(found)
    while (taken := backlog.take(3)) is not None:
        found, first, end = taken
        assert not set(range(first, end)) & found.results.keys()
        cut = chance.randint(first, end)
        found.keep(entry(i) for i in range(first, cut))
        backlog.put_back(found, first, end)
    assert all(w.finished for w in works)
    assert backlog.unfinished() == backlog.waiting() == 0


def test_long_tasks_go_one_by_one() -> None:
    backlog = Backlog()
    backlog.observe([entry(0, elapsed=RANGE_SECONDS * 2)])
    backlog.add(work("a", 10))
    assert sizes(backlog, 2) == [1] * 10


def test_short_tasks_are_not_handed_out_singly() -> None:
    backlog = Backlog()
    backlog.observe([entry(0, elapsed=0.0)])
    backlog.add(work("a", 1000))
    assert min(sizes(backlog, 8)[:-1]) >= 50


@pytest.mark.parametrize(
    ("elapsed", "least", "most"),
    [(None, 4, 4), (10.0, 4, 4), (0.3, 8, 8), (0.01, 30, 40), (0.0, 32_768, 32_768)],
)
def test_work_at_hand_is_what_can_be_served_soon(
    elapsed: float | None, least: int, most: int
) -> None:
    backlog = Backlog()
    if elapsed is not None:
        backlog.observe([entry(0, elapsed=elapsed)])
    assert least <= backlog.wanted(4) <= most
    backlog.add(work("a", 5))
    assert least - 5 <= backlog.wanted(4) <= most - 5


def test_batches_at_hand_are_few_however_small_they_are() -> None:
    backlog = Backlog()
    backlog.observe([entry(0, elapsed=0.0)])
    for i in range(MOST_BATCHES):
        assert backlog.wanted(1) > 0
        backlog.add(work(str(i), 1))
    assert backlog.wanted(1) == 0
    assert backlog.wanted(MOST_BATCHES) > 0


def test_large_tasks_go_in_small_ranges() -> None:
    backlog = Backlog()
    backlog.add(work("a", 10, RANGE_BYTES // 2))
    assert max(sizes(backlog, 1)) == 2
    backlog.add(work("b", 2, RANGE_BYTES * 2))
    assert sizes(backlog, 1) == [1, 1]


def test_the_first_result_of_a_task_counts() -> None:
    found = work("a", 3)
    assert found.keep([entry(0), entry(1, TIMEOUT), entry(7)]) == 2
    assert found.keep([entry(1), entry(2, ERROR)]) == 1
    results = found.results
    assert (results.failed, results.timeouts, found.finished) == (2, 1, True)


def run(first: int, size: int) -> Entry:
    data = outcomes.run(first, [packing.pack(i) for i in range(first, first + size)], 1.0)
    return Entry(first, size, CODES[OK], 1.0, data)


def test_runs_count_for_each_of_their_tasks_and_are_taken_apart_where_they_overlap() -> None:
    found = work("a", 12)
    assert found.keep([run(4, 4), entry(1, ERROR), run(4, 4), run(11, 2)]) == 5
    assert found.results.missing(0, 12) == [(0, 1), (2, 4), (8, 12)]
    assert found.results.missing(4, 8) == [] and found.results.missing(5, 9) == [(8, 9)]
    assert found.keep([run(0, 10), run(10, 2)]) == 7
    assert found.finished and found.results.failed == 1
    assert [packing.unpack(r)[3] for r in found.results.apart().values()] == [0, 0, *range(2, 12)]
    rows = list(outcomes.singles(map(packing.unpack, found.results.records())))
    assert [row[0] for row in rows] == list(range(12)) == list(found.results)
    assert [row[2] for row in rows] == ["ok", "error", *["ok"] * 10]
    assert packing.unpack(found.results[5])[:4] == [5, None, "ok", 5]


def test_what_comes_back_goes_first_and_in_order() -> None:
    backlog = Backlog()
    found, later = work("a", 10), work("b", 1)
    backlog.add(found)
    backlog.add(later)
    assert backlog.take(1) == (found, 0, 10)
    found.keep([entry(2)])
    backlog.put_back(found, 0, 10)
    assert list(found.pending) == [(0, 2), (3, 10)]
    assert backlog.take(1) == (found, 0, 2)


@pytest.mark.parametrize(
    ("task", "end", "running", "mean", "cut"),
    [
        (0, 1, 99.0, 1.0, None),  # nothing follows
        (0, 100, 0.0, 1e-6, None),  # over before anybody could take it
        (0, 100, 0.0, None, None),  # nothing is known yet
        (0, 100, 0.1, None, 50),  # this one takes long: half of what follows
        (0, 100, 0.0, 0.01, 50),
        (0, 2, 0.1, 1.0, 1),
        (10, 20, 5.0, None, 11),  # as good as hanging: all of it
    ],
)
def test_an_idle_slot_takes_over_a_tail(
    task: int, end: int, running: float, mean: float | None, cut: int | None
) -> None:
    assert tail(task, end, running, mean) == cut
