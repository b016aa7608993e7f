"""How a batch moves: submit, forward, claim, commit, give back, revoke. Nothing else moves a token.

A batch is a token that lies in exactly one place and is moved only by `rename`. Every verb here is
a generator: it yields one operation at a time and decides by what came back, so that the very code
that runs on a cluster is stepped through every interleaving by the exhaustive test. No verb waits
and none retries without end: what cannot be settled now is said so, and the verb may be called
again, whatever happened before. Three rules shape them all:

- After an error at a rename, look; do not conclude. The request may have been executed, may not,
  or may still be executed later.
- An absence is believed only when it was seen twice, the folder opened anew each time: a client's
  first look may be older than its own last request.
- No name is created twice, so a request that is executed late finds its source gone.
"""

from __future__ import annotations

import enum
import errno
from collections.abc import Iterable
from dataclasses import dataclass, field

from fsworker.errors import FleetError
from fsworker.protocol import layout
from fsworker.protocol.layout import Owner, Token
from fsworker.protocol.ops import MakeFolder, Put, RemoveFolder, Rename, Scan, Verb

RECLAIM_ROUNDS = 4
MOST_NAMED = 20


class Expelled(FleetError):
    """An owner found its folder gone: its claims were revoked; it needs a new incarnation."""


class Move(enum.Enum):
    """What became of a token that this process tried to move."""

    DONE = "done"
    """It is where it should be."""
    GONE = "gone"
    """It was moved by somebody else (or by us, and somebody moved it on): touch nothing."""
    HELD = "held"
    """It is still where it was: call the verb again."""
    UNSETTLED = "unsettled"
    """Where it is cannot be told now: call the verb again."""


@dataclass(slots=True)
class Reclaim:
    """What a reclaim did: the tokens it moved, and whether the owner's folder is gone."""

    moved: list[Token] = field(default_factory=list)
    finished: bool = False

    @property
    def names(self) -> list[str]:
        """The first of the batches that moved, for logs: people ask what became of one."""
        return [token.batch for token in self.moved[:MOST_NAMED]]


def prepare_submission(token: Token, unique: str, data: bytes) -> Verb[str]:
    """Write a batch as a temporary beside its place in the inbox; gives the temporary's path."""
    temp = layout.temporary(layout.inbox_path(token), unique)
    yield Put(temp, data)
    return temp


def enqueue(token: Token, temp: str) -> Verb[Move]:
    """Publish a prepared batch. Unless it is DONE, call again with the same names.

    Never GONE: only our own rename takes the temporary away, so once it is gone it was submitted.
    """
    target = layout.inbox_path(token)
    try:
        yield Rename(temp, target)
    except OSError:
        looked = yield from _look(temp)
        return Move.DONE if looked is Move.GONE else looked
    return Move.DONE


def enlist(owner: Owner) -> Verb[None]:
    """Make a new incarnation's claims folder. Once in its life: a folder gone stays gone."""
    yield MakeFolder(owner.folder)


def claim(owner: Owner, token: Token) -> Verb[Token | None]:
    """Take a pending batch; the token as claimed, or None when somebody else has it.

    A claim that reports failure may yet have happened: `adopt` finds it.
    """
    mine = token.claimed()
    target = layout.claim_path(owner, mine)
    try:
        yield Rename(layout.inbox_path(token), target)
    except FileNotFoundError:
        return None
    except OSError:
        return mine if (yield from _look(target)) is Move.HELD else None
    return mine


def adopt(owner: Owner) -> Verb[list[Token]]:
    """Every token that lies in the owner's folder. Raises Expelled when there is no folder."""
    try:
        names = yield Scan(owner.folder)
    except FileNotFoundError:
        try:
            names = yield Scan(owner.folder)
        except FileNotFoundError:
            raise Expelled(f"the claims of {owner.name} were revoked") from None
    return _tokens(names)


def prepare_result(owner: Owner, token: Token, data: bytes) -> Verb[None]:
    """Write an attempt's results. They mean nothing until `commit`.

    May be called again after it failed, but never after `commit` was tried: a commit that reported
    failure may have been executed, and a reader may be reading.
    """
    result = layout.outcome(owner, token).result
    try:
        yield Put(result, data)
    except FileNotFoundError:  # the stream's folder: its client makes it, but clients may die
        yield MakeFolder(layout.outbox_dir(token.stream))
        yield Put(result, data)


def commit(owner: Owner, token: Token) -> Verb[Move]:
    """The one rename that makes an attempt's results count.

    DONE: they count. GONE: the claim was revoked (or committed, and already read): log it, touch
    nothing. HELD, UNSETTLED: call again.
    """
    source = layout.claim_path(owner, token)
    done = layout.outcome(owner, token).done
    try:
        yield Rename(source, done)
    except OSError:
        left = yield from _look(source)
        if left is not Move.GONE:
            return left
        # Only now does a look at the target tell: the claim had left before it.
        arrived = yield from _look(done)
        return {Move.GONE: Move.GONE, Move.HELD: Move.DONE}.get(arrived, Move.UNSETTLED)
    return Move.DONE


def forward(token: Token, shard: int) -> Verb[bool]:
    """Move a pending batch to a shard whose worker offers what it needs; whether that was done.

    One rename to a name that nobody had: after an error nothing is concluded, the next listing
    shows where it is.
    """
    try:
        yield Rename(layout.inbox_path(token), layout.inbox_path(token.forwarded(shard)))
    except OSError:
        return False
    return True


def give_back(owner: Owner, token: Token) -> Verb[Move]:
    """Return a claim of one's own to its inbox, its deaths unchanged. GONE is as good as DONE."""
    source = layout.claim_path(owner, token)
    try:
        yield Rename(source, layout.inbox_path(token.returned(died=False)))
    except OSError:
        return (yield from _look(source))
    return Move.DONE


def reclaim(owner: Owner, *, died: bool) -> Verb[Reclaim]:
    """Move another owner's claims back to their inboxes and remove its folder.

    `died` says that the owner is proven dead, which charges each batch with one death. It has one
    move, so it may be wrong about who is alive: a living owner fails at its commit. `finished`
    only once the server removed the empty folder or twice said that there is none; otherwise call
    again.
    """
    outcome = Reclaim()
    for _ in range(RECLAIM_ROUNDS):
        try:
            tokens = yield from adopt(owner)
        except Expelled:
            outcome.finished = True
            return outcome
        for token in tokens:
            back = layout.inbox_path(token.returned(died=died))
            try:
                yield Rename(layout.claim_path(owner, token), back)
            except OSError:
                continue  # committed, moved by another reclaimer, or in doubt: the next list tells
            outcome.moved.append(token)
        try:
            yield RemoveFolder(owner.folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                return outcome
            continue
        outcome.finished = True
        return outcome
    return outcome


def _look(path: str) -> Verb[Move]:
    """After a rename failed: is `path` there (HELD), absent from two looks (GONE), or in doubt?

    The folder is opened for each look, and a folder that is not there lacks the file too.
    """
    folder, name = path.rsplit("/", 1)
    for _ in range(2):
        try:
            if name in (yield Scan(folder)):
                return Move.HELD
        except FileNotFoundError:
            continue
        except OSError:
            return Move.UNSETTLED
    return Move.GONE


def _tokens(names: Iterable[str]) -> list[Token]:
    return [t for t in map(layout.parse_claim_name, names) if t]
