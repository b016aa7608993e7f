"""What slots are given, with real processes: memory, devices, an environment, an event loop."""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fsworker.executors import Setting
from fsworker.protocol import packing
from fsworker.protocol.records.slots import SlotTerms
from fsworker.slots import devices
from tests.support.ctlrun import Ctl
from tests.support.slotbench import Bench, refusal
from tests.support.waiting import Spawned, with_environ
from tests.support.workers import REPO

pytestmark = pytest.mark.fleet

MODULE = "tests.support.slot_functions"
PLAIN = ("pid", "at_import", "variables", "grow", "in_numbers", "children_grow", "note")
ASYNC = (
    *("together", "nap", "note_async", "stubborn", "block", "end_process", "leave_task"),
    *("raise_late", "pid", "grow"),
)
MIB = 1 << 20


@pytest.fixture
def mark() -> Iterator[str]:
    mark = uuid.uuid4().hex
    with Spawned(f"SLOT_TEST={mark}"):
        yield mark


@pytest.fixture
def open_bench(mark: str) -> Iterator[Callable[..., Bench]]:
    """Benches that are ready, closed at the end."""
    opened: list[Bench] = []

    def make(slots: int, start: str = "fork", functions: Any = PLAIN, **more: Any) -> Bench:
        bench = Bench(slots, start, mark, module=MODULE, functions=functions, **more)
        opened.append(bench)
        bench.until(bench.all_idle, what="ready")
        return bench

    yield make
    for bench in opened:
        bench.executor.close()
    assert with_environ(f"SLOT_TEST={mark}") == []


def found(work: Any) -> list[Any]:
    """(status, value) of each task."""
    return [packing.unpack(work.results[i])[2:4] for i in range(len(work.records))]


# -- memory


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_who_takes_too_much_is_told_so_and_its_slot_is_replaced(
    open_bench: Callable[..., Bench], start: str
) -> None:
    bench = open_bench(2, start, terms=SlotTerms(memory=400 * MIB))
    before = {slot.pid for slot in bench.executor.pool.slots}
    work = bench.add("grow", [[16], [3000], [16], [100]])
    bench.until(lambda: work.finished, what="all results")
    answers = found(work)
    assert [status for status, _ in answers] == ["ok", "out of memory", "ok", "ok"]
    told = answers[1][1]
    assert told["type"] == "MemoryError"
    assert told["message"].startswith("out of memory: limit 400 MiB (a slot)")
    assert "in grow" in told["traceback"]
    bench.until(bench.all_idle, what="full capacity")
    after = {slot.pid for slot in bench.executor.pool.slots}
    assert len(after - before) == 1  # that slot alone


def test_libraries_that_have_their_own_words_are_understood(
    open_bench: Callable[..., Bench],
) -> None:
    pytest.importorskip("numpy")
    bench = open_bench(1, terms=SlotTerms(memory=400 * MIB))
    ((status, value), fine) = bench.run("in_numbers", [[2000], [16]])
    assert (status, fine) == ("out of memory", ["ok", 16]) or fine == ("ok", 16)
    assert "Unable to allocate" in value["message"]


def test_what_a_task_starts_counts_with_it(open_bench: Callable[..., Bench]) -> None:
    bench = open_bench(2, terms=SlotTerms(memory=400 * MIB))
    work = bench.add("children_grow", [[180, 3]])
    good = bench.add("grow", [[64]] * 20)
    bench.until(lambda: work.finished and good.finished, what="all results")
    ((status, value),) = found(work)
    assert status == "out of memory"
    assert value["message"] == "out of memory: limit 400 MiB (a slot with all that it started)"
    assert {status for status, _ in found(good)} == {"ok"}


def test_a_call_may_have_a_lower_limit_of_its_own(open_bench: Callable[..., Bench]) -> None:
    bench = open_bench(1)
    (answer,) = bench.run("grow", [[2000]], memory=300 * MIB)
    assert answer[0] == "out of memory"
    assert "limit 300 MiB (asked for with the task)" in answer[1]["message"]
    assert bench.run("grow", [[500]]) == [("ok", 504)]  # and the next call has none


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_limit_that_the_import_has_used_up_is_refused(mark: str, start: str) -> None:
    terms = SlotTerms(memory=2 * MIB)
    setting = Setting(
        1, (f"{MODULE}.pid",), slot_start=start, env={"PYTHONPATH": REPO}, terms=terms
    )
    said = refusal(setting)
    assert said and "--slot-mem 2 MiB is too little" in said


# -- killed by somebody else


