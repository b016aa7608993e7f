"""A mailbox on the run root: one folder a conversation, and one listing a look.

Both sides write into it, each only files of its own life; a message is removed by who it is for.
All that has to be seen often (is the other side alive, what has come, what lies there still) is in
the names, so a look costs one call. Nothing is concluded from an error: the next look shows.
"""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import dataclass, field

from fsworker.errors import NotRunning
from fsworker.protocol import layout, segment
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.layout import agents
from fsworker.protocol.layout.agents import Beat, Letter, Life

log = logging.getLogger(__name__)

KEEP_DAMAGED = 3
"""Damaged messages that one life sets aside; more of them are removed."""


LASTING = (agents.RESULT, agents.REPLY)
"""What a message of a life that has ended is still good for."""


@dataclass(slots=True)
class Sight:
    """One look. `own`, `other`: the latest beats of the two sides; `mine`: files of this life's
    beat; `incoming`: messages for us in order; `lying`: numbers of our messages not taken yet."""

    own: Beat | None = None
    other: Beat | None = None
    mine: list[Beat] = field(default_factory=list)
    incoming: list[Letter] = field(default_factory=list)
    lying: set[int] = field(default_factory=set)


class _Eras:
    """The file server's clock may tick slower than this process starts lives."""

    def __init__(self) -> None:
        self._last = 0
        self._lock = threading.Lock()

    def after(self, now: int, seen: int) -> int:
        with self._lock:
            self._last = max(now, seen + 1, self._last + 1)
            return self._last


_eras = _Eras()


