"""Clearing a stream of what a dead reader left, in every order with owners that still work."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsworker.client.delivery import Delivery, Want
from fsworker.protocol import layout, ledger, segment, stream, sweeping
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Owner, Token
from fsworker.protocol.ops import Verb
from fsworker.protocol.segment import Segment

pytestmark = pytest.mark.unit

ONE, TWO = Owner("n1", "a" * 12), Owner("n2", "b" * 12)
TOKEN = Token(layout.batch_id("s", "c" * 12, 0), 0)
RESULT = segment.encode(Segment(segment.RESULT, {}, [b"\x90"]))


def lay(path: Path) -> Store:
    path.mkdir(exist_ok=True)
    store = Store(path)
    for folder in (*layout.FOLDERS, layout.inbox_dir(0), layout.outbox_dir("s")):
        store.mkdir(folder)
    store.run(ledger.enlist(ONE))
    store.run(ledger.enlist(TWO))
    data = segment.encode(Segment(segment.BATCH, {}, [b"\x90"]))
    temp = store.run(ledger.prepare_submission(TOKEN, "u", data))
    store.run(ledger.enqueue(TOKEN, temp))
    return store


def claim(store: Store, owner: Owner, token: Token) -> Token:
    found = store.run(ledger.claim(owner, token))
    assert found is not None
    return found


def steps(store: Store, *verbs: Verb[Any]) -> Iterator[None]:
    """One operation of these verbs after the other, each when it is asked for."""
    for verb in verbs:
        answer, error = None, None
        while True:
            try:
                operation = verb.throw(error) if error else verb.send(answer)
            except StopIteration:
                break
            try:
                answer, error = operation.perform(store), None
            except OSError as problem:
                answer, error = None, problem
            yield


def orders(count: int, other: int) -> Iterator[tuple[int, ...]]:
    """All orders of so many steps of one and of another: the places of the one."""
    return itertools.combinations(range(count + other), count)


def names(store: Store) -> list[str]:
    return sorted(store.scan(layout.outbox_dir("s")))


def test_what_a_reader_left_that_died_is_removed(tmp_path: Path) -> None:
    store = lay(tmp_path)
    mine = claim(store, ONE, TOKEN)
    store.run(ledger.prepare_result(ONE, mine, RESULT))
    store.run(ledger.commit(ONE, mine))
    listing = store.run(stream.look("s"))
    (out,) = listing.committed
    reader = steps(store, stream.forget(out))
    next(reader)  # `.done` is gone, and so is the reader
    assert names(store) == [out.result.rpartition("/")[2]]
    left = Delivery(store, "s", lambda _: Want.LEAVE)
    left.sweep()
    assert names(store) == []
    calls = store.calls.copy()
    left.sweep()
    assert (store.calls - calls).total() == 1  # where nothing is left, that costs one listing


def test_an_owner_at_its_commit_loses_nothing_in_any_order(tmp_path: Path) -> None:
    committed = 0
    for number, places in enumerate(itertools.islice(orders(4, 5), 0, None, 2)):
        store = lay(tmp_path / str(number))
        mine = claim(store, ONE, TOKEN)
        owner = steps(store, ledger.prepare_result(ONE, mine, RESULT), ledger.commit(ONE, mine))
        sweeper = steps(store, sweeping.sweep("s"))
        for turn in range(9):
            next(owner if turn in places else sweeper, None)
        for _ in owner:
            pass
        out = layout.outcome(ONE, mine)
        assert names(store) == sorted(p.rpartition("/")[2] for p in (out.done, out.result))
        committed += 1
    assert committed == 63


def test_a_result_of_an_attempt_that_was_revoked_goes_and_its_successors_stays(
    tmp_path: Path,
) -> None:
    for number, places in enumerate(itertools.islice(orders(6, 5), 0, None, 9)):
        store = lay(tmp_path / str(number))
        mine = claim(store, ONE, TOKEN)
        store.run(ledger.prepare_result(ONE, mine, RESULT))

        def successor(store: Store = store) -> Verb[Any]:
            done = yield from ledger.reclaim(ONE, died=True)
            assert done.finished
            theirs = yield from ledger.claim(TWO, Token(TOKEN.batch, 0, 1, 1))
            yield from ledger.prepare_result(TWO, theirs, RESULT)
            yield from ledger.commit(TWO, theirs)

        other, sweeper = steps(store, successor()), steps(store, sweeping.sweep("s"))
        for turn in range(11):
            next(other if turn in places else sweeper, None)
        for _ in itertools.chain(other, sweeper):
            pass
        listing = store.run(stream.look("s"))
        (out,) = listing.committed
        assert out.attempt == 2 and out in listing.results
        store.run(sweeping.sweep("s"))
        assert store.run(stream.look("s")).results == [out]


def test_leftovers_go_before_the_commit_so_that_none_is_forgotten(tmp_path: Path) -> None:
    store = lay(tmp_path)
    mine = claim(store, ONE, TOKEN)
    out = layout.outcome(ONE, mine)
    part = segment.encode(Segment(segment.PART, {}, [b"\x90"]))
    store.publish(out.part(0), part)
    store.run(ledger.prepare_result(ONE, mine, RESULT))
    store.run(ledger.commit(ONE, mine))
    listing = store.run(stream.look("s"))
    reader = steps(store, stream.forget(out, stream.leftovers(listing, out)))
    next(reader)
    assert names(store) == sorted(p.rpartition("/")[2] for p in (out.done, out.result))
