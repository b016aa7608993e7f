"""What a watcher says: on its stderr, in `ctl/watch.log`, and as events for programs.

The log lies on the storage that may be away just when there is most to say. So lines are kept until
they can be written, a bounded number of them, and what was dropped is counted.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ctl import render

KEEP = 2000
CHUNK = 16_000
"""Characters that are handed on at once: less than fits into a pipe that nobody reads."""


class Journal:
    """Lines and events, kept until `flush`. `echo`: lines go to stderr as well."""

    def __init__(self, *, echo: bool = True) -> None:
        self._echo = echo
        self._lines: deque[str] = deque()
        self._events: deque[str] = deque()
        self.dropped = 0

    def say(self, line: str, event: str | None = None, **fields: Any) -> None:
        """One line for people; with `event` also an event with these fields for programs."""
        at = render.iso(time.time())
        text = f"{at} {render.clean(line)}"
        try:
            if self._echo:
                print(text, file=sys.stderr, flush=True)
        except (OSError, ValueError):
            pass  # whoever read it has left; the log goes on
        self._keep(self._lines, text)
        if event:
            told = {"at": at, "by": "watch", "event": event, **fields}
            self._keep(self._events, json.dumps(told, ensure_ascii=False, default=str))

    def flush(self, write: Callable[[str, str], None]) -> None:
        """Hand everything to `write(lines, events)`; what it fails on is kept."""
        if self.dropped and self._lines:
            self._lines.append(f"{render.iso(time.time())} {self.dropped} lines were lost")
            self.dropped = 0
        while self._lines or self._events:
            lines, events = _chunk(self._lines), _chunk(self._events)
            write("".join(lines), "".join(events))
            for kept, written in ((self._lines, lines), (self._events, events)):
                for _ in written:
                    kept.popleft()

    def _keep(self, kept: deque[str], text: str) -> None:
        if len(kept) >= KEEP:
            kept.popleft()
            self.dropped += 1
        kept.append(text)


def _chunk(kept: deque[str]) -> list[str]:
    """The first lines, not much more than CHUNK characters of them, each with its newline."""
    taken, size = [], 0
    for text in kept:
        if size and size + len(text) > CHUNK:
            break
        taken.append(text + "\n")
        size += len(text)
    return taken
