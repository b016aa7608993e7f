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
from fsworker.protocol.segment import Records
from fsworker.slots import memory as slot_memory
from fsworker.slots import recording
from fsworker.slots import wire as slot_wire
from fsworker.slots.decoding import parse_task, stretches
from fsworker.slots.env import Numbers, Variable
from fsworker.slots.memory import IDLE, Entry, Region

pytestmark = pytest.mark.unit


def test_both_sides_of_a_region_see_the_same() -> None:
    _, memory = slot_memory.create(3)
    slot, worker = Region(memory, 1), Region(memory, 1)
    worker.reset()
    worker.set_limit(7)
    assert (slot.limit_mark[0], worker.state().task) == (7, IDLE)
    slot.open(9)
    slot.begin(4, 12.5, 2.0)
    first, second = Entry(4, 3, 0, 0.5, b"one"), Entry(7, 1, 1, 0.25, b"")
    assert slot.append(slot_memory.pack_entry(first))
    assert worker.finished(worker.state()) == [first]
    assert slot.append(slot_memory.pack_entry(second))
    slot.index_mark[0], slot.started_mark[0] = 8, 13.0
    state = worker.state()
    assert state[:4] == (9, 8, 13.0, 2.0)
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
    assert Region(memory, 1).limit_mark[0] == 11


def test_entries_that_are_cut_are_left_out() -> None:
    packed = slot_memory.pack_entry(Entry(1, 1, 0, 0.0, b"abc"))
    for cut in range(len(packed)):
        assert list(slot_memory.unpack_entries(packed + packed[:cut]))[1:] == []


@pytest.mark.parametrize("unread", [b"", b"left unread"])
def test_a_worker_that_died_is_no_error_to_its_slot(unread: bytes) -> None:
    slot, worker = socket.socketpair()
    with slot, worker:
        slot.sendall(unread)
        worker.sendall(slot_wire.pack_range(slot_wire.Range(1, 0, {}, Records.of([b"task"])))[:-1])
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


def told(records: list[bytes], form: str | None = None) -> list[tuple[int, int | None, object]]:
    """(first index, number of calls, what they are) of each stretch; without calls the task."""
    found: list[tuple[int, int | None, object]] = []
    for stretch in stretches(slot_wire.Range(1, 5, {"form": form}, Records.of(records))):
        calls = None if stretch.calls is None else list(stretch.calls)
        found.append((stretch.first, calls and len(calls), calls or stretch.task))
    return found


def test_calls_are_decoded_in_stretches_and_what_is_more_is_left_as_it_is() -> None:
    calls = [packing.pack(f) for f in ([None, [1, 2]], [None, [], {"k": 1}], [None, [3], {}])]
    plain = [((1, 2), {}), ((), {"k": 1}), ((3,), {})]
    assert told(calls) == [(5, 3, plain)]
    more = [["id", [1]], [None, [1], {}, {"timeout": 1}], [None, "args"], [None, [], 7], []]
    packed = [packing.pack(m) for m in more]
    assert told([*calls[:2], *packed, calls[2]]) == [
        (5, 2, plain[:2]),
        *((7 + i, None, m) for i, m in enumerate(more)),
        (12, 1, plain[2:]),
    ]
    assert told([calls[0], packing.pack(7)]) == [(5, 1, plain[:1]), (6, None, packing.pack(7))]
    assert told([]) == []


@pytest.mark.parametrize("bad", [b"\xc1", b"", packing.pack([None, [1]])[:-1], b"\xc0\xc0"])
def test_where_one_record_cannot_be_decoded_each_is_a_task_of_its_own(bad: bytes) -> None:
    good = packing.pack([None, [1]])
    assert told([good, bad, good]) == [(5, None, good), (6, None, bad), (7, None, good)]
    with pytest.raises(ValueError, match="task"):
        parse_task(bad)


def test_only_arguments_are_calls_whatever_they_are() -> None:
    values = [1, None, [2, 3], {"args": []}, (4, 5), b""]
    assert told([packing.pack(v) for v in values], "arg") == [(5, 6, [((v,), {}) for v in values])]
    assert parse_task(packing.pack([None, [1]]), "arg") == (None, [[None, [1]]], {}, {})
    assert told([b"\x01", b"\xc1"], "arg") == [(5, None, b"\x01"), (6, None, b"\xc1")]


def test_a_form_that_is_not_known_is_named() -> None:
    assert told([b"\x01"], "later") == [(5, None, b"\x01")]
    with pytest.raises(ValueError, match="'later', is not one that this release knows"):
        parse_task(b"\x01", "later")


def test_a_number_in_a_variable_is_seen_by_python_and_by_programs() -> None:
    name = "SHARDFLEET_TEST_NUMBER"
    variable, numbers = Variable(name), Numbers()
    numbers.reach(12_346)
    try:
        for prefix in ("batch:", "x" * 1000):
            number = variable.numbered(prefix)
            for i in (0, 7, 12_345, 10):
                number[0] = numbers[i]
                assert os.environ[name] == f"{prefix}{i}"
                assert dict(os.environ)[name] == f"{prefix}{i}"
                printed = subprocess.run(["printenv", name], capture_output=True, check=True).stdout
                assert printed.decode() == f"{prefix}{i}\n"
        variable.set("plain")
        assert os.environ[name] == "plain"
    finally:
        os.environ.pop(name, None)


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
