"""The processes of the model: which verb each calls when, and what it knows between two verbs.

The rules of the programs are those that `docs/protocol.md` demands of whoever uses the verbs:
results are closed before the commit; after a commit was tried, only commit or give back; a token
that was let go is not adopted again until a listing has shown it gone; an owner that was expelled
takes a new incarnation; a reader keeps what it read before it forgets it.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from fsworker.protocol import layout, segment, stream
from fsworker.protocol.layout import Outcome, Owner, Token
from fsworker.protocol.ledger import Expelled, Move
from fsworker.protocol.segment import Segment
from tests.model.calls import Call, Verbatim, Verbs, condensed
from tests.model.disk import CLIENT, Disk

STREAM = "s"
SHARD, OTHER_SHARD = 0, 1
"""All batches are sent to the first; the other is there where they may be forwarded."""
OUTBOX = layout.outbox_dir(STREAM)


class Worker(NamedTuple):
    """What a worker knows: its life, the tokens it holds (closed: whose results are), let go."""

    host: str
    life: int
    enlisted: bool = False
    held: frozenset[tuple[Token, bool]] = frozenset()
    let_go: frozenset[Token] = frozenset()
    call: Call | None = None

    @property
    def owner(self) -> Owner:
        """Its owner in this life."""
        return owner_of(self.host, self.life)

    def without(self, token: Token) -> Worker:
        """After it let a token go."""
        held = frozenset(h for h in self.held if h[0] != token)
        return self._replace(held=held, let_go=self.let_go | {token})


class Client(NamedTuple):
    """What a client knows: how far each submission is, what it has read and kept."""

    submissions: tuple[str, ...]
    """new, written, sent; lost for one that a crash left half done."""
    kept: frozenset[Outcome] = frozenset()
    reading: tuple[Outcome, tuple[str, ...]] | None = None
    call: Call | None = None
    fault: str = ""


class Reclaimer(NamedTuple):
    """A reclaimer, which may also forward what waits, remembers nothing."""

    call: Call | None = None


Local = Worker | Client | Reclaimer


class Start(NamedTuple):
    """A verb that an idle process may start, and from what it would be paid."""

    local: Local
    cost: str = ""


def owner_of(host: str, life: int) -> Owner:
    """A host's owner in its n-th life; its incarnation begins with the host's letter."""
    return Owner(host, f"{host}{life:011d}")


def first_token(number: int) -> Token:
    """The token of the client's n-th batch."""
    return Token(layout.batch_id(STREAM, "c00000000000", number), SHARD)


@cache
def payload(batch: str) -> bytes:
    """The bytes of a batch."""
    return segment.encode(Segment(segment.BATCH, {"batch": batch}, [b"\x01"]))


@cache
def results(out: Outcome) -> bytes:
    """The bytes that one attempt's owner writes as its results."""
    meta = {"batch": out.batch, "attempt": out.attempt, "incarnation": out.incarnation}
    return segment.encode(Segment(segment.RESULT, meta, [b"\x01"]))


