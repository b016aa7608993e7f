"""What is of no use to anybody any more, and which of it that is proven whoever lives.

The protocol leaves things behind by design: an attempt that was revoked leaves its result, a writer
that was killed its temporary. None of it harms, and all of it must be told from what a slow but
living process is about to use. Attempts only grow and a commit is for ever, so a later attempt, a
claim that went back, or another commit proves that an attempt is over. Where no token of a batch is
to be seen nothing is proven, and only a stopped run may be cleared of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fsworker.protocol.audit import Place, Survey, again
from fsworker.protocol.layout import Outcome
from fsworker.protocol.ops import Verb

NOWHERE = "no token of its batch is left"


@dataclass(frozen=True, slots=True, order=True)
class Garbage:
    """A file that no reader looks at. `proven`: nobody can make use of it, whoever lives."""

    kind: str
    path: str
    words: str
    proven: bool = False


def worthless(seen: Survey) -> list[Garbage]:
    """What one look takes for garbage. What is not proven needs a second look."""
    found = []
    for outcome in seen.results:
        why = _over(outcome, seen.places.get(outcome.batch, []))
        if why is not None:
            found.append(Garbage("result", outcome.result, why, why != NOWHERE))
    for outcome, number in seen.parts:
        why = _read_up(seen.places.get(outcome.batch, []))
        if why is not None:
            found.append(Garbage("part", outcome.part(number), why, why != NOWHERE))
    return found + [Garbage("temporary", p, "begun, and not ended") for p in seen.temporaries]


def still(found: Iterable[Garbage], later: Survey) -> Verb[list[Garbage]]:
    """Of what a look took for garbage, what a later one does too, or what is proven and there."""
    found = list(found)
    there = yield from again(g.path.rpartition("/")[0] for g in found if g.proven)
    sure = {g.path: g for g in worthless(later)}
    kept = []
    for garbage in found:
        if garbage.proven:
            if garbage.path in there:
                kept.append(garbage)
        elif garbage.path in sure:
            kept.append(sure[garbage.path])
    return kept


def _over(outcome: Outcome, places: list[Place]) -> str | None:
    """Why the result of this attempt will never count; None when it does or still may."""
    for place in places:
        mine = place.attempt == outcome.attempt and place.owner == outcome.incarnation
        if place.state == "committed":
            return None if mine else f"attempt {place.attempt} is the one that is committed"
    for place in places:
        if place.state == "pending" and place.attempt >= outcome.attempt:
            return f"attempt {outcome.attempt} was revoked, the batch is pending again"
        if place.state == "claimed" and place.attempt > outcome.attempt:
            return f"attempt {outcome.attempt} was revoked, attempt {place.attempt} is at work"
    return None if places else NOWHERE


def _read_up(places: list[Place]) -> str | None:
    """Why nobody needs a batch's parts; while it may be executed they are evidence."""
    if any(place.state == "committed" for place in places):
        return "its batch is committed"
    return None if places else NOWHERE


def prepared_by(path: str) -> str:
    """Whose temporary this is: the part of its name that keeps writers apart."""
    name = path.rpartition("/")[2]
    return name.split("~")[1] if name.count("~") >= 2 else ""