def killed(bench: Bench, work: Any, log: Path, times: int) -> None:
    """SIGKILL the slot of a task as often as it begins, `times` at most; let it end after that."""
    for count in range(times):
        bench.until(
            lambda c=count: log.exists() and log.read_text().count("victim ") == c + 1,
            what="it begins",
        )
        line = [line for line in log.read_text().splitlines() if line.startswith("victim ")][-1]
        os.kill(int(line.split()[1]), signal.SIGKILL)
    Path(f"{log}.go").touch()
    bench.until(lambda: work.finished, what="its result")


def test_a_task_whose_slot_was_killed_runs_again_with_nobody_beside_it(
    open_bench: Callable[..., Bench], tmp_path: Path
) -> None:
    bench, log = open_bench(2), tmp_path / "log"
    work = bench.add("note", [[str(log), "victim", 60.0]])
    bench.until(log.exists, what="it begins")
    others = bench.add("note", [[str(log), f"other{i}", 0.02] for i in range(60)])
    killed(bench, work, log, 1)
    assert found(work) == [["ok", "victim"]]
    bench.until(lambda: others.finished, what="the others")
    lines = [line.split()[0] for line in log.read_text().splitlines()]
    second = len(lines) - 1 - lines[::-1].index("victim")
    running = sum(1 if not line.startswith("/") else -1 for line in lines[:second])
    assert running == 1  # the first life of the victim, which never said its end
    assert lines[second + 1] == "/victim"


def test_a_task_whose_slot_is_killed_twice_has_crashed(
    open_bench: Callable[..., Bench], tmp_path: Path
) -> None:
    bench, log = open_bench(2), tmp_path / "log"
    work = bench.add("note", [[str(log), "victim", 60.0], [str(log), "good", 0.0]])
    killed(bench, work, log, 2)
    bad, good = found(work)
    assert good == ["ok", "good"]
    assert bad[0] == "crashed"
    assert "signal 9 (SIGKILL), which the fleet did not send (out of memory?)" in bad[1]["message"]
    assert "the second time, and nothing else was running" in bad[1]["message"]


# -- environment and devices


def test_a_call_has_its_own_environment_and_leaves_none(open_bench: Callable[..., Bench]) -> None:
    bench = open_bench(1)
    names = ["SLOT_A", "SLOT_TEST"]
    mark = bench.run("variables", [["SLOT_TEST"]], env={"SLOT_TEST": "mine"})
    assert mark == [("ok", ["mine"])]
    own = bench.run("variables", [names] * 3, env={"SLOT_A": "a=1", "SLOT_TEST": ""})
    assert own == [("ok", ["a=1", ""])] * 3
    ((_, after),) = bench.run("variables", [names])
    assert after[0] is None and after[1] not in ("", "mine", "spoilt")


def test_slots_see_their_own_devices_before_the_import(open_bench: Callable[..., Bench]) -> None:
    terms = SlotTerms(gpus="GPU-7,MIG-9")
    _, parts = devices.plan(terms, 2, {"CUDA_VISIBLE_DEVICES": "0,1"})
    bench = open_bench(2, "spawn", slot_env=parts, terms=terms)
    for name in ("CUDA_VISIBLE_DEVICES", "FLEET_GPUS"):
        answers = bench.run("at_import", [[name]] * 6)
        assert {value for _, value in answers} == {"GPU-7", "MIG-9"}


def test_a_run_shows_who_has_which_device_and_refuses_too_many_slots(tmp_path: Path) -> None:
    with Ctl(tmp_path) as ctl:
        root = ("--root", str(ctl.runs / "run"))
        more = ("--fn", f"{MODULE}:at_import", "--gpus", "GPU-7,MIG-9")
        refused = ctl("start", *root, *more, "--concurrency", "3")
        assert refused.returncode == 5
        assert "3 slots do not fit on 2 GPUs (--gpus: GPU-7,MIG-9)" in refused.stderr
        assert ctl("start", *root, *more, "--concurrency", "2").returncode == 0
        (host,) = json.loads(ctl("status", *root, "--json").stdout)["hosts"]
        assert host["gpus"] == ["GPU-7", "MIG-9"]
        assert ctl("stop", *root).returncode == 0


# -- coroutines


@pytest.fixture(params=["fork", "spawn"])
def loop(request: pytest.FixtureRequest, open_bench: Callable[..., Bench]) -> Bench:
    """One process with four places."""
    return open_bench(1, request.param, ASYNC, terms=SlotTerms(coroutines=4))


@pytest.fixture
def forked(open_bench: Callable[..., Bench]) -> Bench:
    return open_bench(1, "fork", ASYNC, terms=SlotTerms(coroutines=4))


