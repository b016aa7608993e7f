"""Runs: results of tasks in a row as one record, from the slot that made them to who waits."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import pytest

from fsworker import outcomes
from fsworker.client.futures import TaskFuture, begin
from fsworker.client.outbound import Call, Outbound
from fsworker.client.receivers import PENDING, Failed, Futures, Strip
from fsworker.client.sizing import Sizer
from fsworker.client.terms import Terms
from fsworker.protocol import packing, segment
from fsworker.protocol.segment import Records, Segment
from fsworker.slots import memory as slot_memory
from fsworker.slots import sprint
from fsworker.slots.env import Numbers
from fsworker.slots.memory import Region
from fsworker.slots.sprint import Sprinter
from fsworker.taskpack import TaskPacker

pytestmark = pytest.mark.unit

TERMS = Terms("m:f")
RUN = ["ok", 1, ["b", "c"], 0.5]
SINGLES = [[1, None, "ok", "b", 0.25], [2, None, "ok", "c", 0.25]]


def test_a_run_is_a_record_and_is_taken_apart() -> None:
    data = outcomes.run(1, [packing.pack("b"), packing.pack("c")], 0.5)
    assert packing.unpack(data) == RUN and outcomes.is_run(RUN)
    odd = [
        ["ok", "x", [], 0],
        ["ok", -1, ["a", "b"], 0],
        ["ok", 1, "no list", 0],
        ["error", 1, [], 0],
        ["started", 3],
        5,
    ]
    assert not any(map(outcomes.is_run, odd))
    assert list(outcomes.singles([*odd, RUN, [0, None, "ok", "a", 0.0]])) == [
        *odd,
        *SINGLES,
        [0, None, "ok", "a", 0.0],
    ]
    assert list(outcomes.singles([["ok", 3, [], 0.0]])) == []


def futures_of(count: int) -> tuple[list[TaskFuture], Futures]:
    shared = threading.Condition()
    futures = [TaskFuture(shared) for _ in range(count)]
    assert begin(futures) == futures
    return futures, Futures(futures)


def test_futures_are_answered_by_runs_each_once() -> None:
    futures, receiver = futures_of(4)
    told: list[Any] = []
    futures[2].add_done_callback(lambda f: told.append(f.result()))
    receiver.take([RUN])
    assert [f.done() for f in futures] == [False, True, True, False] and told == ["c"]
    receiver.take([["ok", 0, ["A", "late", "late", "D"], 0.0], [0, None, "ok", "late", 0.0]])
    assert [f.result(0) for f in futures] == ["A", "b", "c", "D"] and told == ["c"]


@pytest.mark.parametrize("first", [-1, 3, 2**40])
def test_a_run_beyond_the_batch_answers_nobody_else(first: int) -> None:
    futures, receiver = futures_of(2)
    receiver.take([["ok", first, ["x", "y"], 0.0]])
    assert not any(f.done() for f in futures)
    receiver.fail(RuntimeError("left out"))
    assert isinstance(futures[0].exception(0), RuntimeError)


def test_who_was_cancelled_does_not_begin() -> None:
    shared = threading.Condition()
    futures = [TaskFuture(shared) for _ in range(3)]
    assert futures[1].cancel()
    assert begin(futures) == [futures[0], futures[2]]
    assert futures[0].running() and futures[1].cancelled() and not futures[2].cancel()


def test_a_piece_of_a_strip_takes_runs_whole_in_part_and_once() -> None:
    strip = Strip(TERMS, 6)
    strip.records = [b"\x01"] * 6
    _, first = strip.cut(2)
    _, second = strip.cut(4)
    second.take([RUN])
    assert strip.values == [*[PENDING] * 3, "b", "c", PENDING]
    second.take([["ok", 0, ["A", "late", "late", "D"], 0.0], ["ok", 4, ["beyond"], 0.0]])
    assert strip.values[2:] == ["A", "b", "c", "D"] and not strip.complete
    first.take([["ok", 0, ["0"], 0.0]])
    first.fail(RuntimeError("left out"))
    assert strip.values[0] == "0" and isinstance(strip.values[1], Failed)
    assert strip.complete and not strip.flawless


def test_results_that_come_again_when_all_were_taken_are_passed_over() -> None:
    """First early, in a part, and then in the result of the whole batch."""
    strip = Strip(TERMS, 3)
    strip.records = [b"\x01"] * 3
    _, piece = strip.cut(3)
    row = ["ok", 0, ["a", "b", "c"], 0.0]
    piece.take([row])
    strip.values.clear()  # as `map` does with what it hands out
    piece.take([row])
    piece.fail(RuntimeError("left out"))
    assert strip.complete and strip.flawless


def test_tasks_that_were_never_sent_keep_their_places_between_those_of_a_run() -> None:
    strip = Strip(TERMS, 3)
    strip.records, strip.places = [b"\x01"] * 2, [0, 2]
    strip.put(1, Failed(RuntimeError("not sent")))
    _, piece = strip.cut(2)
    piece.take([["ok", 0, ["a", "c"], 0.0]])
    assert strip.values[::2] == ["a", "c"] and strip.complete


def call(*args: Any, **kwargs: Any) -> Call:
    made = Call(threading.Condition())
    made.terms = TERMS
    made.record, made.form = TaskPacker().call(args, kwargs)
    return made


def batches(*calls: Call) -> list[tuple[str | None, list[Any]]]:
    queue = Outbound(Sizer(64, 1))
    for one in calls:
        queue.add_call(one)
    return [(o.form, list(map(packing.unpack, o.records))) for o in queue.take(lambda _: 99)]


def test_a_batch_has_the_form_that_all_its_calls_have() -> None:
    assert batches(call(1), call((2, 3))) == [("arg", [1, (2, 3)])]
    mixed = [[None, [1]], [None, [2], {"k": 3}], [None, [], {}]]
    assert batches(call(1), call(2, k=3), call()) == [(None, mixed)]


def test_a_batch_of_arguments_is_widened_for_whoever_reads_tasks() -> None:
    meta = {"fn": "m:f", "form": "arg"}
    batch = Segment(segment.BATCH, meta, Records.of([packing.pack(v) for v in (1, [2])]))
    assert batch.widened().values() == [[None, [1]], [None, [[2]]]]
    assert batch.widened().meta == {"fn": "m:f"}
    plain = Segment(segment.BATCH, {"fn": "m:f"}, [packing.pack([None, [1]])])
    assert plain.widened() is plain


def test_a_file_says_of_how_many_tasks_its_runs_tell() -> None:
    data = segment.encode(Segment(segment.RESULT, {"tasks": 2}, [packing.pack(RUN)]))
    assert segment.decode(data, segment.RESULT, "r").tasks == 2
    assert Segment(segment.RESULT, {}, [packing.pack(RUN)]).tasks == 1


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine may stop a test for longer than a burst takes."""
    monkeypatch.setattr(sprint, "BURST", 3600.0)


