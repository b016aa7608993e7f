"""What the protocol must not be: each mutation breaks one rule, and the explorer must find it.

A mutation is a verb that replaces a real one, or a program that breaks a rule for the users of
the verbs. Each names the sentence that the violation is told with, so that it is caught for what it
does and not for something else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fsworker.protocol import layout, ledger, stream
from fsworker.protocol.layout import Outcome, Owner, Token
from fsworker.protocol.ledger import Move, Reclaim
from fsworker.protocol.ops import Put, Read, Remove, RemoveFolder, Rename, Scan, Verb
from tests.model.calls import Call
from tests.model.programs import Programs, Worker
from tests.model.scenario import Bounds, Scenario


def commit_first(owner: Owner, token: Token, data: bytes) -> Verb[None]:
    """Commits, and only then writes the results."""
    out = layout.outcome(owner, token)
    yield Rename(layout.claim_path(owner, token), out.done)
    yield Put(out.result, data)


def discard_on_error(owner: Owner, token: Token) -> Verb[Move]:
    """Takes a commit that reports failure for one that did not happen, and tidies up."""
    out = layout.outcome(owner, token)
    try:
        yield Rename(layout.claim_path(owner, token), out.done)
    except OSError:
        yield Remove(out.result)
        return (yield from ledger.give_back(owner, token))
    return Move.DONE


def one_look(path: str) -> Verb[Move]:
    """Believes the first absence that it sees."""
    folder, name = path.rsplit("/", 1)
    try:
        return Move.HELD if name in (yield Scan(folder)) else Move.GONE
    except FileNotFoundError:
        return Move.GONE
    except OSError:
        return Move.UNSETTLED


def claim_again(owner: Owner, token: Token) -> Verb[Token | None]:
    """Claims without counting, so that a second claim has the name of the first."""
    try:
        yield Rename(layout.inbox_path(token), layout.claim_path(owner, token))
    except OSError:
        return None
    return token


def copy_back(owner: Owner, died: bool) -> Verb[Reclaim]:
    """Returns claims by writing them anew and removing the old."""
    for token in (yield from ledger.adopt(owner)):
        data = yield Read(layout.claim_path(owner, token))
        yield Put(layout.inbox_path(token.returned(died=died)), data)
        yield Remove(layout.claim_path(owner, token))
    yield RemoveFolder(owner.folder)
    return Reclaim(finished=True)


def remove_results(owner: Owner, died: bool) -> Verb[Reclaim]:
    """Removes the results of the claims that it returns."""
    for token in (yield from ledger.adopt(owner)):
        yield Remove(layout.outcome(owner, token).result)
        yield Rename(layout.claim_path(owner, token), layout.inbox_path(token.returned(died=died)))
    yield RemoveFolder(owner.folder)
    return Reclaim(finished=True)


def remove_recursively(owner: Owner, died: bool) -> Verb[Reclaim]:
    """Returns what it listed, then removes the folder with whatever is in it."""
    for token in (yield from ledger.adopt(owner)):
        yield Rename(layout.claim_path(owner, token), layout.inbox_path(token.returned(died=died)))
    for name in (yield Scan(owner.folder)):
        yield Remove(f"{owner.folder}/{name}")
    yield RemoveFolder(owner.folder)
    return Reclaim(finished=True)


def trust_failed_submission(token: Token, temp: str) -> Verb[Move]:
    """Takes a submission that reports failure for one that happened."""
    try:
        yield Rename(temp, layout.inbox_path(token))
    except OSError:
        pass
    return Move.DONE


def enqueue_on_one_look(token: Token, temp: str) -> Verb[Move]:
    """Believes the first absence of its temporary, which a look older than its making shows too."""
    try:
        yield Rename(temp, layout.inbox_path(token))
    except OSError:
        looked = yield from one_look(temp)
        return Move.DONE if looked is Move.GONE else looked
    return Move.DONE


class ReadsUncommitted(Programs):
    """Reads results for which there is no `.done`."""

    def readable(self, listing: stream.Listing) -> list[Outcome]:
        return listing.results


class PreparesAgain(Programs):
    """Writes the results anew after a commit in doubt."""

    def worker_after(self, me: Worker, call: Call, result: Any) -> Worker:
        if call.verb == "commit" and result in (Move.HELD, Move.UNSETTLED):
            token = call.args[1]
            return me._replace(held=me.held - {(token, True)} | {(token, False)})
        return super().worker_after(me, call, result)


class AdoptsWhatItLetGo(Programs):
    """Believes every listing of its own folder, also one that is older than its own commit."""

    def worker_after(self, me: Worker, call: Call, result: Any) -> Worker:
        return super().worker_after(me, call, result)._replace(let_go=frozenset())


@dataclass(frozen=True)
class Mutation:
    """A broken rule, the sentence that tells the damage, and bounds in which it shows."""

    name: str
    told: str
    bounds: Bounds
    programs: Callable[[], Programs]
    look: Callable[[str], Verb[Move]] | None = None
    batches: int = 1
    written: int = 1

    def scenario(self) -> Scenario:
        """What to explore. Nothing is left out by the argument that names are used once."""
        return Scenario(
            self.name,
            self.bounds,
            batches=self.batches,
            written=self.written,
            programs=self.programs(),
            died=(False,),
            prune=False,
        )


def _verb(name: str, function: Callable[..., Verb[Any]]) -> Callable[[], Programs]:
    return lambda: Programs({name: function})


MUTATIONS = (
    Mutation(
        "commit before the result is closed",
        "has no result",
        Bounds(),
        _verb("prepare_result", commit_first),
    ),
    Mutation(
        "discard the result when a commit reports failure",
        "has no result",
        Bounds(faults=1),
        _verb("commit", discard_on_error),
    ),
    Mutation(
        "believe one absence, which was old",
        "stuck",
        Bounds(faults=1),
        Programs,
        look=one_look,
    ),
    Mutation(
        "believe one absence at a submission",
        "stuck",
        Bounds(faults=1),
        _verb("enqueue", enqueue_on_one_look),
        written=0,
    ),
    Mutation(
        "use a name again",
        "has a result that is not complete",
        Bounds(faults=1, returns=1),
        _verb("claim", claim_again),
    ),
    Mutation(
        "copy back instead of move",
        "yet its token",
        Bounds(reclaims=1),
        _verb("reclaim", copy_back),
    ),
    Mutation(
        "let the reclaimer remove results",
        "has no result",
        Bounds(reclaims=1),
        _verb("reclaim", remove_results),
    ),
    Mutation(
        "remove an owner's folder recursively",
        "is lost",
        Bounds(reclaims=1),
        _verb("reclaim", remove_recursively),
    ),
    Mutation(
        "read without a done",
        "was delivered",
        Bounds(),
        ReadsUncommitted,
    ),
    Mutation(
        "prepare the result again after a commit was tried",
        "has a result that is not complete",
        Bounds(faults=1),
        PreparesAgain,
    ),
    Mutation(
        "adopt again what was let go",
        "has a result that is not complete",
        Bounds(),
        AdoptsWhatItLetGo,
    ),
    Mutation(
        "take a failed submission for a submission",
        "stuck",
        Bounds(faults=1),
        _verb("enqueue", trust_failed_submission),
        written=0,
    ),
)
