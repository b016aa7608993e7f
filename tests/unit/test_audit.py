"""An audit accuses what is wrong and nothing else, however the tokens move while it looks."""

from __future__ import annotations

import json
import os
import random
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ctl import auditing, mending, streams
from ctl.auditing import Audit
from ctl.mending import Act
from ctl.roots import Run
from ctl.streams import Sent, Submission, Taken
from fsworker.protocol import audit_repair, layout, ledger, packing, segment, stream
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Owner, Token
from fsworker.protocol.records.counters import StreamCounters
from fsworker.protocol.records.run import Heartbeat, Manifest
from fsworker.protocol.segment import Segment
from tests.support.workers import CLIENT, Root

pytestmark = pytest.mark.unit

N0, N1 = Owner("n0", "aaaaaaaaaaaa"), Owner("n1", "bbbbbbbbbbbb")


class Watched(Store):
    """A store on which something else happens before each of an auditor's looks."""

    before: Callable[[], None] | None = None

    def scan(self, folder: str) -> list[str]:
        self._other()
        return super().scan(folder)

    def read_with_mtime(self, rel: str, limit: int = 1 << 30) -> tuple[bytes, float]:
        self._other()
        return super().read_with_mtime(rel, limit)

    def _other(self) -> None:
        if self.before:
            self.before()


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "run", functions=["echo"], shards=2)


@contextmanager
def _silent(total: int) -> Iterator[Callable[[int], None]]:
    yield lambda done: None


def _run(root: Root, store: Store | None = None) -> Run:
    manifest: Manifest = Manifest.from_json(root.store.read(layout.MANIFEST), "manifest")
    return Run(str(root.path), store or root.store, manifest, None)


def _audit(root: Root, store: Store | None = None) -> Audit:
    return auditing.audit_run(_run(root, store), quick=False, progress=_silent)


def _mend(root: Root) -> tuple[Audit, list[Act]]:
    acts: list[Act] = []
    found = mending.mend(_run(root), acts.append, quick=False, progress=_silent)
    return found, acts


def _kinds(found: Audit) -> list[tuple[str, str]]:
    return [(f.kind, f.path) for f in found.damage]


def _rubbish(found: Audit) -> list[tuple[str, str]]:
    return [(g.kind, g.path) for g in found.garbage]


def _result(owner: Owner, token: Token) -> bytes:
    meta = {"batch": token.batch, "attempt": token.attempt, "host": owner.host}
    return segment.encode(Segment(segment.RESULT, meta, [packing.pack([0, None, "ok", 1, 0.0])]))


def _claim(root: Root, owner: Owner, batch: str) -> Token:
    (token,) = [t for s in (0, 1) for t in root.inbox(s) if t.batch == batch]
    root.store.run(ledger.enlist(owner))
    claimed = root.store.run(ledger.claim(owner, token))
    assert claimed is not None
    return claimed


def _commit(root: Root, owner: Owner, token: Token) -> layout.Outcome:
    root.store.run(ledger.prepare_result(owner, token, _result(owner, token)))
    assert root.store.run(ledger.commit(owner, token)) is ledger.Move.DONE
    return layout.outcome(owner, token)


def _beat(root: Root, owner: Owner, seq: int = 1, **more: Any) -> None:
    beat = Heartbeat(owner.host, 1, owner.incarnation, seq, 0.0, **more)
    root.store.publish(layout.status_path(owner.host), beat.to_json())


def _copy(root: Root, source: str, target: str) -> None:
    (root.path / target).write_bytes((root.path / source).read_bytes())


# -- what is right


def test_batches_in_every_state_are_clean_and_counted(root: Root) -> None:
    waiting, held, done = (root.submit([[i], [i]]) for i in range(3))
    token = _claim(root, N0, held)
    _commit(root, N1, _claim(root, N1, done))
    _beat(root, N0)
    _beat(root, N1)
    found = _audit(root)
    assert (found.damage, found.garbage) == ([], [])
    assert found.files == 3 and dict(found.tasks) == {"pending": 2, "claimed": 2, "committed": 1}
    (row,) = found.rows
    assert (row.pending, row.claimed, row.committed, row.submitted) == (1, 1, 1, None)
    assert token.batch == held and waiting in found.seen.places


