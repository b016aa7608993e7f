"""A client whose tasks need something: refused, routed, waiting, and never in the way of others."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsworker import Client, Needs, NotOffered
from fsworker.client import liveness, routing
from fsworker.client.routing import Shortage
from fsworker.client.terms import WAITS
from fsworker.errors import NoWorkers, UsageError
from fsworker.protocol.layout import Token
from tests.support.small_worker import SmallWorker, make_run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.unit

FN = "tests.fn:first"
GPU = Needs(("a100",), gpus=1)
INVENTORY = {"cpus": 2, "memory_mb": 100, "gpu_count": 2, "slots": 2, "job_slots": 1}


class Plain(SmallWorker):
    """Serves what needs nothing, until it is told to serve everything."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.everything = False
        self.offered: dict[str, Any] = {}
        self.one_beat = threading.Lock()

    def pending(self) -> list[Token]:
        return [t for t in super().pending() if self.everything or not t.needs]

    def waiting(self) -> list[Token]:
        return [t for t in super().pending() if t.needs]

    def offer(self, *labels: str, **state: Any) -> None:
        self.offered = {"labels": labels, "inventory": INVENTORY, "slots_total": 2, **state}
        self.beat()

    def beat(self, **fields: Any) -> None:
        with self.one_beat:  # it beats from its thread too
            super().beat(**{"ready": True, **self.offered, **fields})


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plain]:
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    worker = Plain(make_run(tmp_path / "run"), {FN: lambda x=None: x})
    with worker:
        yield worker


def test_what_nobody_offers_is_refused_and_what_somebody_offers_goes_there(worker: Plain) -> None:
    with Client(worker.store.root) as client:
        able = client.with_options(needs={"labels": "a100", "gpus": 1})
        with pytest.raises(NotOffered, match="h0: not heard of yet") as refused:
            able.submit(None, 1)
        assert refused.value.exit_code == 5
        worker.offer("v100")
        for call in (able.submit, able.map, lambda *a: able.submit_as("id", *a)):
            with pytest.raises(NotOffered, match=r"lacks label a100; .*h1.*wait_for_workers"):
                call(None, [1])
        worker.offer("a100", "other")
        futures = [able.submit(None, i) for i in range(5)]
        named = able.submit_as("id", None, 5)
        wait_until(lambda: sum(1 for _ in worker.waiting()) >= 1, what="a batch")
        worker.everything = True
        assert [f.result(120) for f in [*futures, named]] == list(range(6))
        assert list(able.map(None, range(100))) == list(range(100))
    assert all(meta["needs"] == {"labels": ["a100"], "gpus": 1} for meta in worker.metas)


def test_batches_of_equal_needs_go_to_the_shard_of_who_offers_them(worker: Plain) -> None:
    worker.offer("a100")
    with Client(worker.store.root, needs=GPU, batch_size=1) as client:
        futures = [client.submit(None, i) for i in range(8)]
        wait_until(lambda: len(worker.waiting()) == 8, what="the batches")
        assert {(t.shard, t.needs) for t in worker.waiting()} == {(0, GPU.digest)}
        free = client.with_options(needs=None)
        assert free.submit(None, "x").result(120) == "x"
        worker.everything = True
        assert [f.result(120) for f in futures] == list(range(8))


def test_what_waits_is_in_nobodys_way_and_is_not_given_up(
    worker: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((liveness, "LOOK_EVERY"), (liveness, "QUIET"), (routing, "ASK_EVERY")):
        monkeypatch.setattr(module, name, 0.01)
    client = Client(worker.store.root, batch_size=1, no_worker_timeout=0.5)
    waits = client.with_options(needs=GPU, wait_for_workers=True)
    kept = [waits.submit(None, i) for i in range(200)]
    assert client.submit(None, "x").result(120) == "x", "200 waiting tasks are before it"
    worker.offer("a100", stopped=True)  # it was heard of, so its needs are accepted
    lost = client.with_options(needs=GPU).submit(None, "lost")
    with pytest.raises(NoWorkers):
        lost.result(120)
    assert not any(f.done() for f in kept), "silence ends only what does not wait"
    worker.everything = True
    assert [f.result(120) for f in kept] == list(range(200))
    client.shutdown()


def test_needs_are_checked_when_they_are_given(worker: Plain) -> None:
    for bad in ({"cpu": 1}, "gpu", {"memory": "lots"}):
        with pytest.raises(UsageError, match="needs: "):
            Client(worker.store.root, needs=bad)
    with pytest.raises(UsageError, match="wait_for_workers"):
        Client(worker.store.root).with_options(wait_for_workers=1)


class Table:
    """Routes that are told who is served."""

    def __init__(self) -> None:
        self.live: set[str] = set()

    def served(self, digest: str) -> bool:
        return digest in self.live

    def missing(self, digest: str, limit: float) -> NoWorkers:
        return NoWorkers(f"{digest} {limit:g}")


def test_silence_is_counted_for_each_need_apart() -> None:
    now, table = [0.0], Table()
    table.live = {"a" * 12}
    watch = Shortage(table, 10.0, lambda: now[0])  # type: ignore[arg-type]
    names = ["a" * 12, "b" * 12, "b" * 12 + WAITS]
    given_up = []
    for now[0] in map(float, range(0, 52, 2)):
        given_up += [(now[0], name) for name, _ in watch.check(names)]
    assert {name for _, name in given_up} == {"b" * 12}
    assert given_up[0][0] == 10.0
    now[0] += 500.0
    assert watch.check(names) == [], "a process that was frozen counts only two looks' worth"
    never = Shortage(table, None, lambda: now[0])  # type: ignore[arg-type]
    now[0] += 500.0
    assert never.check(names) == []
