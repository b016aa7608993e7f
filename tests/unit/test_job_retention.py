"""Old checkpoints of a job: which go, what stays of them, and what a killed attempt left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fsworker.jobs import handing, retention, story
from fsworker.protocol import artifacts, fsfolders, layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.records.artifact import Done
from fsworker.protocol.records.job import Job

pytestmark = pytest.mark.unit

LIFE = "c0ffee000001"
JOB = Job("j", ("x",), episodes=9, keep_checkpoints=2)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    for folder in (*layout.FOLDERS, layout.jobs.JOBS):
        (tmp_path / folder).mkdir(exist_ok=True)
    return Store(tmp_path)


def leave(store: Store, episode: int) -> None:
    """A finished episode, whose checkpoint is a folder every second time."""
    folder = layout.jobs.episode_dir("j", episode)
    prepared = artifacts.prepare(store, folder)
    name = "checkpoint.json" if episode % 2 else "checkpoint/index.json"
    fsfolders.make_folders(store, f"{prepared}/{name}".rpartition("/")[0])
    store.put(f"{prepared}/{name}", b"{}")
    files = artifacts.digest_files(store, prepared)
    done = Done("j", 1, LIFE, episode, files, rewards=(float(episode),))
    artifacts.write_done(store, prepared, done)
    assert artifacts.publish(store, prepared, folder)


def whole(store: Store) -> list[int]:
    """The episodes whose checkpoints are there."""
    folder = Path(store.path(layout.jobs.job_dir("j")))
    return [n for n in range(1, 10) if any((folder / f"after_ep_000{n}").glob("checkpoint*"))]


def test_the_newest_stay_and_so_does_what_the_others_gave(store: Store) -> None:
    for episode in (1, 2, 3):
        leave(store, episode)
    assert retention.prune(store, JOB, 3) == [1]
    leave(store, 4)
    leave(store, 5)  # its attempt died before it removed anything
    os.remove(store.path("outbox/jobs/j/after_ep_0002/checkpoint/index.json"))
    assert retention.prune(store, JOB, 5) == [2, 3]
    assert whole(store) == [4, 5] and retention.prune(store, JOB, 5) == []
    tally = story.tally(store, JOB)
    assert (tally.episodes, tally.rewards) == (5, (1.0, 2.0, 3.0, 4.0, 5.0))
    assert handing.latest(store, "j").number == 5 and story.progress(store, JOB).done == 5


def test_a_job_that_says_nothing_keeps_all(store: Store) -> None:
    for episode in (1, 2, 3):
        leave(store, episode)
    assert retention.prune(store, Job("j", ("x",)), 3) == [] and whole(store) == [1, 2, 3]
    assert retention.oldest_kept(JOB, 1) == 1
