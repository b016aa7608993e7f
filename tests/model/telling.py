"""Operations and answers in words, for traces."""

from __future__ import annotations

import errno
from functools import cache
from typing import Any

from fsworker.protocol.ops import Op
from tests.model.calls import Call
from tests.model.disk import Effect

CLIENT_LIFE = "-c00000000000"
"""Left out of traces: it is in every batch id."""


def show(op: Op) -> str:
    """An operation, for people."""
    paths = [str(getattr(op, f)) for f in op.__slots__ if f != "data"]
    return f"{type(op).__name__} {' => '.join(paths)}".replace(CLIENT_LIFE, "")


@cache
def tell(answer: tuple[str, Any]) -> str:
    """An answer, for people."""
    kind, value = answer
    if kind == "error":
        return errno.errorcode[value]
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, tuple):
        return "[" + ", ".join(value).replace(CLIENT_LIFE, "") + "]"
    return {"ok": "ok", "begun": "begun"}[kind] if value in (None, True) else "nothing to do"


def step(who: str, call: Call, op: Op, effect: Effect) -> str:
    """One step of a process."""
    note = f"  [{effect.note}]" if effect.note else ""
    return f"{who}: {call.verb}: {show(op)} -> {tell(effect.answer)}{note}"
