"""What a host answers, read with distrust: a field of another form counts as not said."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ctl.launchers import script
from ctl.launchers.errors import LaunchError


@dataclass(frozen=True, slots=True)
class ProcessState:
    """A process as its host sees it: alive, dead, zombie, stuck (in state D), other or unknown."""

    pid: int | None
    state: str
    role: str = ""


def parse(host: str, raw: bytes) -> dict[str, Any]:
    """The reply as an object; LaunchError for what is none."""
    try:
        reply = json.loads(raw)
        if not isinstance(reply, dict) or not isinstance(reply.get("ok"), bool):
            raise ValueError("it is not an object with the field 'ok'")
    except (ValueError, RecursionError) as error:
        said = script.clean(raw)
        raise LaunchError(
            f"host {host}: its reply cannot be read ({error}): {said}", host=host, stage="reply"
        ) from None
    return reply


def refusal(host: str, verb: str, reply: Mapping[str, Any]) -> LaunchError:
    """The error that a reply with `ok` false is."""
    message = " ".join(str(reply.get("message") or reply.get("code") or "no reason given").split())
    return LaunchError(
        f"host {host}: {verb} failed: {message}",
        host=host,
        stage="command",
        code=str(reply.get("code") or "failed"),
    )


def state(value: object) -> ProcessState:
    """A process in a reply."""
    if not isinstance(value, dict):
        return ProcessState(None, "unknown")
    role, state = str(value.get("role", "")), str(value.get("state", "unknown"))
    return ProcessState(pid(value.get("pid")), state, role)


def pid(value: object) -> int | None:
    """A pid in a reply; None for what is none."""
    return value if type(value) is int and value > 0 else None


def sentences(value: object) -> tuple[str, ...]:
    """Sentences in a reply."""
    return tuple(str(item) for item in value) if isinstance(value, list) else ()
