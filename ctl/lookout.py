"""Looking at the root again and again, and knowing when what is seen cannot be trusted.

A look that fails or comes late is not news about any host. It makes the storage suspect: until the
root answers again nobody is acted upon, and then all ages start anew. The lock lives in the child
that looks, so a new child must take it before anything else.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from ctl.ages import WatchClock
from ctl.journal import Journal
from ctl.observe import Report
from ctl.patience import Patience
from ctl.rootio import Late, RootIO
from fsworker.errors import Busy, FleetError, NotRunning
from fsworker.protocol.layout import LAUNCH_META
from fsworker.protocol.records.run import LaunchMeta

log = logging.getLogger("ctl.lookout")

LATE = 5.0
"""Seconds that a look may take, to begin with: beyond that the storage is suspected."""

GONE_FOR = 60.0
"""Seconds for which a run must be gone to be believed gone: a mount may come back."""


RECOVERY = 0.5
"""Seconds between two looks whether an answer that is owed has come."""


class Lookout:
    """Looks at one run root over a child process.

    A look may take `late` seconds, and up to `latest` where one after the other takes longer.
    `clock` starts with the first look. `lost`: why the storage is suspected, empty when it is not.
    `found_again`: this look is the first after that.
    """

    def __init__(
        self,
        io: RootIO,
        journal: Journal,
        interval: float,
        *,
        late: float = LATE,
        latest: float = LATE,
    ) -> None:
        self.clock: WatchClock | None = None
        self.meta: LaunchMeta | None = None
        self.lost = ""
        self.found_again = False
        self._io, self._journal = io, journal
        self._interval, self._late = interval, late
        self._patience = Patience(late, latest)
        self._locked = 0
        self._gone_since: float | None = None

    def lock(self, within: float | None = None) -> None:
        """Hold the run's watch lock from now on. Raises Busy when another watcher has it.

        `within`: seconds that it may take, if not those of a look.
        """
        warning = self._io.call("lock", within or self._late)
        self._locked = self._io.generation
        if warning:
            self._journal.say(f"note: {warning}")

    def insist(self, ask: Callable[[], None], over: Callable[[], bool]) -> bool:
        """Ask until the root answers, however long that takes; False when it is `over` first."""
        told = False
        while not over():
            try:
                ask()
                return True
            except Late as error:
                if not told:
                    log.warning("%s: it is waited for", error)
                told = True
                while not self._io.recover(RECOVERY) and not over():
                    time.sleep(RECOVERY)
        return False

    def look(self) -> Report | None:
        """What lies on the root now; None while the storage is suspected.

        Raises NotRunning when the run has been gone for a while, Busy when another watcher took
        over while our child hung.
        """
        self.found_again = False
        try:
            report = self._ask()
        except Busy:
            raise
        except NotRunning as error:
            self.lose(str(error))
            self._gone_since = self._gone_since or time.monotonic()
            if time.monotonic() - self._gone_since > GONE_FOR:
                raise
            return None
        except FleetError as error:
            self.lose(str(error))
            return None
        self._gone_since = None
        if self.lost:
            # Why again: a log on that storage may lack the line that said so.
            again = f"the storage answers again: all ages start anew; it was suspected: {self.lost}"
            self._journal.say(again, "storage_answers")
            self.lost, self.found_again = "", True
        return report

    def lose(self, why: str) -> None:
        """Suspect the storage; said once."""
        if not self.lost:
            self._journal.say(f"storage suspect: {why}: acting on nobody", "storage_suspect")
        self.lost = why

    def _ask(self) -> Report:
        if not self._io.recover(0.0):
            raise Late(f"the run root {self._io.root} still does not answer", path=self._io.root)
        if self.clock:
            # Before the look: what is seen after this moment can only be younger.
            self.clock.tick(time.monotonic())
        if not self._io.running or self._locked != self._io.generation:
            self._lock_again()
        report = Report.from_plain(self._ask_within(self._patience.limit))
        if report.meta is not None:
            self.meta = LaunchMeta.from_json(report.meta.encode(), LAUNCH_META)
        if self.clock is None:
            self.clock = WatchClock(self._interval, time.monotonic(), report.now)
        return report

    def _ask_within(self, limit: float) -> Any:
        """The answer to a look; Late when it took longer."""
        begun = time.monotonic()
        try:
            answer = self._io.call("look", limit, full=bool(self.lost) or self.meta is None)
            took = time.monotonic() - begun
            if took > limit:  # we were frozen meanwhile, or only just not late
                raise Late(f"a look took {took:.1f} s", path=self._io.root)
        except Late:
            if self._patience.late():
                allowed = f"{self._patience.limit:g} s are allowed from now on"
                self._journal.say(f"note: looks take longer than {limit:g} s here: {allowed}")
            raise
        self._patience.kept(took)
        return answer

    def _lock_again(self) -> None:
        try:
            self.lock()
        except Busy as error:
            if self._io.abandoned:
                raise Late(f"a process of ours that hangs holds the lock: {error}") from error
            raise
