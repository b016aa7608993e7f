"""What `explain` tells of anything: where it is, what happened to it, and what comes next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Event:
    """Something that happened. `at`: UTC, ISO 8601, or None when only the order is known."""

    at: str | None
    words: str


@dataclass
class Story:
    """One thing explained. `kind`: host, batch or task; `state` is a word of DESIGN's tables."""

    kind: str
    name: str
    state: str
    now: list[str] = field(default_factory=list)
    history: list[Event] = field(default_factory=list)
    last_words: list[str] = field(default_factory=list)
    next: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def fields(self) -> dict[str, Any]:
        """The story as JSON fields."""
        return {
            "kind": self.kind,
            "name": self.name,
            "state": self.state,
            "now": self.now,
            "history": [{"at": e.at, "words": e.words} for e in self.history],
            "last_words": self.last_words,
            "next": self.next,
            **self.facts,
        }
