"""CPython's own tests of executors, run against Client.

They call functions of the builtins, of `time` and of their own module, which patterns admit. Each
of them runs here but those that `CANNOT_HOLD` names, with the reason why a fleet is not a pool.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import traceback
import unittest
import weakref
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import pytest

from fsworker.client.executor import Client, TaskError
from fsworker.errors import UsageError
from tests.support import cpython_suite
from tests.support.fleet import NOTE, REPO, Fleet
from tests.support.waiting import Spawned, wait_until

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(600)]

CANNOT_HOLD = {
    "test_no_stale_references": "it submits a bound method: a task carries names and data, never "
    "an object with code",
    "test_max_workers_negative": "a client has no workers of its own: the run has",
    "test_free_reference": "its function returns an object that only pickle could carry; with a "
    "numpy array it is tested below",
    "test_interpreter_shutdown": "the task prints to the standard output of its worker, not of "
    "the process that submits",
    "test_hang_gh83386": "likewise",
    "test_submit_after_interpreter_shutdown": "its program makes a pool by its name in "
    "concurrent.futures; tested below with a client",
    "test_cancel_futures": "it takes for granted that what the workers have not begun can be "
    "cancelled; a client sends ahead, and what was sent is running",
}
ADMITTED = ("builtins.pow", "builtins.divmod", "builtins.str", "time.sleep")

_file = cpython_suite.find()
if _file is None:
    pytest.skip(
        "CPython's tests of this version are not here (Debian: libpython3.11-testsuite)",
        allow_module_level=True,
    )
# It goes when the process ends, not with the fleet: a process whose neighbour took tests of this
# file from it, and that then gets some back, starts another fleet.
_folder = tempfile.TemporaryDirectory(prefix="cpython-tests-")
suite: Any = cpython_suite.load(_file, Path(_folder.name))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    allow = (*ADMITTED, f"{cpython_suite.NAME}.*", "tests.support.client_functions.*")
    with Spawned() as spawned:
        path = tmp_path_factory.mktemp("conformance") / "run"
        fleet = Fleet(path, spawned, (NOTE,), allow=allow, pythonpath=_folder.name)
        fleet.start("h0", "h1")
        yield fleet.root


class _WithClient(unittest.TestCase):
    """In the place of the suite's ExecutorMixin, which gives each test a pool of its own."""

    root: Path
    executor: Executor
    executor_type = Client
    worker_count = 5

    @pytest.fixture(autouse=True)
    def _fleet(self, root: Path) -> None:
        self.root = root

    def setUp(self) -> None:
        self._threads = suite.threading_helper.threading_setup()
        self.executor = Client(self.root)

    def tearDown(self) -> None:
        self.executor.shutdown(wait=True)
        suite.threading_helper.threading_cleanup(*self._threads)


def _run_here(tests: type) -> type[unittest.TestCase]:
    left_out: dict[str, Any] = {name: None for name in CANNOT_HOLD if hasattr(tests, name)}
    return type(tests.__name__, (_WithClient, tests), {"__module__": __name__, **left_out})


TestExecutor = _run_here(suite.ExecutorTest)
TestShutdown = _run_here(suite.ExecutorShutdownTest)
TestWait = _run_here(suite.WaitTests)
TestAsCompleted = _run_here(suite.AsCompletedTests)


def test_what_is_left_out_exists() -> None:
    mixins = (suite.ExecutorTest, suite.ExecutorShutdownTest, suite.WaitTests)
    there = {name for tests in mixins for name in vars(tests)}
    assert set(CANNOT_HOLD) <= there


_LATE = """
import atexit, sys

@atexit.register
def run_last():
    for one in (client, unused):
        try:
            one.submit("builtins:pow", 2, 8)
        except RuntimeError as error:
            print(error)

from fsworker.client import Client
client, unused = Client(sys.argv[1]), Client(sys.argv[1])
print(client.submit("builtins:pow", 2, 8).result())
"""


def test_submitting_while_the_interpreter_ends_is_refused(root: Path) -> None:
    argv = [sys.executable, "-c", _LATE, str(root)]
    done = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout == "256\n" + 2 * "cannot schedule new futures after shutdown\n"
    assert not done.stderr


def test_results_that_were_taken_are_not_kept(root: Path) -> None:
    with Client(root) as client:
        for array in client.map("tests.support.client_functions:array", range(10)):
            held = weakref.ref(array)
            del array
            # The reading thread may be about to let go of the batch that it came in.
            wait_until(lambda ref=held: ref() is None, what="the array's end")


def test_an_exception_is_caught_by_its_type_and_shows_where_it_was_raised(root: Path) -> None:
    with Client(root) as client:
        future = client.submit(suite.sleep_and_raise, 0)
        error = future.exception(120)
        assert isinstance(error, TaskError) and error.remote_message == "this is an exception"
        with pytest.raises(ZeroDivisionError) as caught:
            client.submit(divmod, 1, 0).result(120)
    assert isinstance(caught.value, TaskError) and caught.value.type == "ZeroDivisionError"
    assert "in sleep_and_raise" in "".join(traceback.format_exception(error))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (f"{cpython_suite.NAME}:os.system", "defined in posix.system, which the run does not"),
        (f"{cpython_suite.NAME}:mul.__globals__.get", "defined in nowhere"),
        (f"{cpython_suite.NAME}:nothing", "defines no 'nothing'"),
        ("posix:system", "is not one that the run's manifest names"),
    ],
)
def test_a_pattern_admits_no_more_than_it_says(root: Path, name: str, words: str) -> None:
    with Client(root) as client:
        client._allowed._by_canonical[name.replace(":", ".")] = name  # a client that lies
        error = client.submit(name, "false").exception(120)
        assert isinstance(error, TaskError) and error.status == "refused"
        assert words in str(error.remote_message)


@pytest.mark.parametrize("fn", [os.system, lambda: 1, suite.MyObject().my_method, "os:system"])
def test_what_no_pattern_admits_is_refused_at_submit(root: Path, fn: Any) -> None:
    with Client(root) as client, pytest.raises(UsageError):
        client.submit(fn, "false")
