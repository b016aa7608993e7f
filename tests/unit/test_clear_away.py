"""What is cleared away of somebody who lives after all: he publishes all of it or nothing."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedavg import retention
from fedavg.keeper import GroupKeeper
from fsworker.errors import StorageError
from fsworker.jobs import handing
from fsworker.protocol import artifacts, fsfolders, layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import groups
from tests.support.rounds import make_group, published, upload

pytestmark = pytest.mark.unit

FILES = ("a", "b", "c")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "root").mkdir(mode=0o700)
    return Store(tmp_path / "root")


def prepared(store: Store, target: str) -> str:
    folder = artifacts.prepare(store, target)
    for name in FILES:
        store.put(f"{folder}/{name}", name.encode())
    return folder


def amid(store: Store, monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Do something right before the last file of a removal goes."""
    remove, count = Store.remove, 0

    def counted(self: Store, rel: str) -> bool:
        nonlocal count
        count += 1
        if count == len(FILES):
            monkeypatch.setattr(Store, "remove", remove)
            act()
        return remove(self, rel)

    monkeypatch.setattr(Store, "remove", counted)


def test_nothing_that_lacks_a_part_is_published(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = prepared(store, "x/target")
    told: list[str] = []

    def publish() -> None:
        with pytest.raises(StorageError) as caught:
            artifacts.publish(store, folder, "x/target")
        told.append(str(caught.value))

    amid(store, monkeypatch, publish)
    artifacts.clear_away(store, folder)
    assert told and store.scan("x") == []


def test_what_was_published_meanwhile_stays(store: Store) -> None:
    folder = prepared(store, "x/target")
    assert artifacts.publish(store, folder, "x/target")
    artifacts.clear_away(store, folder)
    assert store.scan("x") == ["target"] and sorted(store.scan("x/target")) == list(FILES)


def test_whoever_is_killed_amid_it_leaves_what_the_next_one_finds(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = layout.jobs.episode_dir("j", 1)
    folder = prepared(store, target)
    monkeypatch.setattr(fsfolders, "remove_tree", lambda *args: pytest.fail("killed"))
    with pytest.raises(pytest.fail.Exception):
        handing.tidy(store, "j", (0, 1))
    monkeypatch.undo()
    (left,) = store.scan(layout.jobs.job_dir("j"))
    assert left != folder.rpartition("/")[2]
    handing.tidy(store, "j", (0, 1))
    assert store.scan(layout.jobs.job_dir("j")) == []


def test_of_two_aggregators_that_believe_to_be_alone_none_publishes_half_a_model(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One cleans up what it takes for left over while the other has written the model."""
    make_group(store, "ab", rule="fedavgm", episodes=2)
    first = GroupKeeper(store, "g", threads=1)
    for episode in (1, 2):
        for job in "ab":
            upload(store, "g", job, episode, float(episode))
        if episode == 1:
            assert first.step().merged
    digest, cleaned = artifacts.digest_files, []

    def refuse(self: Store, rel: str) -> None:
        raise OSError(errno.ENOTEMPTY, "not empty")

    def disturbed(store: Store, folder: str) -> Any:
        if folder.endswith("before_ep_0003") and not cleaned:
            cleaned.append(folder)
            with monkeypatch.context() as patch:  # a file came after the last look at the folder
                patch.setattr(Store, "rmdir", refuse)
                retention.remove_leftovers(store, "g", alone=True)
        return digest(store, folder)

    monkeypatch.setattr(artifacts, "digest_files", disturbed)
    with pytest.raises(StorageError):
        first.step()
    assert cleaned and not [name for name in published(store) if "before_ep_0003" in name]
    assert first.step().merged
    names = sorted(store.scan(groups.global_dir("g", 3)))
    assert names == ["global_weights.pt", "merge.json", "optimizer_state.safetensors"]
