"""What of a state can still make a difference; the rest is dropped, so that like states are one.

Each rule says why no verb or program can decide by what it drops.
"""

from __future__ import annotations

from fsworker.protocol import layout
from fsworker.protocol.layout import Token
from fsworker.protocol.ops import Op, Remove, Rename
from tests.model.disk import RECLAIMER, Disk, Unseen
from tests.model.programs import OUTBOX, Client, Local, Reclaimer, Worker


def without_garbage(disk: Disk) -> Disk:
    """The disk without results that can never count: no token can become their `.done` any more.

    A token's names are never used twice, so an attempt that lost its claim is over for ever.
    """
    dead = set()
    for name in disk.names(OUTBOX):
        parsed = layout.parse_outbox_name(name)
        if parsed and parsed[1] == "result" and not _can_count(disk, parsed[0]):
            dead.add(f"{OUTBOX}/{name}")
    return disk._replace(files=frozenset(f for f in disk.files if f[0] not in dead))


def _can_count(disk: Disk, out: layout.Outcome) -> bool:
    for path, _ in disk.files:
        folder, _, name = path.rpartition("/")
        if path == out.done:
            return True
        token = layout.parse_claim_name(name)
        if token and token.batch == out.batch and token.attempt == out.attempt:
            return folder.endswith("~" + out.incarnation)
    return False


def possible(op: Op, files: set[str]) -> bool:
    """Whether a request may do anything, now or later: a source that is gone does not come back."""
    match op:
        case Rename(source, _):
            return source in files
        case Remove(path):
            return path in files
    return True


def keeps(news: Unseen, local: Local, faulty: bool, more_reclaims: bool) -> bool:
    """Whether a process that has not seen this change may still decide otherwise by it."""
    if isinstance(local, Worker):
        return _worker_keeps(news, local, faulty)
    if isinstance(local, Client):
        return _client_keeps(news, local)
    return _reclaimer_keeps(news, local, more_reclaims)


def _worker_keeps(news: Unseen, me: Worker, faulty: bool) -> bool:
    failed = me.call is not None and any(kind == "error" for kind, _ in me.call.answers)
    held = {t for t, _ in me.held}
    if news.folder == OUTBOX:
        # Only a commit in doubt looks there, and only for its own token.
        parsed = layout.parse_outbox_name(news.name)
        mine = parsed and any(
            (t.batch, t.attempt) == (parsed[0].batch, parsed[0].attempt) for t in held
        )
        return failed and bool(mine)
    if news.folder != me.owner.folder:
        return False  # a past life's folder: never looked at again
    token = layout.parse_claim_name(news.name)
    if token in held and news.appeared:
        return faulty or failed  # it holds it: only a look after a failed rename can ask
    return not (token in me.let_go and not news.appeared)  # it would not be adopted anyway


def _client_keeps(news: Unseen, me: Client) -> bool:
    if not news.folder.startswith(layout.INBOX):
        return True
    # Only `enqueue` looks for a temporary.
    token = layout.parse_inbox_name(0, news.name.rpartition("~")[2])
    return token is not None and me.submissions[layout.seq_of(token.batch)] in ("new", "written")


def _reclaimer_keeps(news: Unseen, me: Reclaimer, more: bool) -> bool:
    # One that forwards looks nowhere.
    reclaims = me.call is not None and me.call.verb == "reclaim"
    at_work = reclaims and me.call is not None and me.call.args[0].folder == news.folder
    if not news.name and not news.appeared:
        return at_work  # a folder that is gone is not reclaimed again
    return at_work or more


def listable(disk: Disk, me: Worker) -> frozenset[Token]:
    """The tokens that a look at the worker's own folder may show, now or as it was."""
    names = set(disk.names(me.owner.folder))
    names |= {u.name for u in disk.unseen if (u.who, u.folder) == (me.host, me.owner.folder)}
    return frozenset(t for t in map(layout.parse_claim_name, names) if t)


def fitted(disk: Disk, who: str, local: Local, faulty: bool, more: bool) -> tuple[Disk, Local]:
    """The disk and one process without what can no longer matter to it."""
    assert who != RECLAIMER or isinstance(local, Reclaimer)
    unseen = frozenset(u for u in disk.unseen if u.who != who or keeps(u, local, faulty, more))
    disk = disk._replace(unseen=unseen)
    if isinstance(local, Worker) and local.let_go:
        local = local._replace(let_go=local.let_go & listable(disk, local))
    return disk, local