def test_one_listing_a_folder_and_no_more_when_nothing_is_wrong(root: Root) -> None:
    for _ in range(50):
        root.submit([[1]])
    run = _run(root)
    root.store.calls.clear()
    auditing.audit_run(run, quick=False, progress=_silent)
    # inbox, its 2 shards, claims, outbox, its stream, dead, quarantine; status for who is alive,
    # the folder of what `ctl submit` has noted, and that of bundles.
    assert root.store.calls["list"] == 11
    assert root.store.calls["open"] == 50


class Traffic:
    """Batches on their way through the protocol, one operation at a time."""

    def __init__(self, root: Root, seed: int, count: int = 3) -> None:
        self.root, self.random = root, random.Random(seed)
        self.lives = [self._life(root.submit([[i]], shard=i % 2), i) for i in range(count)]

    def step(self) -> None:
        if self.lives and self.random.random() < 0.6:
            life = self.random.choice(self.lives)
            if next(life, "over") == "over":
                self.lives.remove(life)

    def _life(self, batch: str, number: int) -> Iterator[None]:
        store, lost = self.root.store, self.random.randrange(3)
        for round_ in range(lost + 1):
            owner = Owner(f"h{number}", f"{number:06x}{round_:06x}")
            store.run(ledger.enlist(owner))
            yield
            token = _claim(self.root, owner, batch)
            yield
            if round_ < lost:
                if self.random.random() < 0.5:
                    store.run(ledger.prepare_result(owner, token, _result(owner, token)))
                    yield
                store.run(ledger.reclaim(owner, died=True))
                yield
        store.run(ledger.prepare_result(owner, token, _result(owner, token)))
        yield
        assert store.run(ledger.commit(owner, token)) is ledger.Move.DONE
        store.rmdir(owner.folder)
        yield
        outcome = layout.outcome(owner, token)
        store.remove(outcome.done)
        yield
        store.remove(outcome.result)


@pytest.mark.parametrize("seed", range(30))
def test_tokens_that_move_while_it_looks_are_never_accused(tmp_path: Path, seed: int) -> None:
    root = Root(tmp_path / "run", functions=["echo"], shards=2)
    traffic = Traffic(root, seed)
    store = Watched(root.path)
    store.before = traffic.step
    while traffic.lives:
        assert _audit(root, store).damage == []
    store.before = None
    assert _audit(root, store).damage == []


@pytest.mark.parametrize("seed", range(6))
def test_a_stream_of_ctl_submit_is_never_accused_while_it_is_submitted_and_read(
    root: Root, tmp_path: Path, seed: int
) -> None:
    store, count = Watched(root.path), 6
    submission = Submission("t", "f", "d", "fn", CLIENT, (0, 1), tuple(range(1, count + 1)))
    with streams.locked(store, "t", "lock"):
        streams.write(store, "t", submission)
    out = tmp_path / "out"
    streams.write(store, "t", Taken(str(out), socket.gethostname()))
    Path(f"{out}.partial").write_text("{}\n")
    dice = random.Random(seed)

    def life() -> Iterator[None]:
        store.mkdir(layout.outbox_dir("t"))
        for number in range(count):
            token = submission.token(number)
            data = segment.encode(Segment(segment.BATCH, {}, [packing.pack([None])]))
            temp = root.store.run(ledger.prepare_submission(token, CLIENT, data))
            root.store.run(ledger.enqueue(token, temp))
            yield
            streams.write(root.store, "t", Sent(number + 1, number + 1))
            yield
            claimed = None
            for bounce in range(4):
                owner = Owner("h", f"{number:06x}{bounce:06x}")
                root.store.run(ledger.enlist(owner))
                claimed = root.store.run(ledger.claim(owner, token))
                assert claimed
                yield
                if bounce < 3:
                    root.store.run(ledger.reclaim(owner, died=False))
                    token = claimed
                    yield
            assert claimed
            outcome = _commit(root, owner, claimed)
            yield
            with open(f"{out}.partial", "a") as file:
                file.write(json.dumps({"batch": number, "failed": 0, "rows": []}) + "\n")
            yield
            root.store.run(stream.forget(outcome))
            yield

    moves = life()
    alive = [True]

    def step() -> None:
        if dice.random() < 0.5 and next(moves, "over") == "over":
            alive[0] = False

    store.before = step
    while alive[0]:
        assert _audit(root, store).damage == []
    (row,) = _audit(root, store).rows
    assert (row.submitted, row.read, row.source) == (6, 6, "ctl submit")


