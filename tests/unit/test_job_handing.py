"""Episodes as folders that are published once, and what is done about those that are damaged."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from fsworker.errors import StorageError
from fsworker.jobs import handing, story
from fsworker.jobs.handing import NoWeights
from fsworker.jobs.pickled import Unreadable
from fsworker.protocol import artifacts, federation, fsfolders, layout
from fsworker.protocol.artifacts import Damaged
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout.jobs import Attempt
from fsworker.protocol.records.artifact import Done
from fsworker.protocol.records.job import Job
from fsworker.protocol.records.round import Group, Merge

pytestmark = pytest.mark.unit

LIFE, OTHER = "c0ffee000001", "c0ffee000002"
JOB = Job("j", ("x",), episodes=9, per_episode_sync=True)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    for folder in (*layout.FOLDERS, layout.jobs.JOBS, layout.jobs.job_dir("j")):
        (tmp_path / folder).mkdir(exist_ok=True)
    return Store(tmp_path)


def leave(store: Store, episode: int, *, life: str = LIFE, text: str = "") -> Done:
    """What an attempt does when a process has saved its checkpoint."""
    folder = handing.attempt_turn_dir("j", Attempt(1, life), episode)
    fsfolders.make_folders(store, folder)
    told = text or json.dumps({"episode": 1, "rewards": [float(episode)], "by": life})
    Path(store.path(f"{folder}/checkpoint.json")).write_text(told)
    inspected = handing.inspect(store, folder, "checkpoint.json")
    assert inspected is not None
    rewards = inspected[1].rewards
    done = Done("j", 1, life, episode, (), None, None, rewards, sum(r or 0 for r in rewards))
    return handing.publish(store, folder, inspected[0], done, (0, 1))


def checkpoint(store: Store, episode: int) -> Path:
    return Path(store.path(f"{layout.jobs.episode_dir('j', episode)}/checkpoint.json"))


def test_the_first_to_finish_an_episode_wins_and_the_second_adopts_it(store: Store) -> None:
    first = leave(store, 1)
    assert leave(store, 1, life=OTHER) == first
    assert json.loads(checkpoint(store, 1).read_text())["by"] == LIFE
    assert not [n for n in store.scan(layout.jobs.job_dir("j")) if n.startswith(".tmp")]


def test_what_a_killed_attempt_had_prepared_is_removed(store: Store) -> None:
    leave(store, 1)
    artifacts.prepare(store, layout.jobs.episode_dir("j", 2))
    artifacts.prepare(store, layout.jobs.job_final("j", ""))
    handing.tidy(store, "j", (0, 1))
    left = [n for n in store.scan(layout.jobs.job_dir("j")) if n.startswith(".tmp")]
    assert [n.rpartition("~")[2] for n in left] == ["checkpoint_final"]
    assert handing.latest(store, "j").number == 1


def test_an_attempt_takes_nothing_from_those_that_came_after_it(store: Store) -> None:
    """Also when it was frozen, and given up, and tidies up as it wakes."""
    ranks = [(0, 1), (0, 2), (0, 10), (1, 1)]
    for rank in ranks:
        artifacts.prepare(store, layout.jobs.episode_dir("j", 2), "{}.{}.".format(*rank))
    for count, rank in enumerate(ranks, 1):
        handing.tidy(store, "j", rank)
        assert len(store.scan(layout.jobs.job_dir("j"))) == len(ranks) - count


def test_a_checkpoint_that_somebody_took_away_is_lost_and_not_tried_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = artifacts.digest_files

    def disturbed(store: Store, folder: str) -> Any:
        handing.tidy(store, "j", (0, 1))
        return digest(store, folder)

    monkeypatch.setattr(artifacts, "digest_files", disturbed)
    with pytest.raises(handing.Lost, match=r"ep_0001/checkpoint.json is not there any more"):
        leave(store, 1)
    assert store.scan(layout.jobs.job_dir("j")) == ["attempts"]


def test_a_checkpoint_that_could_not_be_published_is_kept_for_another_try(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(store: Store, folder: str) -> Any:
        raise OSError(errno.EIO, "not now")

    with monkeypatch.context() as broken:
        broken.setattr(artifacts, "digest_files", fail)
        with pytest.raises(StorageError, match="not now"):
            leave(store, 1)
    assert leave(store, 1).episode == 1


def test_a_job_goes_on_after_its_last_verified_episode(store: Store) -> None:
    for episode in (1, 2, 10, 9):
        leave(store, episode)
    assert story.progress(store, JOB).done == 9  # never more than was asked for
    checkpoint(store, 10).write_text("{")
    checkpoint(store, 9).write_text(checkpoint(store, 9).read_text().replace("9", "8"))
    (Path(store.path(layout.jobs.job_dir("j"))) / "after_ep_0005.tmp").mkdir()
    (Path(store.path(layout.jobs.job_dir("j"))) / "after_ep_0007").mkdir()
    found = handing.latest(store, "j")
    assert (found.number, len(found.bad)) == (2, 3)
    assert story.progress(store, JOB).done == 2
    tally = story.tally(store, JOB)
    assert (tally.episodes, tally.rewards) == (9, (1.0, 2.0, 9.0))  # of 9 the size is right


def test_what_is_damaged_makes_room_and_is_kept(store: Store) -> None:
    leave(store, 1)
    checkpoint(store, 1).write_text("{")
    done = leave(store, 1, life=OTHER)
    assert done.incarnation == OTHER
    assert artifacts.verify(store, layout.jobs.episode_dir("j", 1), full=True) == done
    (reason,) = (n for n in store.scan(layout.QUARANTINE) if n.endswith(".reason.json"))
    told = json.loads(store.read(f"{layout.QUARANTINE}/{reason}"))
    assert told["job"] == "j" and "has 1 bytes" in told["why"]
    assert store.scan(f"{layout.QUARANTINE}/{reason.removesuffix('.reason.json')}")


def test_an_upload_is_a_verified_copy(store: Store) -> None:
    federation.create_group(store, Group("g", 2))
    done = leave(store, 1)
    assert not handing.is_uploaded(store, "g", 1, "j")
    handing.upload(store, "g", 1, "j")
    assert handing.is_uploaded(store, "g", 1, "j")
    target = layout.groups.upload_dir("g", 1, "j")
    assert artifacts.verify(store, target, full=True) == done
    leave(store, 2)
    checkpoint(store, 2).write_text("{}")
    with pytest.raises(Damaged, match="other content"):
        handing.upload(store, "g", 2, "j")
    assert not handing.is_uploaded(store, "g", 2, "j")
    assert handing.global_weights(store, "g", 2) is None


def test_a_model_that_was_retired_is_there_no_more(store: Store) -> None:
    federation.create_group(store, Group("g", 2))
    folder = layout.groups.global_dir("g", 2)
    prepared = artifacts.prepare(store, folder)
    store.put(f"{prepared}/global_weights.json", b"{}")
    files = artifacts.digest_files(store, prepared)
    merge = Merge("g", 1, "fedavg", files, artifacts.tree_digest(files))
    store.put(f"{prepared}/merge.json", merge.to_json())
    artifacts.publish(store, prepared, folder)
    found = handing.global_weights(store, "g", 2)
    assert found is not None and found.base == merge.digest
    store.remove(f"{folder}/global_weights.json")  # its record stays, for the chain
    assert handing.global_weights(store, "g", 2) is None


def test_weights_that_cannot_be_read_fail_at_once(store: Store, tmp_path: Path) -> None:
    assert handing.first_weights(store, JOB, None).path is None
    for name, data, says in (
        ("nothing.json", None, "No such file"),
        ("empty.json", "", "are an empty file"),
        ("cut.json", "{", "is not valid JSON"),
        ("cut.pt", "PK", "no archive"),
    ):
        path = tmp_path / name
        if data is not None:
            path.write_text(data)
        with pytest.raises(NoWeights) as caught:
            handing.first_weights(store, Job("j", ("x",), weights=name, cwd=str(tmp_path)), None)
        assert says in str(caught.value) and str(path) in str(caught.value)
    with pytest.raises(Unreadable, match="checkpoint"):
        leave(store, 3, text="{")


def test_streams_of_tasks_cannot_lie_where_jobs_do() -> None:
    for name in ("jobs", "federation", "jobs/x"):
        with pytest.raises(ValueError, match="jobs and groups"):
            layout.check_stream(name)
    assert layout.check_stream("jobsworth") == "jobsworth"
