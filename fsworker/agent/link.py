"""Is the other side there? Told from changes of its beat that we see, on our own clock alone.

Pure: time comes in as a number (seconds, monotonic). Silence never grows by more than `MOST` at
once, since a process that was frozen, or whose disk did not answer, knows nothing of that time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fsworker.protocol.layout.agents import BYE, Beat

MOST = 2.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds of silence until it counts as disconnected, and as dead (None: never)."""

    connection: float
    heartbeat: float | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """What we know of the other side. `looked` is when we looked last."""

    looked: float
    beat: Beat | None = None
    silence: float = 0.0
    connected: bool = False
    dead: bool = False

    @property
    def gone(self) -> bool:
        """Whether its latest life said goodbye."""
        return self.beat is not None and self.beat.mood == BYE


@dataclass(frozen=True, slots=True)
class News:
    """What changed at one look, each told once."""

    connected: bool = False
    disconnected: bool = False
    replaced: bool = False
    gone: bool = False
    dead: bool = False


def look(link: Link, seen: Beat | None, now: float, limits: Limits) -> tuple[Link, News]:
    """The link after a look that showed `seen`, the beat of the other side's latest life.

    A life that is older than the one we know, or none, tells nothing; but once that has said
    goodbye, every other one is later.
    """
    known = link.beat
    if seen is not None and (known is None or _later(seen, known)):
        return _heard(link, seen, now)
    silence = link.silence + min(max(now - link.looked, 0.0), MOST)
    disconnected = link.connected and silence > limits.connection
    dead = not link.dead and limits.heartbeat is not None and silence > limits.heartbeat
    then = replace(
        link,
        looked=now,
        silence=silence,
        connected=link.connected and not disconnected,
        dead=link.dead or dead,
    )
    return then, News(disconnected=disconnected, dead=dead)


def _later(seen: Beat, known: Beat) -> bool:
    if seen.life != known.life:
        return seen.life > known.life or known.mood == BYE
    return seen.number > known.number


def _heard(link: Link, seen: Beat, now: float) -> tuple[Link, News]:
    known = link.beat
    gone = seen.mood == BYE
    news = News(
        connected=not gone and not link.connected,
        replaced=known is not None and known.life != seen.life,
        gone=gone and not link.gone,
    )
    return Link(now, seen, connected=not gone), news
