"""Slots with real processes: what user code does to its own slot, and to nobody else's."""

from __future__ import annotations

import os
import signal
import struct
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsworker import procfs
from fsworker.executors import Setting
from fsworker.protocol import packing
from fsworker.protocol.segment import Records
from fsworker.slots import inspection
from fsworker.slots import link as zygote_link
from fsworker.slots import pool as slots
from fsworker.slots import wire as slot_wire
from fsworker.slots.backlog import Work
from tests.support.slotbench import Bench, refusal
from tests.support.waiting import Spawned, gone, proc_state, wait_until, with_environ
from tests.support.workers import MODULE

pytestmark = pytest.mark.fleet


@pytest.fixture
def mark() -> Iterator[str]:
    mark = uuid.uuid4().hex
    with Spawned(f"SLOT_TEST={mark}"):
        yield mark


@pytest.fixture(params=["fork", "spawn"])
def bench(request: pytest.FixtureRequest, mark: str) -> Iterator[Bench]:
    found = Bench(2, request.param, mark, named=request.param == "spawn")
    found.until(found.all_idle, what="ready")
    yield found
    found.executor.close()
    assert with_environ(f"SLOT_TEST={mark}") == []


@pytest.fixture
def forked(mark: str) -> Iterator[Bench]:
    found = Bench(2, "fork", mark)
    found.until(found.all_idle, what="ready")
    yield found
    found.executor.close()
    assert with_environ(f"SLOT_TEST={mark}") == []


CRASHES = [
    ("segfault", "crashed", "signal 11 (SIGSEGV)"),
    ("os_exit", "crashed", "exit code 0"),
    ("sys_exit", "error", "SystemExit: the task called for exit with 3"),
    ("interrupt", "error", "KeyboardInterrupt"),
    ("odd_exception", "error", "_Odd: odd one"),
    ("mute_exception", "error", "str() raised RuntimeError"),
    ("surrogate", "error", "ValueError: bad \\ud800 text"),
    ("value_error", "error", "ValueError: plainly wrong"),
    ("recurse", "error", "RecursionError"),
    ("lambda", "invalid", "a function cannot be sent"),
    ("circular", "invalid", "cannot be sent"),
    ("big_int", "invalid", "an integer outside"),
    ("kill_self", "crashed", "signal 9 (SIGKILL)"),
    ("abort", "crashed", "signal 6 (SIGABRT)"),
]