class Track:
    """A sprinter on a region of its own, and what it did."""

    def __init__(self) -> None:
        _, memory = slot_memory.create(1)
        self.region, self.settled = Region(memory, 0), 0
        self.region.set_limit(100)
        self.sprinter = Sprinter(self.region, self._settle, lambda coroutine: coroutine.close())
        self.numbers, self.label = Numbers(), [0]
        self.region.open(1)
        self.numbers.reach(100)

    def _settle(self) -> None:
        self.settled += 1

    def run(self, function: Any, values: list[Any], index: int = 5) -> tuple[list[Any], Any]:
        calls = iter([((value,), {}) for value in values])
        done = self.sprinter.run(function, calls, index, self.numbers, self.label)
        entries = slot_memory.unpack_entries(self.region.unsent())
        self.region.clear()
        assert [(e.task, e.size, e.status) for e in entries] == (
            [(index, done.returned, 0)] if done.returned else []
        )
        rows = list(outcomes.singles(packing.unpack(e.data) for e in entries))
        assert [row[:3] for row in rows] == [[index + i, None, "ok"] for i in range(len(rows))]
        return [row[3] for row in rows], done.other


def test_a_sprint_ends_behind_the_last_call_or_before_the_limit() -> None:
    track = Track()
    assert track.run(lambda x: [x], [1, (2,), None]) == ([[1], [(2,)], [None]], None)
    assert track.region.state().task == 7 and track.label == [track.numbers[7]]
    track.region.set_limit(7)
    assert track.run(lambda x: x, [1, 2, 3]) == ([1, 2], None)
    assert track.run(lambda x: x, [1], index=7) == ([], None)


def test_what_raises_or_cannot_be_packed_ends_a_sprint_and_is_told() -> None:
    track = Track()
    values, other = track.run(lambda x: 1 // x, [1, 0, 1])
    assert values == [1] and (other.status, other.value["type"]) == ("error", "ZeroDivisionError")
    assert track.settled >= 1
    values, other = track.run(lambda x: x, [1, {2}, 3])
    assert values == [1] and other[:2] == ("ok", {2})
    assert track.run(lambda x: x, [1, 2]) == ([1, 2], None)  # the packer is as good as new


def test_what_is_returned_is_what_it_was_at_that_moment() -> None:
    seen: list[int] = []

    def remember(x: int) -> list[int]:
        seen.append(x)
        return seen

    assert Track().run(remember, [1, 2, 3])[0] == [[1], [1, 2], [1, 2, 3]]


def test_results_are_recorded_after_a_while_and_after_many_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    track = Track()
    with monkeypatch.context() as hasty:
        hasty.setattr(sprint, "BURST", 0.001)
        assert track.run(lambda x: time.sleep(0.002), [1, 2, 3]) == ([None], None)
        assert track.settled == 1
    assert len(track.run(lambda x: b"x" * 10_000, list(range(9)))[0]) == 2


def test_a_value_without_room_is_told_and_those_before_it_are_kept() -> None:
    values, other = Track().run(lambda x: b"x" * x, [10, 70_000, 10])
    assert values == [b"x" * 10] and other.value == b"x" * 70_000


def test_the_worker_sees_each_result_as_soon_as_the_next_task_begins() -> None:
    track = Track()
    seen = []

    def look(x: int) -> int:
        state = track.region.state()
        entries = track.region.finished(state)
        assert all((e.task, e.size) == (5, x) for e in entries)
        seen.append([row[3] for e in entries for row in outcomes.singles([packing.unpack(e.data)])])
        return x

    assert track.run(look, [0, 1, 2, 3]) == ([0, 1, 2, 3], None)
    assert seen == [[], [0], [0, 1], [0, 1, 2]]
    state = track.region.state()
    assert state.size == 0 and track.region.finished(state) == []


def test_values_in_a_row_are_counted_and_cut_ones_are_none() -> None:
    data = b"".join(map(packing.pack, [None, {"a": (1, 2)}, b"x" * 300, [[]]]))
    assert packing.count(data) == 4 and packing.count(b"") == 0
    assert packing.count(data[:-1]) == 0 and packing.count(b"\xc1") == 0


def test_a_task_that_calls_the_system_is_always_settled() -> None:
    track, count = Track(), itertools.count()

    def sleep_a_little(_: int) -> None:
        next(count)
        time.sleep(1e-5)

    while next(count) < 50:
        track.run(sleep_a_little, list(range(20)))
    assert track.settled >= 40
