"""Workers that came by themselves, and the tokens that let them in."""

from __future__ import annotations

import re

from fsworker.protocol.layout.hosts import host_file, spelled_in_ctl
from fsworker.protocol.layout.names import CTL, decode

TOKENS = CTL + "/tokens"
_MEMBER = ".member.json"
_TOKEN = re.compile(r"([0-9a-f]{12})\.json")


def member_path(host: str) -> str:
    """The record of a worker that attached under the name `host`."""
    return host_file(host, _MEMBER[1:])


def parse_member_name(name: str) -> str | None:
    """The host whose record a file in `ctl/` is."""
    if not name.endswith(_MEMBER):
        return None
    try:
        return decode(name.removesuffix(_MEMBER), spelled_in_ctl)
    except ValueError:
        return None


def token_path(token: str) -> str:
    """The record of a join token, by its public half (12 hex digits)."""
    return f"{TOKENS}/{token}.json"


def parse_token_name(name: str) -> str | None:
    """The token whose record a file in `ctl/tokens/` is."""
    match = _TOKEN.fullmatch(name)
    return match[1] if match else None
