"""Agents: the mailbox of an agent and its peer, `agents/<id>/`, in which names say almost all.

A side of a conversation is told by `agent` or `peer`. Each start of one is a life: an era and an
incarnation. The era is the file server's time at its start (epoch microseconds) or one more than
the highest that was there, so a later life has a higher one, whoever's clock is wrong.

    <side>~<era>~<incarnation>.<beat>.<mood>         one file a life, renamed at each beat
    <side>~<era>~<incarnation>.<number>.<kind>       a message of that life to the other side
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fsworker.protocol.layout.names import INC, NUM, encode

AGENTS = "agents"
AGENT, PEER = "agent", "peer"
SIDES = (AGENT, PEER)

NEW, ASKS, BYE = "new", "asks", "bye"
MOODS = (NEW, ASKS, BYE)
"""`new`: has not asked for a task yet, `asks`: has, `bye`: this life has ended by itself."""

TASK, ABORT, RESULT, REPLY = "task", "abort", "result", "reply"
KINDS = (TASK, ABORT, RESULT, REPLY)

_ERA = r"(?:0|[1-9][0-9]{0,16})"
_LIFE = rf"(?P<side>{'|'.join(SIDES)})~(?P<era>{_ERA})~(?P<inc>{INC})"
_LIFE_NAME = re.compile(rf"{_LIFE}\.(?P<beat>{NUM})\.(?P<mood>{'|'.join(MOODS)})")
_MESSAGE_NAME = re.compile(rf"{_LIFE}\.(?P<number>{NUM})\.(?P<kind>{'|'.join(KINDS)})")
_TEMPORARY = re.compile(r"\.tmp~[^~]*~(?P<name>.*)")


@dataclass(frozen=True, slots=True, order=True)
class Life:
    """One start of an agent or a peer. Of one side, the later life is the greater."""

    side: str
    era: int
    incarnation: str

    @property
    def name(self) -> str:
        """The beginning of the names of all its files."""
        return f"{self.side}~{self.era}~{self.incarnation}"


@dataclass(frozen=True, slots=True, order=True)
class Beat:
    """A life as it was last heard of."""

    life: Life
    number: int
    mood: str

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.life.name}.{self.number}.{self.mood}"


@dataclass(frozen=True, slots=True, order=True)
class Letter:
    """A message of a life as it lies in the mailbox; those of one life are read in order."""

    life: Life
    number: int
    kind: str

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.life.name}.{self.number}.{self.kind}"


def agent_dir(agent_id: str) -> str:
    """The mailbox of an agent. ValueError for an id that cannot be a part of a path."""
    return f"{AGENTS}/{encode(agent_id)}"


def parse_beat_name(name: str) -> Beat | None:
    """The life, and how it was, that a file of a mailbox tells of."""
    m = _LIFE_NAME.fullmatch(name)
    return Beat(_life(m), int(m["beat"]), m["mood"]) if m else None


def parse_letter_name(name: str) -> Letter | None:
    """The message that a file of a mailbox is."""
    m = _MESSAGE_NAME.fullmatch(name)
    return Letter(_life(m), int(m["number"]), m["kind"]) if m else None


def parse_draft_name(name: str) -> Letter | None:
    """The message that a temporary file was to become."""
    m = _TEMPORARY.fullmatch(name)
    return parse_letter_name(m["name"]) if m else None


def _life(m: re.Match[str]) -> Life:
    return Life(m["side"], int(m["era"]), m["inc"])
