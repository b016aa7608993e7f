"""What a worker and the runner of a job say to each other, a JSON object a line.

The worker sends the ticket, then `cancel` or `drain`; the runner tells what it does, and last of
all how it ended: with a result, or with a reason to give the job back. A runner that ends without a
last word was killed, and is started again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fsworker.protocol import layout
from fsworker.protocol.layout import Owner, Token
from fsworker.protocol.layout.jobs import Attempt

CANCEL, DRAIN = b"cancel\n", b"drain\n"

EPISODE, OVER, RETURN = "episode", "over", "return"
"""What a runner says: the episode that it is at; its result; that the job goes back, and why."""


@dataclass(frozen=True)
class Ticket:
    """One attempt at a job. `claim` is the name of the token among the owner's claims."""

    root: str
    owner: str
    claim: str
    job: str
    max_deaths: int = 3

    @property
    def holder(self) -> Owner:
        """Whose claim it is."""
        owner = layout.parse_owner(self.owner)
        assert owner is not None
        return owner

    @property
    def token(self) -> Token:
        """The token."""
        token = layout.parse_claim_name(self.claim)
        assert token is not None
        return token

    @property
    def attempt(self) -> Attempt:
        """Which attempt this is."""
        return Attempt(self.token.attempt, self.holder.incarnation)

    def line(self) -> bytes:
        """The ticket as its line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> Ticket:
        """The ticket in a line."""
        return cls(**json.loads(line))


def said(kind: str, **fields: Any) -> bytes:
    """A line of a runner's."""
    return json.dumps({"say": kind, **fields}).encode() + b"\n"


def heard(line: bytes) -> Mapping[str, Any]:
    """What a runner said; empty for what is none of its lines."""
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
