"""The records of workers that come by themselves: who is a member, and who may become one."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace

from fsworker.protocol.records.run import LaunchMeta, WorkerSpec, _Record


@dataclass(frozen=True)
class Member(_Record):
    """A worker that attached; `ctl/<host>.member.json`, written by itself, removed at its end.

    `launch` counts its own starts, above all that the host had before. `token` is the public half
    of the token that let it in, None for a name that may attach without one.
    """

    host: str
    launch: int
    shard: int
    concurrency: int = 1
    labels: tuple[str, ...] = ()
    token: str | None = None


@dataclass(frozen=True)
class JoinToken(_Record):
    """A token; `ctl/tokens/<id>.json`. Its secret is kept as a digest only.

    `names` are the hosts that may use it, none: any. `labels` are granted to who joins by it.
    `expires_at` is by the file server's clock (epoch seconds), None: never.
    """

    id: str
    sha256: str
    names: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    expires_at: float | None = None
    created_at: str = ""

    def opens_with(self, secret: str) -> bool:
        """Whether this is its secret."""
        return hmac.compare_digest(self.sha256, digest(secret))


def new_token() -> tuple[str, str]:
    """(public half, secret) of a new token; a person is shown `ID.SECRET`, once."""
    return secrets.token_hex(6), secrets.token_urlsafe(24)


def digest(secret: str) -> str:
    """What is kept of a secret. It is random and long, so no salt and no slow digest is needed."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def with_members(meta: LaunchMeta, members: Iterable[Member]) -> LaunchMeta:
    """The run as everybody sees it: what the controller launched, and who attached.

    Never written: `launch_meta.json` is the controller's alone. A host of the controller's that
    has also attached stays the controller's.
    """
    known = {worker.host.lower() for worker in meta.workers}
    joined = [m for m in members if m.host.lower() not in known]
    if not joined:
        return meta
    workers = (WorkerSpec(m.host, m.shard, m.concurrency) for m in joined)
    return replace(
        meta,
        workers=(*meta.workers, *workers),
        launches={**meta.launches, **{m.host: m.launch for m in joined}},
        attached=tuple(m.host for m in joined),
    )
