"""A batch's life through the real verbs on a real disk: what it costs and what it leaves.

The model test steps the same verbs through every interleaving; here they meet a filesystem. Where a
local disk cannot produce a fault, a store that lies once stands in for it.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsworker.protocol import layout, ledger, packing, segment, stream
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Owner, Token
from fsworker.protocol.ledger import Expelled, Move
from fsworker.protocol.segment import Segment

pytestmark = pytest.mark.unit

STREAM = layout.encode("s")
TOKEN = Token(layout.batch_id("s", "c" * 12, 0), 0)
ONE, TWO = Owner("n1", "1" * 12), Owner("n2", "2" * 12)
BATCH = segment.encode(Segment(segment.BATCH, {"stream": "s"}, [packing.pack([None, [1]])]))
RESULT = segment.encode(
    Segment(segment.RESULT, {"attempt": 1}, [packing.pack([0, None, "ok", 2, 0.1])])
)
MUTATING = ("create", "open", "rename", "unlink")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path)
    for folder in (*layout.FOLDERS, layout.inbox_dir(0), layout.outbox_dir(STREAM)):
        store.mkdir(folder)
    for owner in (ONE, TWO):
        store.run(ledger.enlist(owner))
    store.calls.clear()
    return store


class LyingStore(Store):
    """Reports failure for the next rename; does it or not; a listing may miss it."""

    fail: tuple[bool, int] | None = None
    hide: tuple[str, int] | None = None

    def rename(self, source: str, target: str) -> None:
        if self.fail is None:
            return super().rename(source, target)
        (happens, number), self.fail = self.fail, None
        if happens:
            super().rename(source, target)
        raise OSError(number, os.strerror(number))

    def scan(self, folder: str) -> list[str]:
        names = super().scan(folder)
        if self.hide and self.hide[1]:
            self.hide = (self.hide[0], self.hide[1] - 1)
            return [n for n in names if n != self.hide[0]]
        return names


@pytest.fixture
def liar(store: Store) -> LyingStore:
    return LyingStore(store.root)


def submit(store: Store, token: Token = TOKEN) -> None:
    temp = store.run(ledger.prepare_submission(token, "u", BATCH))
    assert store.run(ledger.enqueue(token, temp)) is Move.DONE


def claimed(store: Store, owner: Owner = ONE, token: Token = TOKEN) -> Token:
    mine = store.run(ledger.claim(owner, token))
    assert mine is not None
    return mine


def committed(store: Store, owner: Owner = ONE) -> layout.Outcome:
    mine = claimed(store, owner)
    store.run(ledger.prepare_result(owner, mine, RESULT))
    assert store.run(ledger.commit(owner, mine)) is Move.DONE
    return layout.outcome(owner, mine)


def files(store: Store) -> list[str]:
    """Every file under the root."""
    found: list[str] = []
    for top, _, names in os.walk(store.root):
        found += [os.path.relpath(os.path.join(top, n), store.root) for n in names]
    return sorted(found)


def test_a_batch_costs_ten_calls_at_most_and_leaves_nothing_behind(store: Store) -> None:
    submit(store)
    store.sync_folder(layout.inbox_dir(0))
    (name,) = store.scan(layout.inbox_dir(0))
    token = layout.parse_inbox_name(0, name)
    assert token == TOKEN
    mine = claimed(store)
    assert segment.decode(store.read(layout.claim_path(ONE, mine)), segment.BATCH, "").values()
    store.run(ledger.prepare_result(ONE, mine, RESULT))
    assert store.run(ledger.commit(ONE, mine)) is Move.DONE
    listing = store.run(stream.look(STREAM))
    (out,) = listing.committed
    found = store.run(stream.collect(out))
    assert found.results is not None
    assert found.results.values() == [[0, None, "ok", 2, 0.1]]
    store.run(stream.forget(out, stream.leftovers(listing, out)))
    cost = sum(store.calls[kind] for kind in MUTATING)
    assert cost <= 10, store.calls
    assert cost == Counter(create=2, rename=3, open=3, unlink=2).total()
    assert files(store) == []


def test_a_submission_is_invisible_until_it_is_whole(store: Store) -> None:
    temp = store.run(ledger.prepare_submission(TOKEN, "u", BATCH))
    (name,) = store.scan(layout.inbox_dir(0))
    assert layout.is_foreign(name) and layout.parse_inbox_name(0, name) is None
    assert store.run(ledger.enqueue(TOKEN, temp)) is Move.DONE
    assert store.run(ledger.enqueue(TOKEN, temp)) is Move.DONE, "again is as good as once"
    assert files(store) == [layout.inbox_path(TOKEN)]


def test_of_two_claims_one_wins(store: Store) -> None:
    submit(store)
    assert store.run(ledger.claim(ONE, TOKEN)) == TOKEN.claimed()
    assert store.run(ledger.claim(TWO, TOKEN)) is None
    assert store.run(ledger.adopt(ONE)) == [TOKEN.claimed()]
    assert store.run(ledger.adopt(TWO)) == []


def test_a_sleeper_fails_at_its_commit_and_publishes_nothing(store: Store) -> None:
    submit(store)
    mine = claimed(store)
    store.run(ledger.prepare_result(ONE, mine, RESULT))
    done = store.run(ledger.reclaim(ONE, died=True))
    assert (done.moved, done.finished) == ([mine], True)
    again = Token(TOKEN.batch, 0, 1, 1)
    theirs = claimed(store, TWO, again)
    assert (theirs.attempt, theirs.deaths) == (2, 1)
    assert store.run(ledger.commit(ONE, mine)) is Move.GONE
    assert store.run(ledger.give_back(ONE, mine)) is Move.GONE
    with pytest.raises(Expelled, match="were revoked"):
        store.run(ledger.adopt(ONE))
    assert store.run(stream.look(STREAM)).committed == []
    store.run(ledger.prepare_result(TWO, theirs, RESULT))
    assert store.run(ledger.commit(TWO, theirs)) is Move.DONE
    listing = store.run(stream.look(STREAM))
    (out,) = listing.committed
    assert out == layout.outcome(TWO, theirs)
    store.run(stream.forget(out, stream.leftovers(listing, out)))
    assert files(store) == [], "the sleeper's result goes with the batch"


def test_what_is_given_back_is_nobodys_death(store: Store) -> None:
    submit(store)
    mine = claimed(store)
    assert store.run(ledger.give_back(ONE, mine)) is Move.DONE
    assert store.scan(layout.inbox_dir(0)) == [f"{TOKEN.batch}.1.0"]
    assert store.run(ledger.give_back(ONE, mine)) is Move.GONE


def test_reclaiming_takes_everything_and_the_folder(store: Store) -> None:
    tokens = [Token(layout.batch_id("s", "c" * 12, n), 0) for n in range(5)]
    for token in tokens:
        submit(store, token)
        claimed(store, ONE, token)
    store.put(f"{TWO.folder}/.nfs0001", b"")
    done = store.run(ledger.reclaim(ONE, died=False))
    assert done.finished and len(done.moved) == 5
    assert {n[-2:] for n in store.scan(layout.inbox_dir(0))} == {".0"}
    assert store.run(ledger.reclaim(ONE, died=False)).finished, "again is as good as once"
    assert not store.run(ledger.reclaim(TWO, died=False)).finished, "something is left in there"
    assert TWO.name in store.scan(layout.CLAIMS)


def test_an_expelled_owner_never_gets_its_folder_back(store: Store) -> None:
    submit(store)
    store.run(ledger.reclaim(ONE, died=False))
    assert store.run(ledger.claim(ONE, TOKEN)) is None
    assert files(store) == [layout.inbox_path(TOKEN)]
    assert ONE.name not in store.scan(layout.CLAIMS)


def test_a_result_makes_the_folder_of_a_stream_whose_client_died(store: Store) -> None:
    submit(store)
    store.rmdir(layout.outbox_dir(STREAM))
    assert store.run(stream.look(STREAM)).committed == []
    out = committed(store)
    assert store.run(stream.look(STREAM)).committed == [out]


def test_streams_list_oldest_first_and_pass_over_what_is_not_theirs(store: Store) -> None:
    outs = [layout.Outcome(layout.batch_id("s", "c" * 12, n), 1, "1" * 12) for n in (10, 9, 2)]
    for out in outs:
        store.put(out.done, BATCH)
    store.put(f"{layout.outbox_dir(STREAM)}/.nfs0001", b"")
    store.put(f"{layout.outbox_dir(STREAM)}/README", b"")
    store.put(outs[0].part(3), b"")
    listing = store.run(stream.look(STREAM))
    assert listing.committed == outs[::-1]
    assert listing.parts == [(outs[0], 3)] and listing.results == []


def test_a_damaged_result_is_told_after_a_second_look(store: Store) -> None:
    submit(store)
    out = committed(store)
    store.put(out.result, RESULT[:-1])
    store.calls.clear()
    found = store.run(stream.collect(out))
    assert found.results is None and found.damage is not None
    assert out.result in str(found.damage)
    assert store.calls["open"] == 2
    store.remove(out.result)
    with pytest.raises(FileNotFoundError):
        store.run(stream.collect(out))


# -- What a local disk cannot do: a store that lies once.

ERRORS = [errno.EIO, errno.ENOSPC, errno.ETIMEDOUT, errno.ESTALE, errno.EDQUOT, errno.ENOENT]


@pytest.fixture(params=ERRORS, ids=lambda n: errno.errorcode[n])
def number(request: pytest.FixtureRequest) -> Iterator[int]:
    yield request.param


def test_a_commit_that_reports_failure_but_happened_is_done(liar: LyingStore, number: int) -> None:
    submit(liar)
    mine = claimed(liar)
    liar.run(ledger.prepare_result(ONE, mine, RESULT))
    liar.fail = (True, number)
    assert liar.run(ledger.commit(ONE, mine)) is Move.DONE
    assert liar.run(ledger.commit(ONE, mine)) is Move.DONE
    assert liar.read(layout.outcome(ONE, mine).result) == RESULT


def test_a_commit_that_failed_is_held_and_no_error_means_revoked(
    liar: LyingStore, number: int
) -> None:
    submit(liar)
    mine = claimed(liar)
    liar.run(ledger.prepare_result(ONE, mine, RESULT))
    liar.fail = (False, number)
    assert liar.run(ledger.commit(ONE, mine)) is Move.HELD
    assert liar.read(layout.outcome(ONE, mine).result) == RESULT, "nothing is discarded"
    assert liar.run(ledger.commit(ONE, mine)) is Move.DONE


def test_a_commit_whose_result_was_read_meanwhile_is_gone(liar: LyingStore) -> None:
    submit(liar)
    out = committed(liar)
    liar.run(stream.forget(out))
    assert liar.run(ledger.commit(ONE, TOKEN.claimed())) is Move.GONE
    assert files(liar) == []


def test_one_absence_is_not_believed(liar: LyingStore) -> None:
    submit(liar)
    mine = claimed(liar)
    liar.fail = (False, errno.EIO)
    liar.hide = (os.path.basename(layout.claim_path(ONE, mine)), 1)
    assert liar.run(ledger.commit(ONE, mine)) is Move.HELD


def test_a_submission_that_reports_failure_is_looked_for(liar: LyingStore, number: int) -> None:
    for n, happens in enumerate((True, False)):
        token = Token(layout.batch_id("s", "c" * 12, n), 0)
        temp = liar.run(ledger.prepare_submission(token, "u", BATCH))
        liar.fail = (happens, number)
        first = liar.run(ledger.enqueue(token, temp))
        assert first is (Move.DONE if happens else Move.HELD)
        assert liar.run(ledger.enqueue(token, temp)) is Move.DONE
        assert liar.read(layout.inbox_path(token)) == BATCH


def test_a_claim_that_reports_failure_is_looked_for_or_adopted(
    liar: LyingStore, number: int
) -> None:
    submit(liar)
    liar.fail = (True, number)
    won = liar.run(ledger.claim(ONE, TOKEN))
    assert won == (None if number == errno.ENOENT else TOKEN.claimed())
    assert liar.run(ledger.adopt(ONE)) == [TOKEN.claimed()]


def test_a_reclaim_that_reports_failure_is_finished_by_the_next_list(
    liar: LyingStore, number: int
) -> None:
    submit(liar)
    mine = claimed(liar)
    for happens in (True, False):
        liar.fail = (happens, number)
        assert liar.run(ledger.reclaim(ONE, died=True)).finished
        assert liar.scan(layout.inbox_dir(0)) == [f"{TOKEN.batch}.1.1"]
        liar.run(ledger.enlist(ONE))
        liar.rename(layout.inbox_path(mine.returned(died=True)), layout.claim_path(ONE, mine))


def test_where_a_token_is_stays_open_while_the_storage_does_not_answer(
    liar: LyingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(liar)
    mine = claimed(liar)
    liar.fail = (False, errno.EIO)

    def broken(folder: str) -> list[str]:
        raise OSError(errno.EIO, folder)

    monkeypatch.setattr(liar, "scan", broken)
    assert liar.run(ledger.commit(ONE, mine)) is Move.UNSETTLED
    liar.fail = (False, errno.EIO)
    assert liar.run(ledger.give_back(ONE, mine)) is Move.UNSETTLED
