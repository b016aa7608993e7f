"""The parts of a slot that need no process: shared memory, frames, words, evidence."""

from __future__ import annotations

import os
import socket
import struct
import subprocess

import pytest

from fsworker import outcomes
from fsworker.loop.suspects import weigh
from fsworker.protocol import packing
from fsworker.slots import memory as slot_memory
from fsworker.slots import recording
from fsworker.slots import wire as slot_wire
from fsworker.slots.decoding import parse_task, read_ahead
from fsworker.slots.env import Variable
from fsworker.slots.memory import IDLE, Entry, Region

pytestmark = pytest.mark.unit


def test_both_sides_of_a_region_see_the_same() -> None:
    _, memory = slot_memory.create(3)
    slot, worker = Region(memory, 1), Region(memory, 1)
    worker.reset()
    worker.set_limit(7)
    assert (slot.limit(), worker.state().task) == (7, IDLE)
    slot.open(9)
    slot.begin(4, 12.5, 2.0)
    first, second = Entry(4, 0, 0.5, b"one"), Entry(5, 1, 0.25, b"")
    assert slot.append(slot_memory.pack_entry(*first))
    assert worker.finished(worker.state()) == []  # it counts when the next task begins
    assert slot.append(slot_memory.pack_entry(*second))
    slot.begin(6, 13.0, 0.0)
    state = worker.state()
    assert state[:4] == (9, 6, 13.0, 0.0)
    assert worker.finished(state) == [first, second]
    assert list(slot_memory.unpack_entries(slot.unsent())) == [first, second]
    slot.clear()
    assert worker.finished(worker.state()) == []
    assert Region(memory, 0).state().task == Region(memory, 2).state().task == 0


def test_a_region_keeps_no_more_than_it_has_room_for() -> None:
    _, memory = slot_memory.create(2)
    slot = Region(memory, 0)
    Region(memory, 1).set_limit(11)
    assert not slot.append(b"x" * (slot_memory.ROOM + 1))
    assert slot.append(b"x" * slot_memory.ROOM)
    assert not slot.append(b"x")
    assert Region(memory, 1).limit() == 11


def test_entries_that_are_cut_are_left_out() -> None:
    packed = slot_memory.pack_entry(1, 0, 0.0, b"abc")
    for cut in range(len(packed)):
        assert list(slot_memory.unpack_entries(packed + packed[:cut]))[1:] == []


@pytest.mark.parametrize("unread", [b"", b"left unread"])
def test_a_worker_that_died_is_no_error_to_its_slot(unread: bytes) -> None:
    slot, worker = socket.socketpair()
    with slot, worker:
        slot.sendall(unread)
        worker.sendall(slot_wire.pack_range(slot_wire.Range(1, 0, {}, [b"task"]))[:-1])
        worker.close()  # with something unread the kernel resets the connection
        assert slot_wire.read_range(slot) is None


def test_frames_survive_any_cut() -> None:
    stream = slot_wire.pack_frame(3, 7, b"data" * 9) + slot_wire.pack_frame(4, 7)
    buffer, found = bytearray(), []
    for byte in stream:
        buffer.append(byte)
        found += slot_wire.take_frames(buffer, 7)
    assert found == [(3, 7, b"data" * 9), (4, 7, b"")]
    assert not buffer


@pytest.mark.parametrize(
    ("garbage", "number"),
    [
        (b"\xff" * 13, 7),
        (slot_wire.pack_frame(3, 8), 7),
        (slot_wire.pack_frame(1, 7), 7),  # no slot gets ready twice
        (slot_wire.pack_frame(3, 7), None),
        (struct.pack("<BIQ", 3, 7, 1 << 40), 7),
        (struct.pack("<BIQ", 2, 0, 1 << 40), None),
    ],
)
def test_what_no_slot_sends_is_said_at_its_head(garbage: bytes, number: int | None) -> None:
    sent = slot_wire.pack_frame(3, 7, b"before") if number else slot_wire.pack_frame(1, 99)
    found = slot_wire.take_frames(bytearray(sent + garbage), number)
    assert next(found).data in (b"before", b"")
    with pytest.raises(slot_wire.Garbled):
        next(found)


