"""What a worker cannot execute is kept for people: in `dead/` or `quarantine/`, with a reason.

A copy, since the batch itself goes on to its commit, so that its client gets an answer. Only what
is no file, and so was never submitted by a client, is moved away whole.
"""

from __future__ import annotations

import json
import logging
import secrets
from typing import Any

from fsworker.protocol import layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Owner, Token

log = logging.getLogger("fsworker.loop.setaside")


def bury(store: Store, owner: Owner, token: Token, index: int, why: str) -> None:
    """Keep a copy of the batch in `dead/`, with the reason and all tasks given up so far."""
    target = layout.dead_path(token.batch)
    told = {"task": index, "why": why}
    try:
        tasks = [*_given_up(store, target), told]
        store.publish(target, store.read(layout.claim_path(owner, token)))
        _reason(store, owner, token, target, {**told, "tasks": tasks})
    except OSError as error:
        log.error("cannot keep a copy of batch %s: %s", token.batch, error)


def quarantine(store: Store, owner: Owner, token: Token, why: str) -> None:
    """Keep a copy of a damaged batch. Raises OSError."""
    log.error("batch %s is set aside: %s", token.batch, why)
    target = _target(token)
    store.publish(target, store.read(layout.claim_path(owner, token)))
    _reason(store, owner, token, target, {"why": why})


def move_away(store: Store, owner: Owner, token: Token, why: str) -> None:
    """Set aside what is no file: it cannot be read or copied. Raises OSError.

    Committed it would be in the way of its reader, given back in everybody's.
    """
    log.error("batch %s is set aside: %s", token.batch, why)
    target = f"{_target(token)}.{secrets.token_hex(3)}"  # its like may have been here before
    store.rename(layout.claim_path(owner, token), target)
    try:
        _reason(store, owner, token, target, {"why": why})
    except OSError as error:
        log.error("cannot say why %s is there: %s", target, error)


def _target(token: Token) -> str:
    return f"{layout.QUARANTINE}/{token.batch}.{token.attempt}"


def _given_up(store: Store, target: str) -> list[Any]:
    """The tasks of this batch that were given up before, by this owner or an earlier one."""
    try:
        tasks = json.loads(store.read(f"{target}.reason.json"))["tasks"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return []
    return tasks if isinstance(tasks, list) else []


def _reason(store: Store, owner: Owner, token: Token, target: str, reason: dict[str, Any]) -> None:
    source = layout.claim_path(owner, token)
    told = {"batch": token.batch, "host": owner.host, "from": source, **reason}
    store.publish(f"{target}.reason.json", json.dumps(told).encode() + b"\n")
