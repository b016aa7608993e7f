"""What a job does next, as a table: the pure half of its runner."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fsworker.jobs import story
from fsworker.jobs.episodes import (
    Await,
    End,
    Event,
    Progress,
    Step,
    Train,
    Upload,
    after,
    begin,
    next_step,
)
from fsworker.protocol.records.job import AttemptNote, Job

pytestmark = pytest.mark.unit

WHOLE = Job("j", ("train",), episodes=20)
EACH = replace(WHOLE, per_episode_sync=True)
GROUP = replace(WHOLE, federation_group_id="g", federation_size=2)
SUCCESS = End("success")


@pytest.mark.parametrize(
    ("job", "at", "step"),
    [
        (WHOLE, Progress(), Train(1, 20)),
        (WHOLE, Progress(done=7), Train(8, 13)),
        (WHOLE, Progress(done=20), SUCCESS),
        (EACH, Progress(), Train(1, 1)),
        (EACH, Progress(done=19), Train(20, 1)),
        (EACH, Progress(done=20), SUCCESS),
        (EACH, Progress(done=3, end=End("failed", "x")), End("failed", "x")),
        (GROUP, Progress(), Train(1, 1)),
        (GROUP, Progress(done=1), Upload(1)),
        (GROUP, Progress(done=1, uploaded=1), Await(2)),
        (GROUP, Progress(done=1, uploaded=1, ready=2), Train(2, 1)),
        # Rounds that closed without it are left out; who joins late begins where the others are.
        (GROUP, Progress(done=3, uploaded=3, ready=9), Train(9, 1)),
        (GROUP, Progress(ready=9), Train(9, 1)),
        (GROUP, Progress(done=3, uploaded=3, ready=21), Train(20, 1)),
        (GROUP, Progress(done=3, uploaded=0, ready=9), Upload(3)),
        # The last episode is given to the group as well, and nothing is waited for.
        (GROUP, Progress(done=20, uploaded=19, ready=20), Upload(20)),
        (GROUP, Progress(done=20, uploaded=20, ready=20), SUCCESS),
    ],
)
def test_next_step(job: Job, at: Progress, step: Step) -> None:
    assert next_step(job, at) == step


@pytest.mark.parametrize(
    ("event", "becomes"),
    [
        (Event("trained", 5), Progress(done=5)),
        (Event("finished", 20), Progress(done=20, crashes=1, end=SUCCESS)),
        (Event("finished", 12), Progress(done=12, crashes=1, end=SUCCESS)),
        (Event("uploaded", 4), Progress(done=4, uploaded=4, crashes=1)),
        (Event("arrived", 5), Progress(done=4, ready=5, crashes=1)),
        (Event("crashed", 4, "killed"), Progress(done=4, crashes=2)),
        (Event("crashed", 6, "killed"), Progress(done=6, crashes=1)),
        (Event("failed", 4, "no"), Progress(done=4, crashes=1, end=End("failed", "no"))),
        (Event("late", 0, "no"), Progress(done=4, crashes=1, end=End("failed", "no"))),
        (Event("timeout", 4, "1 s"), Progress(done=4, crashes=1, end=End("timeout", "1 s"))),
        (
            Event("cancelled"),
            Progress(done=4, crashes=1, end=End("cancelled", "cancelled on request")),
        ),
    ],
)
def test_after_a_step(event: Event, becomes: Progress) -> None:
    assert after(WHOLE, Progress(done=4, crashes=1), event) == becomes


def test_a_process_that_is_killed_again_and_again_fails_the_job() -> None:
    at = Progress(done=4)
    for _ in range(2):
        at = after(EACH, at, Event("crashed", 4, "signal 9"))
        assert next_step(EACH, at) == Train(5, 1)
    at = after(EACH, at, Event("crashed", 4, "signal 9"))
    assert next_step(EACH, at) == End("failed", "signal 9, 3 times in a row")


def test_progress_in_between_forgives() -> None:
    at = Progress()
    for episode in range(1, 20):
        for _ in range(2):
            at = after(EACH, at, Event("crashed", at.done, "signal 9"))
        at = after(EACH, at, Event("trained", episode))
    assert at.end is None


def test_an_attempt_begins_where_the_last_one_finished() -> None:
    assert begin(GROUP, 7, 6, 7) == Progress(7, 6, 7)
    assert begin(WHOLE, 99, 0, 0) == Progress(20, 0, 1)


def note(number: int, *, first: int = 1, deaths: int = 0, why: str = "") -> AttemptNote:
    sentence = "it is too hot" if why else None
    return AttemptNote("j", f"n{number}", number, "0" * 12, "", deaths, first, sentence, why)


@pytest.mark.parametrize(
    ("notes", "first", "deaths", "given_up"),
    [
        ([], 1, 0, False),
        ([], 1, 5, False),  # nothing is known of those: this is the first attempt that says so
        ([note(1), note(2, deaths=1)], 1, 2, False),
        ([note(1), note(2, deaths=1), note(3, deaths=2)], 1, 3, True),
        ([note(1), note(2, first=4, deaths=2)], 9, 3, False),
        ([note(1), note(2, first=4, deaths=2), note(3, first=4, deaths=3)], 4, 5, True),
    ],
)
def test_deaths_count_since_the_last_finished_episode(
    notes: list[AttemptNote], first: int, deaths: int, given_up: bool
) -> None:
    assert (story.too_deadly(notes, first, deaths, 3) is not None) == given_up


def test_a_job_that_no_host_wants_fails_with_the_last_word() -> None:
    notes = [note(i, why="preflight") for i in range(1, story.MOST_RETURNS)]
    notes.append(note(40, why="drain"))
    assert story.refused_too_often(notes) is None
    notes.append(note(41, why="environment"))
    assert story.refused_too_often(notes) == (
        "10 times a host declined it, last n41: it is too hot"
    )