# -- what is wrong


def test_a_second_token_of_a_batch_is_found_wherever_it_is(root: Root) -> None:
    batch = root.submit([[1]])
    token = _claim(root, N0, batch)
    _beat(root, N0)
    here = layout.claim_path(N0, token)
    _copy(root, here, f"inbox/1/{batch}.0.0")
    (finding,) = _audit(root).damage
    assert (finding.kind, finding.path) == ("two places", f"inbox/1/{batch}.0.0")
    assert here in finding.words


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:],
        lambda data: b"\0" * len(data),
    ],
    ids=["empty", "cut", "padded", "a bit flipped", "zeros"],
)
def test_a_data_file_that_is_not_exactly_itself_is_damage(
    root: Root, spoil: Callable[[bytes], bytes]
) -> None:
    good, bad = root.submit([[1]]), root.submit([[2]])
    path = root.path / f"inbox/0/{bad}.0.0"
    path.write_bytes(spoil(path.read_bytes()))
    found = _audit(root)
    assert _kinds(found) == [("damaged", f"inbox/0/{bad}.0.0")]
    assert found.files == 1 and good in found.seen.places
    assert auditing.audit_run(_run(root), quick=True, progress=_silent).damage == []


def test_a_file_of_another_version_is_told_apart_and_a_folder_is_no_data(root: Root) -> None:
    one, two = root.submit([[1]]), root.submit([[2]])
    path = root.path / f"inbox/0/{one}.0.0"
    data = bytearray(path.read_bytes())
    data[4] = 9
    path.write_bytes(data)
    (root.path / f"inbox/0/{two}.0.0").unlink()
    (root.path / f"inbox/0/{two}.0.0").mkdir()
    assert [f.kind for f in _audit(root).damage] == ["other version", "unreadable"]


def test_a_pipe_among_the_batches_keeps_nobody_waiting(root: Root) -> None:
    batch = root.submit([[1]])
    (root.path / f"inbox/0/{batch}.0.0").unlink()
    os.mkfifo(root.path / f"inbox/0/{batch}.0.0")
    (found,) = _audit(root).damage
    assert found.kind == "unreadable" and "it is a pipe" in found.words


def test_results_that_were_lost_or_spoilt_after_the_commit_are_found(root: Root) -> None:
    gone, bad = (_commit(root, N0, _claim(root, N0, root.submit([[i]]))) for i in range(2))
    _beat(root, N0)
    (root.path / gone.result).unlink()
    (root.path / bad.result).write_bytes(b"\x89SFL")
    assert sorted(_kinds(_audit(root))) == [("damaged", bad.result), ("no result", gone.done)]


def test_parts_and_copies_of_the_dead_are_read_too(root: Root) -> None:
    token = _claim(root, N0, root.submit([[1]]))
    _beat(root, N0)
    part = layout.outcome(N0, token).part(0)
    (root.path / part).write_bytes(b"no part")
    (root.path / "dead/x-aaaaaaaaaaaa-1").write_bytes(b"no batch")
    (root.path / "dead/x-aaaaaaaaaaaa-1.reason.json").write_bytes(b"{}")
    assert _kinds(_audit(root)) == [("damaged", "dead/x-aaaaaaaaaaaa-1"), ("damaged", part)]


def test_a_batch_in_a_shard_that_nobody_serves(root: Root) -> None:
    batch = root.submit([[1]])
    (root.path / "inbox/7").mkdir()
    (root.path / f"inbox/0/{batch}.0.0").rename(root.path / f"inbox/7/{batch}.0.0")
    assert _kinds(_audit(root)) == [("unserved shard", "inbox/7")]


