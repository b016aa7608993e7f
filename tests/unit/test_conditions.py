"""What holds during a call, repeats after a slot was killed, and where memory is looked for."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from typing import Any

import pytest

from fsworker import outcomes, procfs, remote
from fsworker.errors import Refused
from fsworker.protocol.segment import Records
from fsworker.slots import conditions, repeats, watching
from fsworker.slots.backlog import Work
from fsworker.slots.conditions import Conditions
from fsworker.slots.slot import Blame

pytestmark = pytest.mark.unit

MIB = 1 << 20


def call(function: Any, args: Any, kwargs: Any) -> tuple[str, Any]:
    try:
        return outcomes.OK, function(*args, **kwargs)
    except BaseException as error:
        return outcomes.ERROR, outcomes.raised(error)


def test_a_batch_that_asks_for_nothing_has_no_conditions() -> None:
    assert Conditions.of({}, None) is None
    assert Conditions.of({"env": None, "memory": None}, None) is None
    assert Conditions.of({"memory": "many"}, None) is None
    assert Conditions.of({}, 64 * MIB) is not None


def test_the_environment_is_undone_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOT_THERE", "before")
    env = {"SLOT_THERE": "now", "SLOT_NEW": "", "FLEET_RUN": "no", "A=B": "no", "N": "\0", "T": 1}
    found = Conditions.of({"env": env}, None)
    assert found is not None

    def user() -> list[str | None]:
        seen = [os.environ.get(name) for name in ("SLOT_THERE", "SLOT_NEW", "FLEET_RUN", "N", "T")]
        os.environ["SLOT_NEW"] = "spoilt"
        os.environ.pop("SLOT_THERE")
        return seen

    assert found.around(call, user, [], {}) == ("ok", ["now", "", None, None, None])
    assert os.environ["SLOT_THERE"] == "before" and "SLOT_NEW" not in os.environ
    status, _ = found.around(call, lambda: 1 // 0, [], {})
    assert status == "error" and os.environ["SLOT_THERE"] == "before"


def test_the_limit_holds_during_the_call_alone() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    found = Conditions.of({"memory": conditions.own_data() + 200 * MIB}, None)
    assert found is not None
    status, value = found.around(call, lambda: len(b"x" * (2000 * MIB)), [], {})
    assert status == outcomes.OUT_OF_MEMORY and found.spent
    assert value["type"] == "MemoryError" and "asked for with the task" in value["short"]
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    fine = Conditions.of({}, conditions.own_data() + 200 * MIB)
    assert fine is not None
    assert fine.around(call, lambda: 7, [], {}) == ("ok", 7) and not fine.spent
    status, _ = fine.around(call, lambda: 1 // 0, [], {})
    assert status == "error" and not fine.spent


def test_the_lower_of_two_limits_holds() -> None:
    for own, slot, words in ((100, 200, "asked for with"), (200, 100, "a slot")):
        found = Conditions.of({"memory": own * MIB}, slot * MIB)
        assert found is not None
        assert (found._limit, words in found._words) == (100 * MIB, True)


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        ("MemoryError", "", True),
        ("numpy._core._exceptions._ArrayMemoryError", "Unable to allocate 1 GiB", True),
        ("RuntimeError", "[enforce fail at alloc_cpu.cpp] can't allocate memory: you tried", True),
        ("RuntimeError", "std::bad_alloc", True),
        ("OSError", "[Errno 12] Cannot allocate memory", True),
        ("ValueError", "no", False),
    ],
)
def test_how_libraries_say_that_there_is_no_memory(kind: str, message: str, expected: bool) -> None:
    assert conditions.is_memory({"type": kind, "message": message}) is expected


def test_a_limit_below_what_is_loaded_is_refused() -> None:
    with pytest.raises(Refused, match="--slot-mem 2 MiB is too little"):
        conditions.check(2 * MIB)
    conditions.check(None)
    conditions.check(1 << 50)


def test_the_client_knows_the_outcome_as_a_memory_error() -> None:
    told = conditions.too_much(2 << 30, "a slot", outcomes.cause("MemoryError", "no", "trace"))
    error = remote.task_error(outcomes.OUT_OF_MEMORY, told)
    assert isinstance(error, remote.TaskOutOfMemory) and isinstance(error, MemoryError)
    assert "out of memory: limit 2 GiB (a slot): no" in str(error)
    assert outcomes.STATUSES[-1] == outcomes.OUT_OF_MEMORY  # codes of others stay what they are


def test_memory_of_a_tree_is_seen_from_outside() -> None:
    code = (
        "import subprocess, sys, time\n"
        "held = b'x' * (60 << 20)\n"
        "if len(sys.argv) > 1:\n"
        "    argv = [sys.executable, '-c', sys.argv[1]]\n"
        "    child = subprocess.Popen(argv, stdout=subprocess.PIPE)\n"
        "    child.stdout.readline()\n"
        "print(flush=True)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, code], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert 120 * MIB < watching.used(process.pid, 0) < 200 * MIB
        assert watching.used(process.pid, 1 << 40) > 120 * MIB
    finally:
        for pid in list(procfs.tree(process.pid)):
            os.kill(pid, 9)
        process.wait()
        process.stdout.close()
    assert watching.used(process.pid, 0) == 0


def _work(key: str, count: int) -> Work:
    return Work(key, {}, Records.of([b"\x90"] * count))


def test_a_task_is_repeated_once_and_only_while_it_is_wanted() -> None:
    found, work, other = repeats.Repeats(), _work("a", 3), _work("b", 1)
    assert not found and found.take() is None
    assert found.ask(work, 1) and found.ask(work, 2) and found.ask(other, 0)
    assert not found.ask(work, 1)
    work.answer(1, outcomes.CANCELLED, "answered meanwhile")
    assert found and found.take() == (work, 2)
    found.forget("b")
    assert found.take() is None and not found
    found.forget("a")
    assert found.ask(work, 1)  # an attempt anew
    blame = Blame(1, outcomes.CRASHED, outcomes.cause("Crashed", "signal 9"), 0.5)
    assert "the second time" in repeats.final(blame).value["short"]
