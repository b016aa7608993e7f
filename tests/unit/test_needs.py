"""What tasks need and workers offer, and which batches a worker claims, leaves and forwards."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ctl.cli import main
from fsworker.loop import capability
from fsworker.loop.capability import Capability
from fsworker.protocol import audit, layout, ledger, offers, packing, segment, stream
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Owner, Token
from fsworker.protocol.offers import Provider
from fsworker.protocol.records.cancel import CancelRequest
from fsworker.protocol.records.needs import (
    Needs,
    Offer,
    of_inventory,
    parse_needs,
    read_needs,
)
from fsworker.protocol.records.run import Heartbeat, LaunchMeta, Manifest, WorkerSpec
from fsworker.protocol.requests import ask
from fsworker.protocol.segment import Segment
from tests.support.runs import make_run

pytestmark = pytest.mark.unit

GPU = Needs(("a100",), gpus=1)
BIG = Offer(frozenset({"a100", "fast"}), cpus=16, gpus=4, memory=64 << 30)
PLAIN = Offer(cpus=2, memory=None)


@pytest.mark.parametrize(
    ("offer", "needs", "job", "lacking"),
    [
        (PLAIN, Needs(), False, []),
        (PLAIN, Needs(cpus=2), False, []),
        (PLAIN, Needs(cpus=3), False, ["3 cpus (has 2)"]),
        (PLAIN, GPU, False, ["label a100", "1 gpu (has 0)"]),
        (PLAIN, Needs(memory=1 << 30), False, ["memory 1 GiB (unknown)"]),
        (BIG, GPU, True, []),
        (BIG, Needs(("a100", "fast"), 16, 4, 64 << 30), False, []),
        (BIG, Needs(("A100",)), False, ["label A100"]),
        (BIG, Needs(memory=65 << 30), False, ["memory 65 GiB (has 64 GiB)"]),
        (Offer(gpus=4, slot_gpus=1), Needs(gpus=2), False, ["2 gpus (a slot has 1)"]),
        (Offer(gpus=4, slot_gpus=1), Needs(gpus=2), True, []),
        (Offer(memory=9 << 30, slot_memory=1 << 30), Needs(memory=2 << 30), True, []),
        (
            Offer(memory=9 << 30, slot_memory=1 << 30),
            Needs(memory=2 << 30),
            False,
            ["memory 2 GiB (has 1 GiB)"],
        ),
        (Offer(jobs=False), Needs(), True, ["slots for jobs"]),
        (Offer(tasks=False), Needs(), False, ["slots for tasks"]),
    ],
)
def test_what_an_offer_lacks(offer: Offer, needs: Needs, job: bool, lacking: list[str]) -> None:
    assert offer.lacks(needs, job=job) == lacking


@pytest.mark.parametrize(
    ("inventory", "expected"),
    [
        ({"cpus": 4, "memory_mb": 10, "gpu_count": 1}, None),  # of a worker of before
        (
            {"slots": 2, "job_slots": 0, "cpus": 4, "memory_mb": None, "gpu_count": 2,
             "slot_gpus": ["0", "1"], "slot_memory": 7},
            Offer(frozenset({"x"}), 4, 2, None, True, False, 1, 7),
        ),
        ({"slots": 0, "job_slots": 1, "cpus": -1, "gpu_count": "3", "slot_gpus": 5},
         Offer(frozenset({"x"}), tasks=False)),
    ],
)  # fmt: skip
def test_offers_are_read_from_inventories(inventory: dict[str, Any], expected: Offer) -> None:
    assert of_inventory(("x",), inventory) == expected


def test_needs_have_one_spelling_and_one_digest() -> None:
    written = [
        parse_needs(["memory=16G", "label=b,a", "gpus=1", "label=a"]),
        read_needs({"labels": ["a", "b"], "gpus": 1, "memory": "16G"}),
        read_needs({"labels": "b, a", "gpus": 1, "cpus": 0, "memory": 16 << 30}),
        Needs(("b", "a"), gpus=1, memory=16 << 30),
    ]
    assert len(set(written)) == 1 and len({w.digest for w in written}) == 1
    assert str(written[0]) == "label a, label b, 1 gpu, memory 16 GiB"
    # The digest is a part of the protocol: it stands in names that others must understand.
    assert GPU.fields() == {"labels": ["a100"], "gpus": 1} and GPU.digest == "3ecb2aa5530e"
    assert Needs().digest == "" and not Needs()


@pytest.mark.parametrize(
    "bad",
    [["gpus"], ["gpus=x"], ["cores=3"], ["memory=lots"], ["label=a\nb"], ["cpus=-1"], ["gpus="]],
)
def test_needs_that_cannot_be_are_named(bad: list[str]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_needs(bad)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("memory=999999999999T", "'999999999999T' cannot be: it must be less than 4194304T"),
        (f"memory={'9' * 400}", "it must be less than 4194304T"),
        ("memory=1K", "'1K' cannot be: the least is 1M"),
        ("cpus=99999999999999999999999", "a whole number from 0 to 1000000, not 99999"),
        (f"gpus={'9' * 5000}", "a whole number from 0 to 1000000, not 99999"),
        (",".join(f"label=l{n}" if n == 0 else f"l{n}" for n in range(40)), "40 labels are more"),
        (f"label={'l' * 101}", "has more than 100 characters"),
    ],
)
def test_what_is_too_much_is_said_with_its_limit(bad: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_needs([bad])


def test_words_that_are_well_alone_and_not_together_are_bad_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run")
    (tmp_path / "tasks").write_text("1\n")
    words = [word for n in range(40) for word in ("--need", f"label=l{n}")]
    argv = ["submit", "--tasks", str(tmp_path / "tasks"), "--root", run.root, *words]
    assert main(argv) == 2
    assert "--need: 40 labels are more than 32" in capsys.readouterr().err


def test_nothing_is_needed_by_a_number_or_a_text() -> None:
    assert parse_needs(["memory=0", "cpus=0"]) == read_needs({"memory": "0"}) == Needs()
    assert read_needs({"memory": 0}) == parse_needs(["cpus=" + "0" * 50]) == Needs()


@pytest.mark.parametrize("bad", [3, {"cpu": 1}, {"cpus": 1.5}, {"cpus": True}, {"labels": [3]}])
def test_needs_of_programs_that_cannot_be(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read_needs(bad)


def test_names_carry_needs_wherever_a_batch_goes() -> None:
    token = Token(layout.batch_id("x" * 160, "c0ffee000001", 9_999_999_999), 7, needs=GPU.digest)
    path = layout.inbox_path(token)
    assert path.endswith(f".0.0.{GPU.digest}")
    assert layout.parse_inbox_name(7, path.rpartition("/")[2]) == token
    mine = token.claimed()
    claim = layout.claim_path(Owner("n1", "abcdefabcdef"), mine).rpartition("/")[2]
    assert layout.parse_claim_name(claim) == mine and mine.needs == GPU.digest
    assert mine.returned(died=True).needs == GPU.digest
    longest = Token(token.batch, 10**10 - 1, 10**10 - 1, 10**10 - 1, GPU.digest)
    name = layout.temporary(layout.inbox_path(longest), "c0ffee000001").rpartition("/")[2]
    assert len(name) <= 255 and len(layout.claim_path(Owner("n", "0" * 12), longest)) <= 280
    assert layout.parse_inbox_name(0, "s-c0ffee000001-1.0.0.abc") is None


def beat(host: str, shard: int, labels: tuple[str, ...], **state: Any) -> bytes:
    inventory = {"cpus": 2, "memory_mb": 100, "gpu_count": len(labels), "slots": 1, "job_slots": 1}
    given = {"ready": True, "shard": shard, "labels": labels, "inventory": inventory, **state}
    return Heartbeat(host, 1, "abcdefabcdef", 1, 0.0, **given).to_json()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    for folder in (*layout.FOLDERS, "ctl", *map(layout.inbox_dir, range(3))):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    return Store(tmp_path)


MANIFEST = Manifest("r", "m:f", 3, tuple(WorkerSpec(f"n{i}", i) for i in range(3)))


def test_who_offers_what_is_read_from_the_root(store: Store) -> None:
    for number, state in enumerate(({}, {"stopped": True}, {})):
        path = layout.status_path(f"n{number}")
        store.put(path, beat(f"n{number}", number, ("a100",) if number else (), **state))
    store.put(layout.status_path("stranger"), beat("stranger", 1, ("odd",)))
    store.put(layout.status_path("gone"), beat("gone", 1, ("left",), stopped=True))
    now = os.stat(store.path(layout.status_path("n0"))).st_mtime
    os.utime(store.path(layout.status_path("n2")), (now - 60, now - 60))
    found = offers.read(store, MANIFEST)
    assert [(p.host, p.live) for p in found] == [
        ("n0", True), ("n1", False), ("n2", False), ("stranger", True),
    ]  # fmt: skip
    assert [p.host for p in offers.able(found, GPU)] == ["n1", "n2"], "none lives: as last heard"
    assert [p.host for p in offers.able(found, Needs(("odd",)))] == ["stranger"]
    assert not offers.able(found, Needs(("left",)))
    words = offers.refusal("/r", found, Needs(("left", "a100")))
    assert words.startswith("nobody in /r offers label a100, label left: n1 lacks label left;")
    meta = LaunchMeta("/r", "r", (WorkerSpec("n9", 2),), 3, "m:f")
    store.put(layout.LAUNCH_META, meta.to_json())
    assert [p.host for p in offers.read(store, MANIFEST)] == ["n9", "n0", "stranger"]
    assert "n9: not heard of yet" in offers.refusal("/r", offers.read(store, MANIFEST), GPU)


def put(
    store: Store,
    number: int,
    needs: Needs,
    shard: int = 0,
    data: bytes = b"",
    count: int = 1,
    **more: object,
) -> Token:
    batch = layout.batch_id("s", "c0ffee000001", number)
    token = Token(batch, shard, needs=needs.digest)
    meta = {"needs": needs.fields(), **more} if needs else {}
    records = [packing.pack([f"t{i}", []]) for i in range(count)]
    whole = segment.encode(Segment(segment.BATCH, meta, records))
    store.put(layout.inbox_path(token), data or whole)
    return token


def test_a_worker_sifts_what_it_can_serve_and_reads_each_need_once(store: Store) -> None:
    mine = Capability(store, "n0", PLAIN, list)
    tokens = [put(store, i, Needs(cpus=1 + i % 3)) for i in range(9)]
    assert {t.needs for t in mine.sift(0, tokens)} == {Needs(cpus=1).digest, Needs(cpus=2).digest}
    reads = store.calls["open"]
    assert reads == 3
    mine.sift(0, tokens)
    assert store.calls["open"] == reads
    gone = Token("s-c0ffee000001-77", 0, needs=GPU.digest)
    assert mine.sift(0, [gone]) == [], "what it needs is not known, so it is not taken"


def test_what_is_not_what_its_name_says_is_taken_and_answered(store: Store) -> None:
    mine = Capability(store, "n0", PLAIN, list)
    damaged = put(store, 1, GPU, data=b"\x00" * 40)
    odd = put(store, 2, Needs(("x",)))
    lying = Token(odd.batch, 0, needs="0" * 12)
    store.rename(layout.inbox_path(odd), layout.inbox_path(lying))
    assert mine.sift(0, [damaged, lying]) == [damaged, lying]


def test_what_nobody_of_its_shard_serves_is_forwarded(store: Store) -> None:
    there = [Provider("n1", 1, BIG, True), Provider("n2", 2, BIG, False)]
    mine = Capability(store, "n0", PLAIN, lambda: there)
    tokens = [put(store, i, GPU) for i in range(3)] + [put(store, 9, Needs(("none",)))]
    there.clear()
    assert mine.sift(0, tokens) == [] and mine.turn(10.0) == 0, "nobody offers it: it waits"
    there += [Provider("n1", 1, BIG, True), Provider("n2", 2, BIG, False)]
    mine.sift(0, tokens)
    assert mine.turn(11.0) == 0, "looks are rare"
    assert mine.turn(10.0 + capability.LOOK_EVERY) == 3
    names = store.scan(layout.inbox_dir(1))
    found = [layout.parse_inbox_name(1, n) for n in names]
    assert {(t.attempt, t.deaths, t.needs) for t in found if t} == {(1, 0, GPU.digest)}
    assert mine.turn(100.0) == 0
    mine.sift(1, [t for t in found if t])
    assert mine.turn(200.0) == 0, "its shard's worker serves it: it stays"


def test_what_is_cancelled_whole_while_it_waits_is_answered(store: Store) -> None:
    mine = Capability(store, "n0", PLAIN, list)
    tokens = [put(store, i, GPU, count=2) for i in range(4)]
    batches = [t.batch for t in tokens]
    ask(store, batches[0], CancelRequest("x", batches[0]))
    ask(store, batches[1], CancelRequest("x", batches[1], (0,)))
    ask(store, batches[1], CancelRequest("x", batches[1], (1,)))
    ask(store, batches[2], CancelRequest("x", batches[2], (1,)))
    assert mine.sift(0, tokens) == [] and mine.turn(10.0) == 2
    assert {layout.parse_inbox_name(0, n) for n in store.scan(layout.inbox_dir(0))} == {*tokens[2:]}
    assert store.scan(layout.CLAIMS) == []
    listing = store.run(stream.look("s"))
    assert sorted(out.batch for out in listing.committed) == batches[:2]
    found = store.run(stream.collect(listing.committed[0])).results
    assert found is not None
    assert [row[:3] for row in found.values()] == [[0, "t0", "cancelled"], [1, "t1", "cancelled"]]
    ask(store, "s", CancelRequest("x", upto={"s-c0ffee000001": 2}))
    mine.sift(0, tokens[2:])
    assert mine.turn(20.0) == 1, "the last one was sent after that"


def test_what_waits_longer_than_it_allows_is_answered(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = Capability(store, "n0", PLAIN, list)
    limits = (5.0, None, 60.0, True)
    tokens = [put(store, i, GPU, count=2, queue_limit=limit) for i, limit in enumerate(limits)]
    begun = max(store.read_with_mtime(layout.inbox_path(t))[1] for t in tokens)
    passed, asked = 4.0, 0

    def server_time(folder: str) -> float:
        nonlocal asked
        asked += 1
        return begun + passed

    monkeypatch.setattr(store, "server_time", server_time)

    def turn(now: float) -> int:
        assert mine.sift(0, tokens) == []
        return mine.turn(now)

    assert turn(100.0) == 0 and asked == 1
    reads = store.calls["open"]
    assert turn(100.0 + capability.LOOK_EVERY) == 0 and asked == 2, "that is less than 5 s"
    assert store.calls["open"] == reads, "what a batch allows is read once"
    passed = 6.0
    assert turn(110.0) == 1
    late = tokens.pop(0)
    assert turn(120.0) == 0 and asked == 3, "the next one is not due for long"
    assert {layout.parse_inbox_name(0, n) for n in store.scan(layout.inbox_dir(0))} == {*tokens}
    assert store.scan(layout.CLAIMS) == []
    (out,) = store.run(stream.look("s")).committed
    found = store.run(stream.collect(out)).results
    assert out.batch == late.batch and found is not None
    assert [row[:3] for row in found.values()] == [[0, "t0", "expired"], [1, "t1", "expired"]]
    assert all("5 s is its limit" in str(row[3]) for row in found.values())


def test_an_audit_knows_batches_that_need_something(store: Store) -> None:
    me = Owner("n0", "abcdefabcdef")
    held, waits = put(store, 1, GPU), put(store, 2, GPU)
    store.run(ledger.enlist(me))
    mine = store.run(ledger.claim(me, held))
    assert mine == held.claimed() and mine.needs == GPU.digest
    seen = store.run(audit.survey())
    assert {p.batch: p.state for p in seen.all_places()} == {
        held.batch: "claimed", waits.batch: "pending",
    }  # fmt: skip
    assert seen.ignored == []
    assert store.run(ledger.forward(waits, 2)) and not store.run(ledger.forward(waits, 1))
    back = store.run(ledger.reclaim(me, died=True))
    assert [t.needs for t in back.moved] == [GPU.digest] and back.finished
    seen = store.run(audit.survey())
    assert {(p.shard, p.attempt) for p in seen.all_places()} == {(0, 1), (2, 1)}
