"""The same state seen from outside: what lies on a root, and whether the protocol allows it.

A root is audited while it lives, so one look proves little: a token may move between two listings,
a file may be half written by somebody who has every right to. Two rules keep an audit from accusing
the innocent. Folders are listed in the order in which tokens move forward (inbox, claims, outbox),
and what looks wrong is looked at again, its folders opened anew. Since no name is created twice, a
name that is in two looks was there all the time between them.

What the protocol forbids is damage. What it leaves behind by design (temporaries, results of
attempts that are over, folders of owners that are gone) is garbage. Names it does not know are
ignored, by this as by every reader.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Literal

from fsworker.protocol import layout, segment
from fsworker.protocol.layout import Outcome, Owner, Token
from fsworker.protocol.ops import Read, Scan, Verb
from fsworker.protocol.segment import DamagedFile, WrongVersion

State = Literal["pending", "claimed", "committed"]
KINDS: dict[State, bytes] = {
    "pending": segment.BATCH,
    "claimed": segment.BATCH,
    "committed": segment.RESULT,
}
NOT_STREAMS = ("jobs", "federation")
"""Folders of the outbox that hold other things than results of batches."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a batch's token was seen. `owner`: who holds it, or whose commit it is."""

    batch: str
    path: str
    state: State
    attempt: int
    shard: int | None = None
    owner: str = ""

    @property
    def data(self) -> str:
        """The data file that counts while the token is here."""
        return self.path if self.state != "committed" else self.path[: -len("done")] + "result"


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """Something that is not as it should be, and what it is in words."""

    kind: str
    path: str
    words: str
    batch: str = ""


@dataclass(slots=True)
class Survey:
    """One look at all names of a root, one listing a folder."""

    places: dict[str, list[Place]] = field(default_factory=lambda: defaultdict(list))
    results: list[Outcome] = field(default_factory=list)
    parts: list[tuple[Outcome, int]] = field(default_factory=list)
    owners: dict[Owner, int] = field(default_factory=dict)
    """Who has a folder among the claims, and how many tokens are in it."""
    temporaries: list[str] = field(default_factory=list)
    counters: list[str] = field(default_factory=list)
    set_aside: dict[str, list[str]] = field(default_factory=dict)
    """The names in `dead/` and `quarantine/`."""
    ignored: list[str] = field(default_factory=list)

    def all_places(self) -> Iterable[Place]:
        """Every token that was seen."""
        return (place for places in self.places.values() for place in places)

    def at(self, state: State) -> list[Place]:
        """The tokens that were seen in one state."""
        return [p for p in self.all_places() if p.state == state]


def survey() -> Verb[Survey]:
    """Look at every folder once."""
    seen = Survey()
    for name in sorted((yield from _names(layout.INBOX))):
        if name.isascii() and name.isdigit() and str(int(name)) == name:
            yield from _inbox(seen, int(name))
        else:
            _pass_over(seen, layout.INBOX, name)
    for name in sorted((yield from _names(layout.CLAIMS))):
        owner = layout.parse_owner(name)
        if owner is None:
            _pass_over(seen, layout.CLAIMS, name)
        else:
            yield from _claims(seen, owner)
    for name in sorted((yield from _names(layout.OUTBOX))):
        if layout.is_foreign(name):
            _pass_over(seen, layout.OUTBOX, name)
        elif name == layout.jobs.JOBS.rpartition("/")[2]:
            for job in sorted((yield from _names(layout.jobs.JOBS))):
                if layout.jobs.parse_job_name(job) is not None:
                    yield from _stream(seen, layout.encode(layout.job_stream("")) + job)
        else:
            yield from _stream(seen, name)
    for folder in (layout.DEAD, layout.QUARANTINE):
        names = yield from _names(folder)
        for name in filter(layout.is_foreign, names):
            _pass_over(seen, folder, name)
        seen.set_aside[folder] = sorted(n for n in names if not layout.is_foreign(n))
    return seen


def again(folders: Iterable[str]) -> Verb[set[str]]:
    """A second look: the paths in these folders, each opened anew."""
    paths: set[str] = set()
    for folder in dict.fromkeys(folders):
        names = yield from _names(folder)
        paths.update(f"{folder}/{name}" for name in names)
    return paths


def in_two_places(seen: Survey) -> Verb[list[Finding]]:
    """Batches with more than one token, each looked at twice."""
    accused = [places for places in seen.places.values() if len(places) > 1]
    there = yield from again(_folder(p.path) for places in accused for p in places)
    found = []
    for places in accused:
        still = [p for p in places if p.path in there]
        if len(still) > 1:
            others = ", ".join(f"{p.path} ({p.state})" for p in still[1:])
            first = still[0]
            words = f"the batch is {first.state} here and also at {others}"
            found.append(Finding("two places", first.path, words, first.batch))
    return found


