"""The client with real workers: what the tasks of real processes can come to."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsworker.client.executor import Client, TaskCrashed, TaskError, TaskTimeout
from fsworker.errors import NoWorkers
from tests.support import client_functions
from tests.support.fleet import MISBEHAVE, NOTE, REPO, Fleet
from tests.support.waiting import Spawned, wait_until

pytestmark = pytest.mark.fleet


@pytest.fixture
def spawned() -> Iterator[Spawned]:
    with Spawned() as spawned:
        yield spawned


@pytest.fixture
def fleet(tmp_path: Path, spawned: Spawned) -> Fleet:
    return Fleet(tmp_path / "run", spawned)


def _lines(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_values_errors_crashes_and_timeouts(fleet: Fleet, tmp_path: Path) -> None:
    fleet.start("h0", "h1")
    notes = str(tmp_path / "notes")
    with Client(fleet.root, timeout=1.0) as client:
        good = [client.submit(client_functions.note, notes, i) for i in range(50)]
        crash = client.submit(MISBEHAVE, "segfault")
        leave = client.submit(MISBEHAVE, "os_exit")
        wrong = client.submit(MISBEHAVE, "value_error")
        hang = client.submit(MISBEHAVE, "deadlock")
        mapped = client.map(NOTE, [notes] * 5000, range(100, 5100))
        assert [f.result(120) for f in good] == list(range(50))
        for future in (crash, leave):
            assert isinstance(future.exception(120), TaskCrashed)
        error = wrong.exception(120)
        assert isinstance(error, TaskError) and error.type == "ValueError"
        assert "functions_for_tests.py" in error.traceback
        assert isinstance(hang.exception(120), TaskTimeout)
        assert list(mapped) == list(range(100, 5100))
    assert Counter(_lines(tmp_path / "notes")) == Counter([*range(50), *range(100, 5100)])
    assert not fleet.files()


def test_a_worker_is_killed_and_every_task_has_one_result(fleet: Fleet, tmp_path: Path) -> None:
    fleet.start("h0", "h1")
    notes, answered = tmp_path / "notes", Counter[int]()
    with Client(fleet.root) as client:
        futures = [client.submit(NOTE, str(notes), i, 0.005) for i in range(400)]
        for future in futures:
            future.add_done_callback(lambda f: answered.update([f.result()]))
        wait_until(lambda: len(_lines(notes)) > 50)
        fleet.kill("h0")
        fleet.start("h0")  # the next life on that host takes back what the dead one held
        assert [f.result(120) for f in futures] == list(range(400))
    assert answered == Counter(range(400))
    assert not fleet.files()


_CLIENT = """
import sys
from fsworker.client import Client
root, notes, kept, gate = sys.argv[1:]
client = Client(root, stream="trainer-7")
file = open(kept, "a", buffering=1)
for i in range(300):
    future = client.submit(None, notes, i, gate if i >= 200 else "/")
    future.add_done_callback(lambda f: print(f.result(), file=file))
client.shutdown()
"""


def test_a_killed_clients_stream_is_resumed_by_name(spawned: Spawned, tmp_path: Path) -> None:
    """The last hundred wait for its death, however late that comes."""
    fleet = Fleet(tmp_path / "run", spawned, ["tests.support.client_functions:note_once"])
    notes, kept, gate = tmp_path / "notes", tmp_path / "kept", tmp_path / "gate"
    argv = [sys.executable, "-c", _CLIENT, str(fleet.root), str(notes), str(kept), str(gate)]
    child = spawned.start(argv, cwd=REPO)
    fleet.start("h0", "h1")
    wait_until(lambda: len(_lines(kept)) > 20)
    child.kill()
    child.wait()
    gate.touch()
    before = _lines(kept)
    assert 20 < len(before) <= 200
    # What was sent finishes though nobody is there to take it.
    wait_until(lambda: not _claimed_or_pending(fleet))
    with Client(fleet.root, stream="trainer-7") as client:
        assert client.submit(None, str(notes), 1000, "/").result(120) == 1000
        again = [recovered.value for recovered in client.recover()]
        assert list(client.recover()) == []
    ran = Counter(_lines(notes))
    assert set(ran.values()) == {1}, "nothing ran twice"
    assert set(before) | set(again) | {1000} == set(ran), "nothing that ran is lost"
    assert len(set(again)) == len(again)
    # It may have died between the two files of a result that it forgot: garbage, not a commit.
    assert not [f for f in fleet.files() if f.endswith(".done")] + _claimed_or_pending(fleet)


def _claimed_or_pending(fleet: Fleet) -> list[str]:
    # A client that is killed while it writes leaves a temporary, which no reader looks at.
    files = [f for f in fleet.files() if not os.path.basename(f).startswith(".")]
    return [f for f in files if f"{os.sep}outbox{os.sep}" not in f]


def test_when_the_last_worker_has_stopped_clients_do_not_wait(fleet: Fleet, tmp_path: Path) -> None:
    fleet.start("h0")
    notes = str(tmp_path / "notes")
    with Client(fleet.root, no_worker_timeout=3.0) as client:
        assert client.submit(None, notes, 1).result(120) == 1
        fleet.stop("h0")
        with pytest.raises(NoWorkers, match=str(fleet.root)):
            client.submit(None, notes, 2).result(120)
        fleet.start("h1")
        assert client.submit(None, notes, 3).result(120) == 3
        wait_until(lambda: sorted(_lines(Path(notes))) == [1, 2, 3])
        wait_until(lambda: client.submit(None, notes, 4).result(120) and not fleet.files())