def test_a_result_above_the_limit_is_an_error_of_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_wire, "MAX_RECORD", 1000)
    status, data = recording.result_record(3, "id", outcomes.OK, b"x" * 900, 0.5)
    assert (status, packing.unpack(data)[:4]) == ("ok", [3, "id", "ok", b"x" * 900])
    status, data = recording.result_record(3, "id", outcomes.OK, b"x" * 1000, 0.5)
    assert (status, packing.unpack(data)[:3]) == ("invalid", [3, "id", "invalid"])
    assert "1000 is the limit" in packing.unpack(data)[3]["message"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (["a"], ("a", [], {}, {})),
        ([None, [1, 2]], (None, [1, 2], {}, {})),
        ([3, [], {"k": 1}, {"timeout": 2}], (3, [], {"k": 1}, {"timeout": 2})),
    ],
)
def test_trailing_fields_of_a_task_may_be_missing(fields: object, expected: object) -> None:
    assert parse_task(packing.pack(fields)) == expected


@pytest.mark.parametrize(
    "fields", [[], None, 5, {"a": 1}, [1, "args"], [1, [], "kw"], [1, [], {}, "opt"], [1] * 5]
)
def test_what_is_no_task_is_said_to_be_none(fields: object) -> None:
    with pytest.raises(ValueError, match="the task"):
        parse_task(packing.pack(fields))


def test_ends_of_processes_in_words() -> None:
    assert outcomes.exit_words("signal", 11) == "signal 11 (SIGSEGV)"
    assert outcomes.exit_words("signal", 40) == "signal 40"
    assert outcomes.exit_words("exit", 3) == "exit code 3"


def test_long_and_odd_texts_can_be_sent() -> None:
    told = outcomes.cause("E", "a\ud800" + "b" * 100_000)
    packing.pack(told)
    assert len(told["message"]) < 2 * outcomes.MAX_TEXT
    assert told["message"].startswith("a\\ud800b")
    assert outcomes.cause("E", "")["short"] == "E"


def test_evidence_counts_what_ran_when_a_worker_died() -> None:
    def result(i: int) -> list[object]:
        return [i, None, "ok", i, 0.0]

    found = weigh(
        [
            [["started", 0], result(0), ["started", 1]],
            [["started", 1], result(1), ["started", 2]],
            [["started", 2]],
            [["started", 3], ["withdrawn", 3]],
            ["odd", None, ["started", "x"], 5],
        ]
    )
    assert {i: packing.unpack(r) for i, r in found.results.items()} == {0: result(0), 1: result(1)}
    assert dict(found.fatal) == {1: 1, 2: 2}


def test_tasks_are_decoded_many_at_once_and_odd_ones_are_left_as_they_are() -> None:
    good = [packing.pack([None, [i]]) for i in range(200)]
    assert list(read_ahead(good)) == [[None, [i]] for i in range(200)]
    odd = [*good[:70], b"\xc1", *good[70:100], packing.pack(7), good[100][:-1]]
    found = list(read_ahead(odd))
    assert [parse_task(t)[1] for t in found[:70]] == [[i] for i in range(70)]
    assert [parse_task(t)[1] for t in found[71:101]] == [[i] for i in range(70, 100)]
    for bad in (found[70], *found[101:]):
        with pytest.raises(ValueError, match="task"):
            parse_task(bad)


def test_a_large_task_is_not_decoded_with_others() -> None:
    tasks = [packing.pack([None, ["x" * size]]) for size in (10, 70_000, 10, 40_000, 40_000)]
    assert [type(t) for t in read_ahead(tasks)] == [bytes, bytes, list, list, bytes]


def test_a_variable_is_seen_by_python_and_by_programs_whatever_its_length() -> None:
    name = "SHARDFLEET_TEST_VARIABLE"
    variable = Variable(name)
    try:
        for value in ("a", "b" * 1000, "c", "\udcff"):
            variable.set(value)
            assert os.environ[name] == value
            printed = subprocess.run(["printenv", name], capture_output=True, check=True).stdout
            assert printed == os.fsencode(value) + b"\n"
        with pytest.raises(ValueError, match="null"):
            variable.set("\0")
        del os.environ[name]
        variable.renew()
        variable.set("again")
        printed = subprocess.run(["printenv", name], capture_output=True, check=True).stdout
        assert printed == b"again\n"
    finally:
        os.environ.pop(name, None)
