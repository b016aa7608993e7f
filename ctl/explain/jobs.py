"""A training job explained: how far it is, its attempts, and what happens to its token next."""

from __future__ import annotations

from ctl.explain import batches
from ctl.explain.story import Event, Story
from ctl.jobs import board
from ctl.jobs.board import PENDING, RUNNING, Board, Row
from ctl.roots import Run
from ctl.statusview import Look
from fsworker.protocol import jobstate


def explain(run: Run, look: Look, name: str) -> list[Story]:
    """The story of the job of that name, or of each job of that group; none for other names."""
    jobs = board.choose(run, name)
    seen = Board.look(run) if jobs else Board()
    return [_story(run, look, board.row(run, seen, job)) for job in jobs]


def _story(run: Run, look: Look, now: Row) -> Story:
    story = Story("job", now.job_id, now.status)
    where = f" on {now.host}" if now.host else ""
    story.now = [f"{now.status}{where}: {now.episode} of {now.episodes or '?'} episodes finished"]
    error = now.fields()["error"]
    story.now += [f"error: {error}"] if error else []
    for _, note in jobstate.attempts(run.store, now.job_id):
        if note is not None:
            back = f", given back: {note.returned}" if note.returned else ""
            words = f"attempt {note.attempt} on {note.host} from episode {note.first}{back}"
            story.history.append(Event(note.started_at, words))
    if now.status in (PENDING, RUNNING) and now.token is not None:
        of_batch = batches.explain(run, look, now.token.batch, None)
        if of_batch is not None:
            story.now += of_batch.now
            events = [*story.history, *of_batch.history]
            story.history = sorted(events, key=lambda e: (e.at is None, e.at or ""))
            story.next = of_batch.next
            story.facts = of_batch.facts
    story.next.append(f"ctl job show {now.job_id} tells more, ctl job logs what its processes said")
    return story