def test_each_bad_task_has_its_own_cause_and_its_neighbours_have_none(bench: Bench) -> None:
    good = [["echo"]] * 40
    calls = [[how] for how, _, _ in CRASHES]
    mixed = [
        call for i in range(0, 40, 3) for call in ([["alarm"]] * 3 + calls[i // 3 : i // 3 + 1])
    ]
    assert len(mixed) >= len(good) + len(calls)
    answers = bench.run("misbehave", mixed)
    expected = {how: (status, words) for how, status, words in CRASHES}
    for call, (status, value) in zip(mixed, answers, strict=True):
        if call == ["alarm"]:
            assert (status, value) == ("ok", "alarm set")
        else:
            wanted, words = expected[call[0]]
            assert status == wanted, call
            assert words in value["short"] or words in value["message"], (call, value)
    bench.until(bench.all_idle, what="full capacity")


def test_an_alarm_that_a_task_leaves_does_not_hit_the_next(forked: Bench) -> None:
    calls = [["alarm_default", 0.01], ["value_error"]] * 4
    statuses = [status for status, _ in forked.run("misbehave", calls)]
    assert statuses == ["ok", "error"] * 4
    assert {s for s, _ in forked.run("sleep", [[0.1]] * 4)} == {"ok"}


def test_closed_and_abused_standard_descriptors_are_nobody_elses_business(forked: Bench) -> None:
    before = {value for _, value in forked.run("pid", [[]] * 50)}
    answers = forked.run("misbehave", [["close_std"], ["print_garbage"]] * 10)
    assert [status for status, _ in answers] == ["ok"] * 20
    assert {value for _, value in forked.run("pid", [[]] * 50)} <= before  # no slot was lost


def test_a_task_that_forks_and_returns_twice_answers_once(forked: Bench) -> None:
    assert forked.run("misbehave", [["fork_and_return"]] * 6) == [("ok", 7)] * 6
    assert [v for _, v in forked.run("double", [[i] for i in range(50)])] == [
        2 * i for i in range(50)
    ]


def test_coroutines_are_run_and_may_fail_in_every_way(bench: Bench) -> None:
    assert bench.run("double_async", [[i] for i in range(20)]) == [("ok", 2 * i) for i in range(20)]
    answers = bench.run("raise_async", [["exit"], ["value"], ["interrupt"], ["value"]])
    kinds = [(status, value["type"]) for status, value in answers]
    assert kinds == [
        ("error", "SystemExit"),
        ("error", "ValueError"),
        ("error", "KeyboardInterrupt"),
        ("error", "ValueError"),
    ]


def test_large_arguments_and_results_pass(forked: Bench) -> None:
    big = b"x" * 3_000_000
    assert forked.run("echo", [[big], [1], [big]]) == [("ok", big), ("ok", 1), ("ok", big)]
    answers = forked.run("misbehave", [["big", n] for n in (65_000, 65_400, 65_536, 200_000, 1)])
    assert [len(value) for _, value in answers] == [65_000, 65_400, 65_536, 200_000, 1]


def test_hanging_tasks_are_ended_at_their_time_with_all_they_started(
    bench: Bench, mark: str
) -> None:
    started = time.monotonic()
    calls = [["spin_in_c"], ["backtrack"], ["deadlock"], ["helpers", mark]]
    answers = bench.run("misbehave", calls, timeout=1.0)
    assert time.monotonic() - started < 100
    assert [(s, v["message"]) for s, v in answers] == [("timeout", "no result after 1 s")] * 4
    bench.until(bench.all_idle, what="full capacity")
    pids = {slot.pid for slot in bench.executor.pool.slots}
    zygote = bench.executor.pool.zygote_pid
    wait_until(lambda: set(with_environ(f"SLOT_TEST={mark}")) <= pids | {zygote}, what="cleanup")


def test_a_task_may_have_a_time_of_its_own(forked: Bench) -> None:
    meta = {"fn": f"{MODULE}.sleep", "batch": "b", "attempt": 1, "timeout": 60.0}
    records = [packing.pack([None, [30], {}, {"timeout": t}]) for t in (0.2, 0, "soon", True)]
    work = Work("own", meta, Records.of(records))
    work.open_all()
    forked.executor.add(work)
    forked.until(lambda: work.finished)
    found = [packing.unpack(work.results[i]) for i in range(4)]
    assert [f[2] for f in found] == ["timeout", "invalid", "invalid", "invalid"]
    assert "no result after 0.2 s" in found[0][3]["message"]


def test_what_was_finished_before_a_neighbour_hangs_is_known_at_once(mark: str) -> None:
    bench = Bench(1, "fork", mark)
    work = bench.add("sleep", [[0.0], [0.0], [0.002], [0.0], [600]])
    bench.until(lambda: len(work.results) == 4, what="four results")
    bench.executor.drop(work.key)
    bench.until(bench.all_idle, what="its slot is replaced")
    bench.executor.close()


def test_tasks_behind_a_slow_one_go_to_idle_slots(forked: Bench) -> None:
    work = forked.add("sleep", [[600.0], *([[0.0]] * 30)])
    forked.until(lambda: len(work.results) == 30, what="thirty results")
    forked.executor.drop(work.key)


def test_forty_eight_slots_keep_their_capacity(mark: str) -> None:
    bench = Bench(48, "fork", mark)
    bench.until(bench.all_idle, what="ready")
    for _ in range(3):
        hanging = [["spin_in_c"]] * 4 + [["backtrack"]] * 4
        started = time.monotonic()
        answers = bench.run("misbehave", [["alarm"]] * 40 + hanging, timeout=2.0)
        assert [s for s, _ in answers] == ["ok"] * 40 + ["timeout"] * 8
        assert time.monotonic() - started < 100
        bench.until(bench.all_idle, what="full capacity")
        zygote = bench.executor.pool.zygote_pid
        assert zygote is not None
        states = [s.state for s in procfs.descendants([zygote])]
        assert len(states) == 48 and "Z" not in states
    bench.executor.close()


def test_a_lost_slot_is_back_in_milliseconds(forked: Bench) -> None:
    """Some time: a busy machine keeps it waiting, but what has to import is never so fast."""
    pauses = [1.0]
    while min(pauses) >= 0.05 and len(pauses) < 100:
        slot = forked.executor.pool.slots[0]
        before = slot.pid
        started = time.monotonic()
        os.kill(before, signal.SIGKILL)
        forked.until(lambda b=before, s=slot: s.pid != b and s.state == "idle", what="a new one")
        pauses.append(time.monotonic() - started)
    print("a lost slot was back after", [f"{1000 * p:.1f} ms" for p in sorted(pauses)])
    assert min(pauses) < 0.05


def test_a_killed_zygote_takes_its_slots_along_and_all_come_back(forked: Bench) -> None:
    pool = forked.executor.pool
    zygote, pids = pool.zygote_pid, [slot.pid for slot in pool.slots]
    assert zygote is not None
    work = forked.add("sleep", [[0.3]] * 4)
    forked.until(lambda: forked.executor.busy() == 2, what="busy")
    os.kill(zygote, signal.SIGKILL)
    forked.until(lambda: work.finished, what="all results")
    assert all(gone(pid) for pid in (zygote, *pids))
    assert {packing.unpack(r)[2] for r in work.results.values()} == {"ok"}
    forked.until(forked.all_idle, what="full capacity")
    assert pool.zygote_pid != zygote


def test_a_stopped_slot_is_ended_at_its_time(forked: Bench, tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    work = forked.add("append", [[log, "x", 0.5]], timeout=1.0)
    forked.until(lambda: Path(log).exists(), what="it begins")
    (busy,) = [s for s in forked.executor.pool.slots if s.state == "busy"]
    os.kill(busy.pid, signal.SIGSTOP)
    wait_until(lambda: proc_state(busy.pid) == "T", what="stopped")
    forked.until(lambda: work.finished, what="its timeout")
    assert packing.unpack(work.results[0])[2] == "timeout"


def test_a_slot_that_begins_nothing_is_replaced_and_nobody_is_blamed(
    forked: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "BEGIN_PATIENCE", 0.3)
    frozen = [slot.pid for slot in forked.executor.pool.slots]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: all(proc_state(pid) == "T" for pid in frozen), what="stopped")
    assert forked.run("double", [[4], [5]], timeout=60.0) == [("ok", 8), ("ok", 10)]
    assert all(gone(pid) for pid in frozen)


GARBAGE = [
    b"\xff" * 64,  # no kind of frame
    b"\xff" * 5,  # garbage only together with what the slot sends next
    slot_wire.pack_frame(slot_wire.READY, 1),
    slot_wire.pack_frame(slot_wire.FAILED, 0, b"the end"),
    struct.pack("<BIQ", slot_wire.RESULTS, 1, 1 << 60),
]


@pytest.mark.parametrize(
    ("garbage", "pause"),
    # What is shorter than a frame's head shows only once the task has ended.
    [(g, pause) for g in GARBAGE for pause in (0.0, 60.0) if not pause or len(g) >= 13],
)
def test_who_writes_to_its_slots_socket_has_crashed_and_nobody_else(
    mark: str, garbage: bytes, pause: float
) -> None:
    bench = Bench(2, "fork", mark)
    bench.until(bench.all_idle, what="ready")
    work = bench.add("misbehave", [["alarm"], ["garble", garbage, pause], ["alarm"]] * 2)
    bench.until(lambda: work.finished, what="all results")
    found = [packing.unpack(work.results[i])[2] for i in range(6)]
    if pause:
        assert found == ["ok", "crashed", "ok"] * 2
        message = packing.unpack(work.results[1])[3]["message"]
        assert "socket" in message
    else:  # it may have been answered before anybody saw
        assert [found[i] for i in (0, 2, 3, 5)] == ["ok"] * 4
        assert {found[1], found[4]} <= {"ok", "crashed"}
    bench.until(bench.all_idle, what="full capacity")
    assert bench.run("double", [[4], [5]]) == [("ok", 8), ("ok", 10)]
    bench.executor.close()


def test_who_makes_its_slot_silent_again_and_again_has_crashed(
    forked: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "BEGIN_PATIENCE", 0.3)
    # A head that promises more than ever comes, with the right number, is lost in the same way.
    real = slot_wire.take_frames
    monkeypatch.setattr(
        slot_wire,
        "take_frames",
        lambda buffer, number: iter(()) if b"mute me" in buffer else real(buffer, number),
    )
    work = forked.add("echo", [["mute me"], ["aloud"]])
    forked.until(lambda: work.finished, what="both results")
    found = [packing.unpack(work.results[i]) for i in range(2)]
    assert [f[2] for f in found] == ["crashed", "ok"]
    assert "lost 5 times" in found[0][3]["message"]


@pytest.mark.parametrize("then", ["crash", "hang"])
def test_a_zygote_that_does_not_answer_is_replaced(
    forked: Bench, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    monkeypatch.setattr(slots, "STUCK_AFTER", 0.5)
    monkeypatch.setattr(zygote_link, "PING_PATIENCE", 0.5)
    zygote = forked.executor.pool.zygote_pid
    assert zygote is not None
    forked.run("misbehave", [["stop_zygote"]])
    wait_until(lambda: proc_state(zygote) == "T", what="stopped")
    how = "kill_self" if then == "crash" else "spin_in_c"
    work = forked.add("misbehave", [[how], [how]], timeout=1.0)
    forked.until(lambda: work.finished, what="both results")
    found = {packing.unpack(r)[2] for r in work.results.values()}
    assert found == {"crashed" if then == "crash" else "timeout"}
    forked.until(forked.all_idle, what="full capacity")
    assert forked.executor.total() == 2
    assert forked.executor.pool.zygote_pid != zygote and gone(zygote)


def test_slots_that_really_do_not_end_are_not_counted_until_they_do(
    forked: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "STUCK_AFTER", 0.3)
    pool = forked.executor.pool
    # What is killed and lives on cannot be had at will: its kill is swallowed instead.
    monkeypatch.setattr(zygote_link.ZygoteLink, "order_kill", lambda *_: True)
    stuck = [slot.pid for slot in pool.slots]
    work = forked.add("misbehave", [["deadlock"], ["deadlock"]], timeout=0.5)
    forked.until(lambda: work.finished, what="two timeouts")
    message = packing.unpack(work.results[0])[3]["message"]
    assert "was killed and does not end" in message
    assert (forked.executor.total(), forked.executor.busy()) == (0, 0)
    assert forked.executor.room() <= 0
    for pid in stuck:
        os.kill(pid, signal.SIGKILL)
    forked.until(forked.all_idle, what="full capacity")
    assert forked.executor.total() == 2 and forked.executor.room() > 0


def test_dropped_work_is_ended_and_forgotten(forked: Bench, tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    work = forked.add("append", [[log, "x", 60.0]] * 2)
    forked.until(lambda: Path(log).exists(), what="it begins")
    forked.executor.drop(work.key)
    forked.until(forked.all_idle, what="idle again")
    assert not work.results
    assert forked.run("double", [[4]]) == [("ok", 8)]


def test_each_slot_draws_its_own_random_numbers(mark: str) -> None:
    pytest.importorskip("numpy")
    bench = Bench(2, "fork", mark)
    calls = [["random_numbers", 0.2]] * 2
    answers = bench.run("misbehave", calls)
    assert answers[0] != answers[1]
    bench.executor.close()


def test_the_environment_is_set_before_the_import_and_for_each_task(bench: Bench) -> None:
    names = ["OMP_NUM_THREADS", "FLEET_ATTEMPT", "FLEET_TASK_ID", "FLEET_LIFE_FD"]
    answers = bench.run("environment", [names] * 3)
    ids = [bench.id_of(i) or f"b:{i}" for i in range(3)]
    assert [value for _, value in answers] == [["1", "1", i, None] for i in ids]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_functions_that_cannot_be_loaded_are_refused(start: str, mark: str) -> None:
    said = refusal(Setting(1, ("nowhere:f",), slot_start=start, env={"SLOT_TEST": mark}))
    assert said and "there is no module 'nowhere'" in said