def test_names_that_mean_nothing_are_ignored_and_listed(root: Root) -> None:
    names = ["inbox/.nfs0001", "inbox/0/README", "claims/notes", "outbox/s/x.done", "dead/.x"]
    root.submit([[1]])
    for name in names:
        (root.path / name).write_bytes(b"?")
    found = _audit(root)
    assert (found.damage, sorted(found.seen.ignored)) == ([], sorted(names))


# -- adding up


def _counters(root: Root, submitted: int, read: int, **more: Any) -> None:
    told = StreamCounters("s", CLIENT, submitted, read, **{"settled": True, **more})
    root.store.publish(layout.counters_path("s", CLIENT), told.to_json())


@pytest.mark.parametrize(
    ("submitted", "read", "kind"), [(3, 1, []), (3, 0, ["lost"]), (2, 1, ["too many"])]
)
def test_the_counters_of_a_client_that_is_over_must_add_up(
    root: Root, submitted: int, read: int, kind: list[str]
) -> None:
    root.submit([[1]])
    _claim(root, N0, root.submit([[2]]))
    _beat(root, N0)
    _counters(root, submitted, read)
    found = _audit(root)
    assert [f.kind for f in found.damage] == kind
    (row,) = found.rows
    assert (row.submitted, row.read, row.source) == (submitted, read, "client")


def test_counters_of_a_client_at_work_are_held_against_nobody(root: Root) -> None:
    root.submit([[1]])
    _counters(root, 5, 0, settled=False)
    found = _audit(root)
    assert found.damage == [] and found.rows[0].submitted is None


def test_a_batch_of_ctl_submit_that_is_nowhere_is_lost(root: Root) -> None:
    submission = Submission("t", "f", "d", "fn", CLIENT, (0,), (1, 2, 3))
    with streams.locked(root.store, "t", "lock"):
        streams.write(root.store, "t", submission)
    streams.write(root.store, "t", Sent(3, 2))
    data = segment.encode(Segment(segment.BATCH, {}, []))
    root.store.put(layout.inbox_path(submission.token(0)), data)
    temp = layout.temporary(layout.inbox_path(submission.token(2)), CLIENT)
    root.store.put(temp, data)
    found = _audit(root)
    assert [f.kind for f in found.damage] == ["lost"]
    assert "1 are lost (the first has number 1)" in found.damage[0].words
    assert found.garbage == []  # what is prepared will yet be submitted
    _, acts = _mend(root)
    assert (root.path / temp).exists() and [a.done for a in acts] == [False]


# -- garbage and repair


def test_results_of_attempts_that_are_over_are_garbage_and_may_go_while_the_run_lives(
    root: Root,
) -> None:
    batch = root.submit([[1]])
    first = _claim(root, N0, batch)
    root.store.run(ledger.prepare_result(N0, first, b"half"))
    part = layout.outcome(N0, first).part(0)
    data = segment.encode(Segment(segment.PART, {}, [packing.pack(["started", 0])]))
    root.store.put(part, data)
    assert _audit(root).garbage[0].kind == "owner folder"  # all else is the owner's own
    root.store.run(ledger.reclaim(N0, died=True))
    second = _claim(root, N1, batch)
    root.store.run(ledger.prepare_result(N1, second, b"half"))
    _beat(root, N1)
    late = layout.outcome(N0, first).result
    found, acts = _mend(root)
    assert [a.line for a in acts] == [
        f"repaired {late}: removed; attempt 1 was revoked, attempt 2 is at work"
    ]
    assert (found.damage, found.garbage) == ([], [])
    left = set(root.store.scan("outbox/s"))
    # The part is evidence of who killed a worker; the other result is being written.
    assert left == {Path(p).name for p in (part, layout.outcome(N1, second).result)}


def test_parts_are_garbage_once_their_batch_is_committed(root: Root) -> None:
    token = _claim(root, N0, root.submit([[1]]))
    part = layout.outcome(N0, token).part(0)
    root.store.put(part, segment.encode(Segment(segment.PART, {}, [])))
    _beat(root, N0)
    assert _rubbish(_audit(root)) == []
    _commit(root, N0, token)
    assert _rubbish(_audit(root)) == [("part", part)]


