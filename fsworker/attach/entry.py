"""Who may join a run, under which name, and with which shard: pure, from what was read.

A refusal is final, because nothing on this machine will make it better; everything else (the root
is not mounted yet, the server is away) is tried again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fsworker.errors import Refused, UsageError
from fsworker.protocol.records.member import JoinToken, Member
from fsworker.protocol.records.needs import label_problem
from fsworker.protocol.records.run import LaunchMeta, Manifest

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9_-])?")
"""As hosts are called, so that every command can name a member."""


@dataclass(frozen=True)
class Wish:
    """What somebody asked for on this machine. `token` is `ID.SECRET` as it was handed out."""

    name: str
    parallel: int = 1
    labels: tuple[str, ...] = ()
    token: str | None = None
    shard: int | None = None


def split(token: str) -> tuple[str, str]:
    """The public half and the secret of a token. Refused for what is none."""
    public, dot, secret = token.strip().partition(".")
    if not (dot and public and secret):
        raise Refused("the join token is not of the form ID.SECRET: take it from ctl token create")
    return public, secret


def check_token(wish: Wish, record: JoinToken | None, now: float) -> JoinToken:
    """The token if it lets `wish` in; `now` is by the file server's clock. Refused says why not."""
    public, secret = split(wish.token or "")
    if record is None or not record.opens_with(secret):
        raise Refused(f"the join token {public} is not known here: it was revoked, or never was")
    if record.expires_at is not None and now >= record.expires_at:
        raise Refused(f"the join token {public} has expired: ask for a new one (ctl token create)")
    if record.names and wish.name.lower() not in {n.lower() for n in record.names}:
        raise Refused(f"the join token {public} is not for {wish.name!r}: see ctl token list")
    if (why := next(filter(None, map(label_problem, record.labels)), None)) is not None:
        raise Refused(f"the join token {public} grants what cannot be: {why}")
    return record


def check_name(wish: Wish, meta: LaunchMeta) -> None:
    """UsageError for what is no name; Refused unless `wish` may join without a token."""
    if not _NAME.fullmatch(wish.name):
        raise UsageError(
            f"--name {wish.name!r:.120} is no host name: use letters, digits, '.', '-' and '_', "
            "100 at most"
        )
    launched = {w.host.lower() for w in meta.workers}
    if wish.name.lower() in launched:
        raise Refused(
            f"{wish.name!r} is a host that the controller of this run starts: attach under another "
            "name (--name)"
        )
    if wish.token is None and wish.name.lower() not in {n.lower() for n in meta.may_attach}:
        raise Refused(
            f"{wish.name!r} may not attach to this run: give --token (ctl token create), or start "
            f"the run with --attach {wish.name}"
        )


def spelled(
    wish: Wish, meta: LaunchMeta, members: Iterable[Member], token: JoinToken | None
) -> str:
    """The name that `wish` is granted: spelled as it was admitted, or as it attached before.

    Names that differ only in case are one host to everybody.
    """
    admitted = (*(token.names if token else meta.may_attach), *(m.host for m in members))
    return next((n for n in admitted if n.lower() == wish.name.lower()), wish.name)


def join(
    wish: Wish,
    manifest: Manifest,
    meta: LaunchMeta,
    members: Sequence[Member],
    token: JoinToken | None,
    last_launch: int,
) -> Member:
    """The member that this machine becomes. UsageError for a shard that there is not."""
    before = next((m.launch for m in members if m.host == wish.name), 0)
    shard = wish.shard
    if shard is None:
        shard = choose_shard(manifest, meta, members, wish.name)
    if not 0 <= shard < manifest.shard_count:
        raise UsageError(
            f"--shard {shard} does not exist: run {manifest.run_id} has shards 0 to "
            f"{manifest.shard_count - 1}"
        )
    granted = token.labels if token else ()
    labels = tuple(dict.fromkeys((*wish.labels, *granted)))
    public = token.id if token else None
    launch = max(before, last_launch) + 1
    return Member(wish.name, launch, shard, wish.parallel, labels, public)


def choose_shard(manifest: Manifest, meta: LaunchMeta, members: Iterable[Member], name: str) -> int:
    """The shard that the fewest others call home; the lowest of them."""
    homes = Counter(w.shard for w in meta.workers)
    homes.update(m.shard for m in members if m.host != name)
    return min(range(manifest.shard_count), key=lambda shard: (homes[shard], shard))
