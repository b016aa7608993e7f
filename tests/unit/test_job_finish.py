"""The copies of a result that counts, and checkpoints that are folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fsworker.jobs import handing, story
from fsworker.jobs.finish import finish
from fsworker.protocol import fsfolders, jobstate, layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout.jobs import Attempt
from fsworker.protocol.records.artifact import Done
from fsworker.protocol.records.job import FAILED, SUCCESS, AttemptNote, Job, Result

pytestmark = pytest.mark.unit

LIFE = "c0ffee000001"
ATTEMPT = Attempt(2, LIFE)
FOLDER = layout.jobs.attempt_dir("j", ATTEMPT)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    for folder in (*layout.FOLDERS, layout.jobs.JOBS):
        (tmp_path / folder).mkdir(exist_ok=True)
    found = Store(tmp_path)
    fsfolders.make_folders(found, FOLDER)
    found.put(layout.jobs.job_file("j"), Job("j", ("x",)).to_json())
    found.put(f"{FOLDER}/{layout.jobs.LOG_FILE}", b"episode 1\n")
    return found


def commit(store: Store, number: int = 0) -> None:
    batch = layout.batch_id(layout.job_stream("j"), LIFE, number)
    store.put(layout.jobs.job_token("j", batch, ATTEMPT), b"")


def leave_folder(store: Store) -> str:
    """A finished episode whose checkpoint is a folder of shards; its path."""
    turn = handing.attempt_turn_dir("j", ATTEMPT, 3)
    fsfolders.make_folders(store, f"{turn}/checkpoint/more")
    index = {"metadata": {"episode": 3, "rewards": [1, 2, 3]}, "weight_map": {}}
    top = Path(store.path(f"{turn}/checkpoint"))
    (top / "model.safetensors.index.json").write_text(json.dumps(index))
    (top / "model-1.safetensors").write_bytes(b"1" * 10)
    (top / "more" / "state.bin").write_bytes(b"2" * 20)
    inspected = handing.inspect(store, turn, "checkpoint")
    assert inspected is not None
    assert (inspected[1].episodes, inspected[1].rewards) == (3, (1.0, 2.0, 3.0))
    done = handing.publish(store, turn, inspected[0], Done("j", 2, LIFE, 3, ()), (0, 2))
    assert [f.name for f in done.files] == [
        "checkpoint/model-1.safetensors",
        "checkpoint/model.safetensors.index.json",
        "checkpoint/more/state.bin",
    ]
    weights = handing.episode_weights(store, done)
    assert weights.path == store.path("outbox/jobs/j/after_ep_0003/checkpoint")
    assert weights.known is not None and weights.known.episodes == 3
    return "outbox/jobs/j/after_ep_0003/checkpoint"


def result(status: str, checkpoint: str | None = None) -> Result:
    return Result("j", "n1", status, "a", "b", 1.0, 3, 6.0, 3.0, None, checkpoint, None, 2, LIFE)


def test_copies_are_made_once_the_token_says_that_they_count(store: Store) -> None:
    told = result(SUCCESS, leave_folder(store))
    store.put(f"{FOLDER}/{layout.jobs.RESULT_FILE}", told.to_json())
    assert finish(store, "j") is None
    assert layout.jobs.RESULT_FILE not in store.scan(layout.jobs.job_dir("j"))
    commit(store)
    for _ in range(2):  # whoever does it again changes nothing
        assert finish(store, "j") == told
        assert Result.from_json(store.read(layout.jobs.job_result("j")), "x") == told
        assert store.read(layout.jobs.job_log("j")) == b"episode 1\n"
        copied = Path(store.path(layout.jobs.job_final("j", "")))
        assert (copied / "more" / "state.bin").read_bytes() == b"2" * 20
    assert not [n for n in store.scan(layout.jobs.job_dir("j")) if n.startswith(".tmp")]


@pytest.mark.parametrize(
    ("name", "copy"),
    [
        ("checkpoint.pt", "checkpoint_final.pt"),
        ("model", "checkpoint_final"),
        ("model.step 3 (best)", "checkpoint_final"),
        ("model." + "x" * 200, "checkpoint_final"),
    ],
)
def test_a_checkpoint_of_any_name_is_copied(store: Store, name: str, copy: str) -> None:
    store.put(f"{FOLDER}/{name}", b"weights")
    store.put(f"{FOLDER}/{layout.jobs.RESULT_FILE}", result(SUCCESS, f"{FOLDER}/{name}").to_json())
    commit(store)
    assert finish(store, "j") is not None
    assert store.read(f"{layout.jobs.job_dir('j')}/{copy}") == b"weights"


def test_a_folder_with_an_ending_is_copied_too(store: Store) -> None:
    fsfolders.make_folders(store, f"{FOLDER}/model.shards")
    store.put(f"{FOLDER}/model.shards/1", b"weights")
    told = result(SUCCESS, f"{FOLDER}/model.shards")
    store.put(f"{FOLDER}/{layout.jobs.RESULT_FILE}", told.to_json())
    commit(store)
    assert finish(store, "j") == told
    assert store.read(f"{layout.jobs.job_dir('j')}/checkpoint_final.shards/1") == b"weights"


def test_nothing_is_said_of_the_log_of_a_job_that_never_ran(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.put(f"{FOLDER}/{layout.jobs.RESULT_FILE}", result(FAILED).to_json())
    store.remove(f"{FOLDER}/{layout.jobs.LOG_FILE}")
    commit(store)
    assert finish(store, "j") is not None
    assert layout.jobs.RESULT_FILE in store.scan(layout.jobs.job_dir("j"))
    assert not caplog.records


def test_the_last_submission_counts_and_replaces_the_copy(store: Store) -> None:
    store.put(f"{FOLDER}/{layout.jobs.RESULT_FILE}", result(FAILED).to_json())
    commit(store)
    found = finish(store, "j")
    assert found is not None and found.status == FAILED
    (Path(store.path(FOLDER)) / layout.jobs.RESULT_FILE).write_bytes(result(SUCCESS).to_json())
    commit(store, 1)
    found = finish(store, "j")
    assert found is not None and found.status == SUCCESS
    copied = Result.from_json(store.read(layout.jobs.job_result("j")), "x")
    assert copied.status == SUCCESS
    commit_now = jobstate.look(store, "j").commit
    assert commit_now is not None and commit_now.number == 1


def test_what_was_before_the_last_submission_is_forgiven(store: Store) -> None:
    for number in (1, 2, 3, 4):
        attempt = Attempt(number, LIFE)
        fsfolders.make_folders(store, layout.jobs.attempt_dir("j", attempt))
        note = AttemptNote("j", "n1", number, LIFE, "", why="preflight")
        store.put(jobstate.note_path("j", attempt), note.to_json())
    now = Attempt(4, LIFE)
    assert [n.attempt for n in story.notes_before(store, "j", now)] == [1, 2, 3]
    commit(store)  # of the second attempt
    assert [n.attempt for n in story.notes_before(store, "j", now)] == [3]


def test_what_a_worker_answered_itself_is_a_result_too(store: Store) -> None:
    commit(store)
    found = finish(store, "j")
    assert found is not None
    assert (found.status, found.error) == (FAILED, "its result is missing")
