"""Tasks that need something, with real workers that offer different things."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsworker import Client, NotOffered, TaskExpired
from fsworker.protocol import layout
from tests.support.client_functions import where
from tests.support.fleet import NOTE, Fleet
from tests.support.waiting import Spawned, wait_until

pytestmark = pytest.mark.fleet

GPU = ("--label", "gpu", "--gpus", "2,3")
BIG = ("--label", "gpu", "--label", "fast", "--cpus", "64", "--ram-mb", "64000", "--gpus", "0")
NEEDS = {
    "anybody": None,
    "label": {"labels": ["gpu"]},
    "device": {"gpus": 1},
    "size": {"cpus": 64, "memory": "32G"},
}
SERVED = {
    "anybody": {"h0", "h1", "h2"},
    "label": {"h1", "h2"},
    "device": {"h1"},
    "size": {"h2"},
}


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Spawned() as spawned:
        allow = ("tests.support.client_functions.*",)
        yield Fleet(tmp_path / "run", spawned, (NOTE,), allow=allow, shards=3)


def inbox(fleet: Fleet, shard: int) -> list[str]:
    return [n for n in fleet.store.scan(layout.inbox_dir(shard)) if not layout.is_foreign(n)]


def test_each_is_executed_by_who_offers_it_and_by_another_when_that_one_is_gone(
    fleet: Fleet,
) -> None:
    fleet.start("h0", "h1", "h2", options={"h1": GPU, "h2": BIG})
    with Client(fleet.root) as client:
        senders = {kind: client.with_options(needs=needs) for kind, needs in NEEDS.items()}
        sent = [(kind, senders[kind].submit(where, 0.005)) for _ in range(150) for kind in NEEDS]
        served = Counter((kind, future.result(120)) for kind, future in sent)
        for kind, hosts in SERVED.items():
            assert {host for k, host in served if k == kind} <= hosts, served
            assert sum(count for (k, _), count in served.items() if k == kind) == 150
        with pytest.raises(NotOffered, match=r"lacks 2 gpus \(a slot has 1\)"):
            client.with_options(needs={"gpus": 2}).submit(where)

    with Client(fleet.root, batch_size=2, needs=NEEDS["label"]) as client:
        slow = [client.submit(where, 0.1) for _ in range(60)]
        wait_until(lambda: inbox(fleet, 1), what="a batch that waits for it")
        fleet.kill("h1")
        fleet.start("h1")  # it offers nothing now: what lies in its shard must find its way
        assert {"h2"} <= {future.result(120) for future in slow} <= {"h1", "h2"}
        assert client.submit(where).result(120) == "h2"
    assert not fleet.files()


def test_what_nobody_offers_waits_in_nobodys_way_until_somebody_comes(fleet: Fleet) -> None:
    fleet.start("h0")
    with Client(fleet.root, batch_size=4) as client:
        gpu = client.with_options(needs={"labels": ["gpu"]})
        with pytest.raises(NotOffered, match=r"nobody in .* offers label gpu: h0 lacks label gpu"):
            gpu.submit(where)
        waiting = client.with_options(needs={"labels": ["gpu"]}, wait_for_workers=True)
        futures = [waiting.submit(where) for _ in range(100)]
        never = {"needs": {"labels": ["never"]}, "wait_for_workers": True}
        hurried = client.with_options(**never, queue_limit=0.5).submit(where)
        with pytest.raises(TimeoutError):
            list(client.with_options(**never).map(where, [0.0] * 3, timeout=0.2))
        assert list(client.map(where, [0.0] * 100)) == ["h0"] * 100
        assert isinstance(hurried.exception(120), TaskExpired), "any worker answers that"
        assert not any(future.done() for future in futures)
        fleet.start("h2", options={"h2": GPU})
        assert {future.result(120) for future in futures} == {"h2"}
        assert gpu.submit(where).result(120) == "h2", "now it is offered"
        # Nor is anybody waited for at the end: what `map` gave up is cancelled.
    assert not fleet.files()