def unserved(seen: Survey, shard_count: int) -> list[Finding]:
    """Pending batches in shards that the run does not have: nobody will ever claim them."""
    lost: Counter[int] = Counter()
    for place in seen.all_places():
        if place.state == "pending" and place.shard is not None and place.shard >= shard_count:
            lost[place.shard] += 1
    return [
        Finding(
            "unserved shard",
            layout.inbox_dir(shard),
            f"{count} batches wait in shard {shard}; the run has shards 0 to {shard_count - 1}",
        )
        for shard, count in sorted(lost.items())
    ]


def read_place(place: Place) -> Verb[Finding | int | None]:
    """Whether the data file of a token is exactly itself: the number of its tasks if so.

    None when the token has moved on. Damage is believed after a second, fresh open.
    """
    found = yield from read_data(place.data, KINDS[place.state])
    if isinstance(found, Finding):
        return Finding(found.kind, found.path, found.words, place.batch)
    return found


def read_data(path: str, kind: bytes) -> Verb[Finding | int | None]:
    """The number of tasks in a data file; what is wrong with it; None when it is not there."""
    finding = None
    for _ in range(2):
        try:
            return segment.decode((yield Read(path)), kind, path).tasks
        except FileNotFoundError:
            return None
        except DamagedFile as error:
            finding = Finding("damaged", path, str(error))
        except WrongVersion as error:
            finding = Finding("other version", path, str(error))
        except OSError as error:
            finding = Finding("unreadable", path, f"it cannot be read: {error.strerror or error}")
    return finding


def without_result(suspects: Collection[Place]) -> Verb[list[Finding]]:
    """Of committed tokens whose result two opens did not find: those that are still there.

    A reader removes the `.done` first, so a `.done` that outlives its `.result` lost it.
    """
    there = yield from again(_folder(p.path) for p in suspects)
    return [
        Finding("no result", p.path, "it is committed, and its result is missing", p.batch)
        for p in suspects
        if p.path in there and p.data not in there
    ]


def unparsable(name: str, stream: str) -> bool:
    """Whether a name in a stream's folder is none of that stream's."""
    parsed = layout.parse_outbox_name(name)
    return parsed is None or layout.stream_of(parsed[0].batch) != stream


def count(seen: Survey) -> dict[tuple[str, str], Counter[State]]:
    """Batches by (stream, client incarnation) and state; of a batch's places the last counts."""
    found: dict[tuple[str, str], Counter[State]] = defaultdict(Counter)
    for batch, places in seen.places.items():
        stream, life, _ = batch.rsplit("-", 2)
        found[stream, life][places[-1].state] += 1
    return found


def lives(seen: Survey) -> dict[tuple[str, str], set[int]]:
    """The numbers of the batches that were seen, by (stream, client incarnation)."""
    found: dict[tuple[str, str], set[int]] = defaultdict(set)
    for batch in seen.places:
        stream, life, number = batch.rsplit("-", 2)
        found[stream, life].add(int(number))
    return found


def _inbox(seen: Survey, shard: int) -> Verb[None]:
    folder = layout.inbox_dir(shard)
    for name in (yield from _names(folder)):
        token = layout.parse_inbox_name(shard, name)
        if token is None:
            _pass_over(seen, folder, name)
        else:
            place = Place(token.batch, f"{folder}/{name}", "pending", token.attempt, shard)
            seen.places[token.batch].append(place)


def _claims(seen: Survey, owner: Owner) -> Verb[None]:
    names = yield from _names(owner.folder)
    tokens = 0
    for name in names:
        token: Token | None = layout.parse_claim_name(name)
        if token is None:
            _pass_over(seen, owner.folder, name)
            continue
        tokens += 1
        path = f"{owner.folder}/{name}"
        place = Place(token.batch, path, "claimed", token.attempt, token.shard, owner.incarnation)
        seen.places[token.batch].append(place)
    seen.owners[owner] = tokens


def _stream(seen: Survey, stream: str) -> Verb[None]:
    folder = layout.outbox_dir(stream)
    for name in (yield from _names(folder)):
        if unparsable(name, stream):
            if layout.parse_counters_name(name) is not None:
                seen.counters.append(f"{folder}/{name}")
            elif stream not in NOT_STREAMS and not layout.is_job(stream):
                _pass_over(seen, folder, name)
            continue
        match layout.parse_outbox_name(name):
            case (out, "done", _):
                place = Place(
                    out.batch, f"{folder}/{name}", "committed", out.attempt, owner=out.incarnation
                )
                seen.places[out.batch].append(place)
            case (out, "result", _):
                seen.results.append(out)
            case (out, _, number):
                seen.parts.append((out, number))


def _pass_over(seen: Survey, folder: str, name: str) -> None:
    temporary = name.startswith((".tmp~", ".probe~"))
    (seen.temporaries if temporary else seen.ignored).append(f"{folder}/{name}")


def _names(folder: str) -> Verb[list[str]]:
    """The names in a folder; none when it is gone, or is no folder."""
    try:
        names: list[str] = yield Scan(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return names


def _folder(path: str) -> str:
    return path.rpartition("/")[0]
