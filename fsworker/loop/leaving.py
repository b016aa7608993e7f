"""When a worker ends by itself: after its first work, or when there was none for long enough; and
how fast it ends when it is told to."""

from __future__ import annotations

import logging
import signal

from fsworker.loop.options import Options
from fsworker.loop.surroundings import GENTLE

log = logging.getLogger("fsworker.loop.leaving")

FINISHED = 20
"""The exit code of a worker that ended by itself, so that nobody starts it again."""


class Leaving:
    """Decides when to go. `code`: what the worker ends with."""

    def __init__(self, options: Options) -> None:
        self._max_idle, self._once = options.max_idle, options.once
        self._worked = False
        self._idle_since: float | None = None
        self._haste, self._told = options.term_grace, 0
        self.code = 0

    def told(self, signum: int) -> tuple[float | None, bool]:
        """What a signal means: (seconds that running work gets, whether that holds for jobs too).

        None: as many as a drain was given, or the grace. A wrapper that knows us passes on by USR1
        what it was told, so that a TERM with a `term_grace` is a scheduler's, who kills next.
        """
        if signum == GENTLE:
            return None, False
        self._told += 1
        if self._told > 1:
            return 0.0, True
        if self._haste and signum == signal.SIGTERM:
            return self._haste, True
        return None, False

    def due(self, now: float, served: bool, quiet: bool) -> bool:
        """Whether it is time, said once. `quiet`: the worker holds nothing; `now` is monotonic."""
        if self.code or not served or not (self._once or self._max_idle):
            return False
        if not quiet:
            self._worked, self._idle_since = True, None
            return False
        if self._idle_since is None:
            self._idle_since = now
        if self._once and self._worked:
            return self._go("its first work is done")
        idle = now - self._idle_since
        return (
            bool(self._max_idle) and idle >= self._max_idle and self._go(f"idle for {idle:.0f} s")
        )

    def _go(self, why: str) -> bool:
        log.info("ending: %s", why)
        self.code = FINISHED
        return True