class Programs:
    """The programs over a table of verbs; mutations replace verbs or override a rule."""

    def __init__(self, verbs: Verbs | None = None, capacity: int = 2) -> None:
        self._verbatim = Verbatim(verbs or {})
        self.operation = self._verbatim.operation
        self.capacity = capacity
        self.died: tuple[bool, ...] = (True,)
        self._advanced: dict[tuple[Local, tuple[str, Any]], Local] = {}

    def starts(self, local: Local, disk: Disk) -> list[Start]:
        """The verbs that an idle process may start now."""
        if isinstance(local, Worker):
            return self._worker_starts(local, disk)
        if isinstance(local, Client):
            return self._client_starts(local)
        reclaims = [
            Start(Reclaimer(Call("reclaim", (owner, died))), "reclaims")
            for owner in disk.owners()
            for died in self.died
        ]
        if layout.inbox_dir(OTHER_SHARD) not in disk.folders:
            return reclaims
        forwards = (Call("forward", (t, OTHER_SHARD - t.shard)) for t in pending(disk))
        return [*reclaims, *(Start(Reclaimer(call), "forwards") for call in forwards)]

    def _worker_starts(self, me: Worker, disk: Disk) -> list[Start]:
        if not me.enlisted:
            return [Start(me._replace(call=Call("enlist", (me.owner,))))]
        found = [Start(me._replace(call=Call("adopt", (me.owner,))))]
        if len(me.held) < self.capacity:
            for token in pending(disk):
                found.append(Start(me._replace(call=Call("claim", (me.owner, token)))))
        for token, closed in me.held:
            found.append(Start(me._replace(call=self.next_for(me, token, closed))))
            give = Call("give_back", (me.owner, token))
            found.append(Start(me._replace(call=give), "returns"))
        return found

    def next_for(self, me: Worker, token: Token, closed: bool) -> Call:
        """What a worker does with a token that it holds."""
        if closed:
            return Call("commit", (me.owner, token))
        data = results(layout.outcome(me.owner, token))
        return Call("prepare_result", (me.owner, token, data))

    def _client_starts(self, me: Client) -> list[Start]:
        found: list[Start] = []
        for n, stage in enumerate(me.submissions):
            token = first_token(n)
            if stage == "new":
                call = Call("prepare_submission", (token, CLIENT, payload(token.batch)))
                return [*found, Start(me._replace(call=call))]
            if stage == "written":
                temp = layout.temporary(layout.inbox_path(token), CLIENT)
                return [*found, Start(me._replace(call=Call("enqueue", (token, temp))))]
            found = [Start(me._replace(call=Call("look", (STREAM,))))]
        return found

    def advance(self, local: Local, answer: tuple[str, Any]) -> Local:
        """A process after its operation was answered: one verb further, or on to what follows."""
        key = (local, answer)
        after = self._advanced.get(key)
        if after is None:
            after = self._advanced[key] = self._advance(local, answer)
        return after

    def _advance(self, local: Local, answer: tuple[str, Any]) -> Local:
        call = local.call
        assert call
        if answer[0] == "begun":
            return local._replace(call=call._replace(begun=True))
        call = condensed(call._replace(begun=False), self.operation(call), answer)
        op, result = self._verbatim.replay(call)
        if op is not None:
            return local._replace(call=call)
        idle = local._replace(call=None)
        if isinstance(idle, Worker):
            return self.worker_after(idle, call, result)
        return self.client_after(idle, call, result) if isinstance(idle, Client) else idle

    def worker_after(self, me: Worker, call: Call, result: Any) -> Worker:
        """A worker after a verb ended."""
        if isinstance(result, Expelled) or (call.verb == "enlist" and isinstance(result, OSError)):
            return reborn(me)
        if isinstance(result, OSError):
            return me
        match call.verb:
            case "enlist":
                return me._replace(enlisted=True)
            case "claim":
                return me._replace(held=me.held | {(result, False)}) if result else me
            case "adopt":
                return self.adopted(me, set(result))
            case "prepare_result":
                token = call.args[1]
                return me._replace(held=me.held - {(token, False)} | {(token, True)})
        if result in (Move.DONE, Move.GONE):  # commit, give_back
            return me.without(call.args[1])
        return me

    def adopted(self, me: Worker, listed: set[Token]) -> Worker:
        """After a look at its own folder: what it neither holds nor let go is new to it."""
        known = {t for t, _ in me.held} | me.let_go
        new = frozenset((t, False) for t in listed - known)
        return me._replace(held=me.held | new, let_go=me.let_go & listed)

    def client_after(self, me: Client, call: Call, result: Any) -> Client:
        """A client after a verb ended."""
        if isinstance(result, FileNotFoundError) and call.verb == "collect":
            return me._replace(fault="a committed outcome has no result", reading=None)
        if isinstance(result, OSError):
            return me._replace(reading=None)
        match call.verb:
            case "prepare_submission":
                return self._submitted(me, call.args[0], "written")
            case "enqueue":
                return self._submitted(me, call.args[0], "sent") if result is Move.DONE else me
            case "look":
                return self._read_next(me, result)
            case "collect":
                return _keep(me, result)
        return me._replace(reading=None)  # forget

    @staticmethod
    def _submitted(me: Client, token: Token, stage: str) -> Client:
        stages = list(me.submissions)
        stages[layout.seq_of(token.batch)] = stage
        return me._replace(submissions=tuple(stages))

    def readable(self, listing: stream.Listing) -> list[Outcome]:
        """The outcomes in a listing that a reader believes."""
        return listing.committed

    def _read_next(self, me: Client, listing: stream.Listing) -> Client:
        for out in self.readable(listing):
            rest = tuple(stream.leftovers(listing, out))
            if out in me.kept:
                return me._replace(call=Call("forget", (out, rest)))
            return me._replace(reading=(out, rest), call=Call("collect", (out,)))
        return me


def _keep(me: Client, found: stream.Collected) -> Client:
    out = found.outcome
    assert me.reading
    if found.results is None:
        return me._replace(fault=f"what was delivered is damaged: {found.damage}")
    meta = found.results.meta
    if (meta["batch"], meta["attempt"], meta["incarnation"]) != (
        out.batch,
        out.attempt,
        out.incarnation,
    ):
        return me._replace(fault="delivered what another attempt wrote")
    if any(k.batch == out.batch for k in me.kept):
        return me._replace(fault="delivered a second time")
    return me._replace(kept=me.kept | {out}, call=Call("forget", me.reading))


def pending(disk: Disk) -> list[Token]:
    """The batches that wait in the inboxes."""
    found = []
    for shard in (SHARD, OTHER_SHARD):
        names = disk.names(layout.inbox_dir(shard))
        found += [t for t in (layout.parse_inbox_name(shard, n) for n in names) if t]
    return found


def reborn(me: Worker) -> Worker:
    """The next life of a worker, which knows nothing."""
    return Worker(me.host, me.life + 1)


def crashed(local: Local) -> Local | None:
    """A process that crashed and was started anew; None when it has nothing to lose.

    A reader's kept results are durable. A submission that was not known to be sent is lost to its
    client: its token may be there or not.
    """
    if isinstance(local, Worker):
        return reborn(local) if local.enlisted else None
    if isinstance(local, Client):
        stages = tuple(s if s == "sent" else "lost" for s in local.submissions)
        return Client(stages, local.kept) if local.call or stages != local.submissions else None
    return Reclaimer() if local.call else None