def test_what_no_token_explains_goes_only_when_the_run_is_stopped(root: Root) -> None:
    orphan = layout.Outcome(layout.batch_id("s", CLIENT, 77), 1, N0.incarnation).result
    root.store.mkdir("outbox/s")
    root.store.put(orphan, b"anything")
    _beat(root, N0)
    found, acts = _mend(root)
    assert _rubbish(found) == [("result", orphan)] and not acts[0].done
    _beat(root, N0, stopped=True)
    found, acts = _mend(root)
    assert _rubbish(found) == [] and acts[0].done and root.store.scan("outbox/s") == []


def test_a_temporary_goes_only_when_it_is_old_and_the_run_is_stopped(root: Root) -> None:
    young, old = "inbox/0/.tmp~1-a~x", "inbox/0/.tmp~1-b~x"
    for path in (young, old):
        root.store.put(path, b"x")
    os.utime(root.path / old, (1.0, 1.0))
    found, _ = _mend(root)
    assert _rubbish(found) == [("temporary", young)]


def test_claims_of_a_stopped_run_go_back_and_blame_nobody(root: Root) -> None:
    batch = root.submit([[1]], shard=1)
    _claim(root, N0, batch)
    found, acts = _mend(root)
    assert (found.damage, found.garbage) == ([], [])
    assert [(t.batch, t.attempt, t.deaths) for t in root.inbox(1)] == [(batch, 1, 0)]
    assert root.claims() == {} and acts[0].line.endswith("1 batches are back in their inboxes")


def test_a_living_owner_keeps_its_claims_and_so_does_one_that_has_not_beaten_yet(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mending, "BEAT_WAIT", 0.5)
    new = Owner("n1", "cccccccccccc")
    for owner in (N0, new):
        _claim(root, owner, root.submit([[1]]))
    _beat(root, N0)
    _beat(root, N1)  # the last beat of n1's former life: its successor has only made its folder
    before = root.claims()
    _, acts = _mend(root)
    assert root.claims() == before and len(before) == 2
    assert [a.done for a in acts] == [False] and new.name in acts[0].path


def test_an_owner_whose_host_beats_on_as_another_is_gone(root: Root) -> None:
    batch = root.submit([[1]])
    _claim(root, N0, batch)
    heir, seq = Owner("n0", "cccccccccccc"), iter(range(1, 10_000))
    store = Watched(root.path)
    store.before = lambda: _beat(root, heir, next(seq))
    _beat(root, heir)
    acts: list[Act] = []
    mending.mend(_run(root, store), acts.append, quick=False, progress=_silent)
    assert acts[0].done and [t.batch for t in root.inbox()] == [batch] and root.claims() == {}


def test_a_damaged_batch_is_set_aside_and_its_client_gets_an_answer(root: Root) -> None:
    good, bad = root.submit([[1]]), root.submit([[2]])
    path = root.path / f"inbox/0/{bad}.0.0"
    path.write_bytes(path.read_bytes()[:-3])
    was = path.read_bytes()
    found, acts = _mend(root)
    assert found.damage == [] and [a.done for a in acts] == [True]
    assert [t.batch for t in root.inbox()] == [good] and root.claims() == {}
    kept = root.path / f"quarantine/{bad}.1"
    assert kept.read_bytes() == was
    assert json.loads(Path(f"{kept}.reason.json").read_text())["batch"] == bad
    answer = root.collect(bad)
    assert answer and "bytes, its header says" in answer.meta["damaged"]
    assert answer.values()[0][2] == "invalid"


def test_what_cannot_be_repaired_is_left_and_said(root: Root) -> None:
    batch = root.submit([[1]])
    _copy(root, f"inbox/0/{batch}.0.0", f"inbox/1/{batch}.0.0")
    found, acts = _mend(root)
    assert len(found.damage) == 1 and [a.done for a in acts] == [False]
    assert "only a person can tell" in acts[0].line


def test_a_repair_that_was_killed_is_undone_by_the_next(root: Root) -> None:
    batch = root.submit([[1]])
    _claim(root, audit_repair.repairer(), batch)
    _beat(root, N0)  # the run lives
    _, acts = _mend(root)
    assert acts[0].done and [t.batch for t in root.inbox()] == [batch] and root.claims() == {}