class Mailbox:
    """One life's view of a mailbox; used by one thread. Methods raise OSError but for `enter`."""

    def __init__(self, store: Store, agent_id: str, side: str) -> None:
        self._store, self._agent_id, self._side = store, agent_id, side
        self.folder = agents.agent_dir(agent_id)
        self.life = Life(side, 0, layout.new_incarnation())
        self._number = 0
        self._beat = 0
        self._over: set[Life] = set()
        self._done: set[str] = set()
        self._set_aside = 0

    def enter(self) -> None:
        """Begin this life: find the place, be later than all before, and remove their traces.

        NotRunning where there is no run; StorageError.
        """
        try:
            self._check_root()
            for left in (2, 1, 0):
                try:
                    return self._settle()
                except FileNotFoundError:  # the other side has just cleared the place at its end
                    if not left:
                        raise
        except OSError as error:
            path = self._store.path(self.folder)
            raise storage_error(error, "use the mailbox", path) from None

    def look(self) -> Sight:
        """What lies in the mailbox, from one listing of it."""
        sight = Sight()
        names = self._names()
        for name in names:
            beat = agents.parse_beat_name(name)
            letter = None if beat else agents.parse_letter_name(name)
            if beat is not None and beat.life not in self._over:
                self._see_beat(sight, beat)
            elif letter is not None and letter.life == self.life:
                sight.lying.add(letter.number)
            elif letter is not None and letter.life.side != self._side:
                sight.incoming.append(letter)
        self._done.intersection_update(names)
        sight.incoming = sorted(x for x in sight.incoming if x.name not in self._done)
        return sight

    def read(self, letter: Letter) -> bytes:
        """A message's bytes, from a fresh open."""
        return self._store.read(f"{self.folder}/{letter.name}", segment.MAX_BYTES)

    def done(self, letter: Letter) -> None:
        """A message is dealt with: it will not be shown again, and is removed."""
        self._done.add(letter.name)
        self._store.remove(f"{self.folder}/{letter.name}")

    def write(self, kind: str, data: bytes, *, durable: bool = True) -> int:
        """Leave a message for the other side; gives its number, which is never used again."""
        number, self._number = self._number, self._number + 1
        letter = Letter(self.life, number, kind)
        self._store.publish(f"{self.folder}/{letter.name}", data, durable=durable)
        return number

    def withdraw(self, kind: str, number: int) -> None:
        """Remove a message of ours that nobody has taken."""
        self._store.remove_quietly(f"{self.folder}/{Letter(self.life, number, kind).name}")

    def beat(self, sight: Sight, mood: str) -> None:
        """Show that we live, by renaming our own file as that look showed it."""
        if not sight.mine:
            return
        last = max(sight.mine)
        self._beat = max(self._beat, last.number) + 1
        there = Beat(self.life, self._beat, mood)
        try:
            self._store.rename(f"{self.folder}/{last.name}", f"{self.folder}/{there.name}")
        except FileNotFoundError:
            pass  # the look was older than our own last rename, or we are replaced: look again

    def set_aside(self, letter: Letter, why: str) -> None:
        """Keep a damaged message for people, if not too many are kept already."""
        self._done.add(letter.name)
        source = f"{self.folder}/{letter.name}"
        self._set_aside += 1
        if self._set_aside > KEEP_DAMAGED:
            self._store.remove(source)
            return
        target = f"{layout.QUARANTINE}/agent~{layout.encode(self._agent_id)[:80]}~{letter.name}"
        self._store.rename(source, target)
        reason = {"agent": self._agent_id, "from": source, "why": why}
        self._store.publish(f"{target}.reason.json", json.dumps(reason).encode() + b"\n")

    def wave_off(self, beat: Beat) -> None:
        """The goodbye of a life of the other side was seen: remove it."""
        self._over.add(beat.life)
        self._store.remove_quietly(f"{self.folder}/{beat.name}")

    def clear(self, other: Life | None) -> None:
        """Both sides have ended, `other` was the other's last life: leave nothing. Never raises.

        What later lives have written by now stays.
        """
        try:
            for name in self._store.scan(self.folder):
                found = self._parsed(name)
                last = self.life if found and found.life.side == self._side else other
                if found is not None and last is not None and found.life <= last:
                    self._store.remove_quietly(f"{self.folder}/{name}")
            self._store.rmdir(self.folder)
        except OSError as error:
            log.debug("the mailbox %s is not removed: %s", self.folder, error)

    def _names(self) -> list[str]:
        try:
            return self._store.scan(self.folder)
        except FileNotFoundError:
            # Somebody cleared our place, or the whole root is out of reach: only the first is sure.
            if layout.MANIFEST in self._store.scan(""):
                return []
            raise

    def _check_root(self) -> None:
        try:
            names = self._store.scan("")
        except (FileNotFoundError, NotADirectoryError):
            names = []
        if layout.MANIFEST not in names:
            raise NotRunning(
                f"there is no run at {self._store.root}: {layout.MANIFEST} is missing",
                path=self._store.root,
            )

    def _settle(self) -> None:
        self._store.mkdir(agents.AGENTS)
        self._store.mkdir(self.folder)
        names = self._store.scan(self.folder)
        now = int(self._store.server_time(self.folder) * 1e6)
        era = _eras.after(now, self._last_era(names))
        self.life = Life(self._side, era, self.life.incarnation)
        first = Beat(self.life, 0, agents.NEW)
        self._store.put(f"{self.folder}/{first.name}", b"", durable=False)
        self._tidy(names)

    def _last_era(self, names: list[str]) -> int:
        eras = [x.life.era for x in map(self._parsed, names) if x and x.life.side == self._side]
        return max(eras, default=0)

    def _tidy(self, names: list[str]) -> None:
        """Remove what earlier lives of our side left, but for what the last of them had to say to
        the other side: its results, and that it had taken something.

        A peer passes over agents that have ended: others may come. To an agent the goodbye that its
        killed predecessor has not seen is meant as well.
        """
        beats = [b for b in map(agents.parse_beat_name, names) if b and b.life.side != self._side]
        if self._side == agents.PEER:
            self._over |= {b.life for b in beats if b.mood == agents.BYE}
        letters = [x for x in map(agents.parse_letter_name, names) if x]
        last = max((x.life for x in letters if x.life.side == self._side), default=None)
        kept = {x.name for x in letters if x.life == last and x.kind in LASTING}
        kept |= {x.name for x in letters if x.life.side != self._side and x.kind == agents.RESULT}
        for name in names:
            found = self._parsed(name)
            ours = found is not None and (found.life.side == self._side or found.life in self._over)
            if ours and name not in kept:
                self._store.remove_quietly(f"{self.folder}/{name}")

    def _see_beat(self, sight: Sight, beat: Beat) -> None:
        if beat.life == self.life:
            sight.mine.append(beat)
        if beat.life.side == self._side:
            sight.own = max(sight.own or beat, beat)
        else:
            sight.other = max(sight.other or beat, beat)

    @staticmethod
    def _parsed(name: str) -> Beat | Letter | None:
        return (
            agents.parse_beat_name(name)
            or agents.parse_letter_name(name)
            or agents.parse_draft_name(name)
        )
