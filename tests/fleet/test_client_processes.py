"""Clients and processes: forked, pickled, spawned with, and killed while ids are under way."""

from __future__ import annotations

import multiprocessing
import pickle
import sys
from collections import Counter
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from fsworker.client.executor import AlreadyDelivered, Client
from tests.support.fleet import NOTE, REPO, Fleet
from tests.support.waiting import Spawned, wait_until

pytestmark = pytest.mark.fleet


@pytest.fixture
def spawned() -> Iterator[Spawned]:
    with Spawned() as spawned:
        yield spawned


@pytest.fixture
def fleet(tmp_path: Path, spawned: Spawned) -> Fleet:
    return Fleet(tmp_path / "run", spawned, (NOTE,))


def _lines(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def _use(client: Client, notes: str, number: int) -> list[str]:
    """What a child does with a client that it was given."""
    assert client._engine is None, "nothing of the parent's is used"
    with client:
        assert client.submit(None, notes, number).result(120) == number
        assert list(client.map(None, [notes] * 2, [number + 1, number + 2]))
        assert client._engine is not None
        return [client._engine.incarnation, client.stream or ""]


def _send(pipe: Connection, client: Client, notes: str, number: int) -> None:
    pipe.send(_use(client, notes, number))


def _child(context: Any, client: Client, notes: str, number: int) -> tuple[Any, Connection]:
    mine, theirs = context.Pipe()
    child = context.Process(target=_send, args=(theirs, client, notes, number))
    child.start()
    theirs.close()
    return child, mine


def _answer(child: Any, pipe: Connection) -> list[str]:
    with pipe:
        assert pipe.poll(60), "the child says nothing"
        answer: list[str] = pipe.recv()
    child.join(30)
    assert child.exitcode == 0
    child.close()
    return answer


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_client_is_used_in_child_processes(fleet: Fleet, tmp_path: Path, method: str) -> None:
    fleet.start("h0")
    notes = tmp_path / "notes"
    context = multiprocessing.get_context(method)
    with Client(fleet.root, stream="s", timeout=20) as client:
        assert client.submit(None, str(notes), 0).result(120) == 0
        assert client._engine is not None
        mine = client._engine.incarnation
        ends = [_child(context, client, str(notes), number) for number in (10, 20)]
        answers = [_answer(child, pipe) for child, pipe in ends]
        assert client.submit(None, str(notes), 1).result(120) == 1, "the parent's goes on"
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]  # it would outlive the test
    assert len({mine, *(incarnation for incarnation, _ in answers)}) == 3
    assert {stream for _, stream in answers} == {"s"}
    assert sorted(_lines(notes)) == [0, 1, 10, 11, 12, 20, 21, 22]


def test_a_pickled_client_opens_when_it_is_used(fleet: Fleet, tmp_path: Path) -> None:
    with Client(fleet.root, fn=NOTE, stream="s") as client:
        copy = pickle.loads(pickle.dumps(client))
        assert copy.stream == "s" and not copy.calls["create"]
        fleet.start("h0")
        with copy:
            assert copy.submit(None, str(tmp_path / "notes"), 3).result(120) == 3


_CLIENT = """
import sys
from fsworker.client import Client
root, notes, kept = sys.argv[1:]
client = Client(root, stream="trainer-7")
file = open(kept, "a", buffering=1)
for i in range(300):
    future = client.submit_as(i, None, notes, i, 0.005)
    future.add_done_callback(lambda f: print(f.result(), file=file))
client.shutdown()
"""


def test_a_killed_client_is_resumed_with_its_ids_and_nothing_runs_twice(
    fleet: Fleet, spawned: Spawned, tmp_path: Path
) -> None:
    notes, kept = tmp_path / "notes", tmp_path / "kept"
    argv = [sys.executable, "-c", _CLIENT, str(fleet.root), str(notes), str(kept)]
    child = spawned.start(argv, cwd=REPO)
    fleet.start("h0", "h1")
    wait_until(lambda: len(_lines(kept)) > 20)
    child.kill()
    child.wait()
    before = set(_lines(kept))
    assert 20 < len(before) < 300
    with Client(fleet.root, stream="trainer-7") as client:
        futures = [client.submit_as(i, None, str(notes), i, 0.001) for i in range(300)]
        errors = {i: future.exception(120) for i, future in enumerate(futures)}
    delivered = {i for i, error in errors.items() if error is not None}
    assert all(isinstance(errors[i], AlreadyDelivered) for i in delivered)
    assert delivered <= before, "what nobody was given is given now"
    assert Counter(_lines(notes)) == Counter(range(300))