def test_coroutines_run_at_once_in_one_process(loop: Bench) -> None:
    answers = loop.run("together", [[4]] * 8)
    assert [status for status, _ in answers] == ["ok"] * 8
    assert len({value for _, value in answers}) == 1
    assert loop.run("nap", [[0.0, i] for i in range(300)]) == [("ok", i) for i in range(300)]
    assert len({value for _, value in loop.run("pid", [[]] * 20)}) == 1  # plain ones go on


def test_a_time_that_is_over_ends_one_coroutine_alone(forked: Bench) -> None:
    pid = forked.executor.pool.slots[0].pid
    long, short = forked.add("nap", [[1.0, 7]] * 2), forked.add("nap", [[60]] * 2, timeout=0.3)
    forked.until(lambda: long.finished and short.finished, what="all results")
    assert found(long) == [["ok", 7]] * 2
    assert [(s, v["message"]) for s, v in found(short)] == [
        ("timeout", "no result after 0.3 s")
    ] * 2
    assert forked.executor.pool.slots[0].pid == pid


def test_one_coroutine_is_cancelled_alone(forked: Bench, tmp_path: Path) -> None:
    log, pid = tmp_path / "log", forked.executor.pool.slots[0].pid
    work = forked.add("note_async", [[str(log), "a", 1.0], [str(log), "b", 60.0]])
    forked.until(lambda: log.exists() and len(log.read_text().split()) == 2, what="both begin")
    forked.executor.cancel(work, [1])
    forked.until(lambda: work.finished and forked.all_idle(), what="the other's result")
    assert [status for status, _ in found(work)] == ["ok", "cancelled"]
    dropped = forked.add("nap", [[60.0]] * 4)
    forked.until(lambda: forked.executor.busy() == 4, what="busy")
    forked.executor.drop(dropped.key)
    forked.until(forked.all_idle, what="idle again")
    assert forked.executor.pool.slots[0].pid == pid


def test_a_coroutine_that_does_not_end_is_ended_with_its_process(forked: Bench) -> None:
    bad, good = forked.add("stubborn", [[60]], timeout=0.3), forked.add("nap", [[3.0, 1]])
    forked.until(lambda: bad.finished and good.finished, what="both results")
    assert [status for status, _ in found(bad)] == ["timeout"]
    assert found(good) == [["ok", 1]]


def test_who_keeps_the_loop_from_turning_harms_nobody_else(
    forked: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    guilty = forked.add("block", [[60]], timeout=3.0)
    others = forked.add("nap", [[0.5, i] for i in range(3)], timeout=0.8)
    forked.until(lambda: others.finished and guilty.finished, what="all results")
    assert found(others) == [["ok", i] for i in range(3)]
    assert [status for status, _ in found(guilty)] == ["timeout"]
    assert caplog.text.count("Blocked: it kept the event loop of its slot from turning") == 1


def test_who_ends_the_process_is_found_among_all_that_ran_in_it(
    forked: Bench, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    good = forked.add("note_async", [[str(log), str(i), 1.0] for i in range(3)])
    bad = forked.add("end_process", [[]])
    forked.until(lambda: good.finished and bad.finished, what="all results")
    assert found(good) == [["ok", str(i)] for i in range(3)]
    ((status, value),) = found(bad)
    assert status == "crashed" and "exit code 7" in value["message"]
    assert max(map(log.read_text().split().count, "012")) == 2  # once more, and no more


def test_coroutines_fail_in_every_way_and_leave_nothing(forked: Bench, tmp_path: Path) -> None:
    answers = forked.run("raise_late", [["exit"], ["value"]])
    assert [(s, v["type"]) for s, v in answers] == [
        ("error", "SystemExit"),
        ("error", "ValueError"),
    ]
    ((status, value),) = forked.run("nap", [[0]], env={"A": "b"})
    assert status == "invalid" and "it asks for env of its own" in value["message"]
    late = tmp_path / "late"
    assert forked.run("leave_task", [[str(late)]]) == [("ok", "False")]
    forked.run("nap", [[1.5]])
    assert not late.exists()


def test_memory_is_limited_for_all_coroutines_of_a_slot(open_bench: Callable[..., Bench]) -> None:
    bench = open_bench(1, "fork", ASYNC, terms=SlotTerms(coroutines=3, memory=400 * MIB))
    pid = bench.executor.pool.slots[0].pid
    bad, good = bench.add("grow", [[3000]]), bench.add("nap", [[0.3, i] for i in range(9)])
    bench.until(lambda: bad.finished and good.finished, what="all results")
    ((status, value),) = found(bad)
    assert status == "out of memory" and "limit 400 MiB" in value["message"]
    assert found(good) == [["ok", i] for i in range(9)]
    bench.until(bench.all_idle, what="full capacity")
    assert bench.executor.pool.slots[0].pid != pid
