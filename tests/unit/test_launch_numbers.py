"""Numbers of launches: given out once, in every order in which two that want one can act."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from fsworker.protocol import launches, layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import LaunchToken
from fsworker.protocol.ops import Put, Remove, Rename, Scan, Verb

pytestmark = pytest.mark.unit

OLD, A, B, GOT = "0" * 8, "a" * 8, "b" * 8, frozenset[str]()
LATE = "done, and reported as failed"
LOST = "not done"


class Disk:
    """The names in `ctl/`, with at most one operation that goes wrong."""

    def __init__(self, *tokens: LaunchToken) -> None:
        self.paths = {token.path for token in tokens}

    def perform(self, op: object, wrong: str | None) -> object:
        if isinstance(op, Scan):
            return [path.rpartition("/")[2] for path in sorted(self.paths)]
        if wrong == LOST:
            raise OSError(5, "it failed")
        if isinstance(op, Rename):
            if op.source not in self.paths:
                raise FileNotFoundError(2, "no such file")
            self.paths.remove(op.source)
            self.paths.add(op.target)
        elif isinstance(op, Put):
            self.paths.add(op.path)
        else:
            assert isinstance(op, Remove)
            self.paths.discard(op.path)
        if wrong == LATE:
            raise OSError(110, "no answer in time")
        return None


@dataclass
class End:
    """What became of both takers, and what lies there then."""

    got: list[object]
    numbers: dict[str, int]
    files: int


def play(
    order: tuple[int, ...], start: tuple[LaunchToken, ...], wrong: tuple[int, str] | None
) -> End | None:
    """Step the two takers in this order; None when the order does not fit."""
    disk = Disk(*start)
    takers: list[Verb[frozenset[str]]] = [launches.take({"n": 5}, who) for who in (A, B)]
    due: list[object] = [next(taker) for taker in takers]
    got: list[object] = [None, None]
    for step, who in enumerate(order):
        if got[who] is not None:
            return None
        try:
            try:
                answer = disk.perform(due[who], wrong[1] if wrong and wrong[0] == step else None)
            except OSError as error:
                due[who] = takers[who].throw(error)
            else:
                due[who] = takers[who].send(answer)
        except StopIteration as stop:
            got[who] = stop.value
        except OSError as error:
            got[who] = error
    if None in got:
        return None
    numbers = launches.numbers(path.rpartition("/")[2] for path in disk.paths)
    return End(got, numbers, len(disk.paths))


def ends(start: tuple[LaunchToken, ...], *wrongs: str) -> Iterator[End]:
    for steps in range(3, 11):
        faults = [None, *itertools.product(range(steps), wrongs)]
        for order in itertools.product((0, 1), repeat=steps):
            for wrong in faults:
                end = play(order, start, wrong)
                if end:
                    yield end


@pytest.mark.parametrize(
    "start", [(LaunchToken("n", 4, OLD),), (LaunchToken("n", 4, OLD), LaunchToken("n", 3, A))]
)
def test_of_two_that_want_one_number_exactly_one_gets_it_and_the_other_leaves_nothing(start):
    found = list(ends(start))
    assert len(found) > 20
    for end in found:
        assert sorted(end.got, key=len) == [GOT, {"n"}] and end.numbers == {"n": 5}, end
        assert end.files == 1, end


@pytest.mark.parametrize("start", [(), (LaunchToken("n", 4, OLD),)])
def test_never_do_both_get_it_whatever_one_operation_reports(start):
    found = list(ends(start, LATE, LOST))
    assert len(found) > 100
    for end in found:
        assert end.got.count(GOT) <= 1, end
        assert GOT not in end.got or end.numbers == {"n": 5}, end
    assert any(end.got.count(GOT) == 1 for end in found)


def test_on_a_disk_a_host_keeps_one_token_and_others_keep_theirs(tmp_path):
    (tmp_path / "ctl").mkdir()
    store = Store(tmp_path)
    assert store.run(launches.take({"n": 1, "watch": 1, "a.wrap": 3}, OLD)) == GOT
    assert store.run(launches.take({"n": 2, "watch": 1}, A)) == {"watch"}
    assert store.run(launches.take({"n": 2}, B)) == {"n"}
    names = store.scan(layout.CTL)
    assert launches.numbers(names) == {"n": 2, "watch": 1, "a.wrap": 3} and len(names) == 3


@pytest.mark.parametrize(
    "host", ["n1", "watch", "a.wrap", "x.launch-3-0badcafe", "ünï", "node.example.org"]
)
def test_tokens_of_any_host_read_back(host):
    token = LaunchToken(host, 12, "0badcafe")
    name = token.path.rpartition("/")[2]
    assert layout.parse_launch_token(name) == token
    for other in (name + ".pid", name[:-1], "." + name, name.replace("-12-", "-012-")):
        assert layout.parse_launch_token(other) is None
