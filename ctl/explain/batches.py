"""A batch or a task explained: where its token is, who held it before, and what comes next."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from ctl import accounts, cancelling, needing, shelf
from ctl.accounts import Account
from ctl.explain import prospects, sources
from ctl.explain.story import Event, Story
from ctl.health import State
from ctl.roots import Run
from ctl.statusview import Look
from fsworker.protocol import audit, layout
from fsworker.protocol.audit import Place, Survey
from fsworker.protocol.layout import Token

MOST = 12
"""Events, and lines of logs, that are shown."""
_BATCH = re.compile(r"(.+-[0-9a-f]{12}-\d+)(?::(\d+))?")


def named(run: Run, name: str) -> list[tuple[str, int | None]]:
    """The batches, each with the index of the task that is meant, that `name` may stand for.

    A batch's name and BATCH:INDEX say it themselves; a task's id is searched in what waits and
    runs.
    """
    match = _BATCH.fullmatch(name)
    if match:
        return [(match[1], int(match[2]) if match[2] else None)]
    found = cancelling.resolve(run.store, cancelling.look(run.store), [name])[name]
    return [(asked.target, index) for asked in found for index in asked.request.tasks]


def explain(run: Run, look: Look, batch: str, index: int | None) -> Story | None:
    """The story of a batch, or of one task of it; None when the run knows nothing of it."""
    seen = run.store.run(audit.survey())
    places = seen.places.get(batch, [])
    kind, name = ("batch", batch) if index is None else ("task", f"{batch}:{index}")
    story = Story(kind, name, places[0].state if places else "gone")
    story.history = [
        *sources.events(run, sources.about_batch(batch), MOST, hosts=True),
        *sources.logged(run, batch, MOST),
        *_attempts(seen, batch),
        *_set_aside(run, batch, index),
    ]
    if not places:
        return _gone(run, seen, batch, story)
    place = places[0]
    story.now.append(f"{place.state}: {place.path}")
    if len(places) > 1:
        story.now.append(f"it is also at {places[1].path}: see ctl fsck")
    story.facts = {"path": place.path, "attempt": place.attempt, "shard": place.shard}
    token = _token(place)
    if token is not None:
        story.now.append(f"claimed {token.attempt} times; {token.deaths} workers died holding it")
        story.facts["deaths"] = token.deaths
    story.next = _next(run, look, place, token)
    return story


def _token(place: Place) -> Token | None:
    name = place.path.rpartition("/")[2]
    if place.state == "claimed":
        return layout.parse_claim_name(name)
    if place.state == "pending" and place.shard is not None:
        return layout.parse_inbox_name(place.shard, name)
    return None


def _next(run: Run, look: Look, place: Place, token: Token | None) -> list[str]:
    if place.state == "committed":
        return prospects.of_committed(layout.decode(layout.stream_of(place.batch)))
    if place.state == "claimed":
        owner = layout.parse_owner(place.path.split("/")[1])
        if owner is None:
            return []
        host = next((h for h in look.hosts if h.host == owner.host), None)
        state = host.state if host else str(State.STOPPED)
        current = bool(host and host.beat and host.beat.incarnation == owner.incarnation)
        watching = sources.watching(run)
        return prospects.of_claimed(owner.host, state, current=current, watching=watching)
    alive = [h for h in look.hosts if h.state == State.READY]
    needed: list[str] = []
    if token is not None and token.needs:
        needs, found = needing.of_batch(run, place.path), needing.providers(run)
        needed = prospects.of_needs(needs, found, token.shard, job=token.is_job)
        able = {p.host for p in found if p.live and p.serves(needs, job=token.is_job)}
        alive = [h for h in alive if h.host in able]
        if not alive:
            return needed
    return needed + prospects.of_pending(
        [h.host for h in alive if h.shard == place.shard],
        [h.host for h in alive if h.shard != place.shard],
        deaths=token.deaths if token else 0,
        most_deaths=run.manifest.max_deaths,
        ahead=max(0, look.backlog.pending.get(place.shard or 0, 0) - 1),
    )


def _attempts(seen: Survey, batch: str) -> list[Event]:
    """What earlier attempts left in the outbox: they were made, and by whom; not when."""
    left = {(o.attempt, o.incarnation): "a result" for o in seen.results if o.batch == batch}
    for outcome, _ in seen.parts:
        if outcome.batch == batch:
            left.setdefault((outcome.attempt, outcome.incarnation), "early results or intents")
    return [
        Event(None, f"attempt {attempt} by the life {life} left {what}")
        for (attempt, life), what in sorted(left.items())
    ]


def _set_aside(run: Run, batch: str, index: int | None) -> Iterator[Event]:
    """Copies in `dead/` and `quarantine/`, with their reasons."""
    for folder in (layout.DEAD, layout.QUARANTINE):
        with contextlib.suppress(OSError):  # without them the story is shorter, not wrong
            for item in shelf.items(run, folder):
                if item.batch == batch:
                    told = item.tasks.get(index, "") if index is not None else ""
                    reason = told or item.text("why") if item.reason else "no reason is noted"
                    yield Event(None, f"a copy lies in {item.path}: {reason}")


def _gone(run: Run, seen: Survey, batch: str, story: Story) -> Story | None:
    """What can be said of a batch that is nowhere: it was read, or it was never sent."""
    account = _account(run, seen, batch)
    number = layout.seq_of(batch)
    if account is not None and number < account.submitted:
        story.now = [
            f"it is in no inbox, claim or outbox: {account.source} submitted {account.submitted} "
            f"batches of this stream and {account.read} are read"
        ]
        story.next = ["nothing: it was executed and read; ctl fsck tells if any were lost"]
        return story
    if story.history:
        story.now = ["it is in no inbox, claim or outbox"]
        return story
    return None


def _account(run: Run, seen: Survey, batch: str) -> Account | None:
    known = [
        *accounts.of_clients(run.store, seen.counters),
        *accounts.of_submissions(run.store, accounts.submitted(run.store)),
    ]
    life = batch.rsplit("-", 2)[1]
    return next((a for a in known if a.key == (layout.stream_of(batch), life)), None)
