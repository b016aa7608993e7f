"""Changes of a run on a disk that fills up amid them: they are told whole, or not at all."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from ctl import cancelling, draining, locks
from ctl.cancelling import Asked
from ctl.draining import Drain
from fsworker.errors import StorageError
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.records.cancel import CancelRequest
from fsworker.protocol.records.run import LaunchMeta, WorkerSpec

pytestmark = pytest.mark.unit

Fill = Callable[[str], None]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    for folder in layout.FOLDERS:
        (tmp_path / folder).mkdir()
    return Store(tmp_path)


@pytest.fixture
def fill(monkeypatch: pytest.MonkeyPatch) -> Fill:
    """From the file whose path holds this text on, the disk is full."""

    def from_now(text: str) -> None:
        put, full = Store.put, []

        def refuse(self: Store, rel: str, data: bytes, *, durable: bool = True) -> None:
            full.extend([text] if text in rel else [])
            if full:
                raise OSError(errno.ENOSPC, "No space left on device", self.path(rel))
            put(self, rel, data, durable=durable)

        monkeypatch.setattr(Store, "put", refuse)

    return from_now


def drain(store: Store) -> Drain:
    workers = tuple(WorkerSpec(f"n{i}", 0) for i in range(3))
    meta = LaunchMeta(store.root, "r", workers, 1, "m:f", launches={"n0": 1, "n1": 1, "n2": 1})
    return Drain(store, meta, ["n0", "n1", "n2"], 5.0, 4)


@pytest.mark.parametrize("text", [".room", "n0.drain", "n2.drain", "n0.stop", "n2.stop"])
def test_a_drain_tells_all_hosts_or_none(store: Store, fill: Fill, text: str) -> None:
    store.publish(layout.host_file("n1", "stop"), b"1\n")  # stopped before, for good
    fill(text)
    with pytest.raises(StorageError, match="No space left on device"):
        draining.announce(drain(store))
    names = [name for name in store.scan(layout.CTL) if name.startswith("n")]
    assert names == ["n1.stop"] and ".room" not in store.scan(layout.CTL)


def test_a_drain_with_room_tells_all(store: Store) -> None:
    draining.announce(drain(store))
    names = {name for name in store.scan(layout.CTL) if name.endswith((".stop", ".drain"))}
    assert names == {f"n{i}.{kind}" for i in range(3) for kind in ("stop", "drain")}
    locks.check_room(store)
    assert ".room" not in store.scan(layout.CTL)


def test_a_cancellation_asks_for_all_or_nothing(store: Store, fill: Fill) -> None:
    store.mkdir(layout.CANCEL)
    asked = [Asked(f"s-00000000000a-{i}", CancelRequest(f"t{i}", f"s-{i}")) for i in range(3)]
    fill("a-2")
    with pytest.raises(StorageError, match="No space left on device"):
        cancelling.publish(store, asked)
    assert store.scan(layout.CANCEL) == []
