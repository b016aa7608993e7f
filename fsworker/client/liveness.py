"""Does anybody serve the run? Asked only by those who wait in vain, so it costs nothing otherwise.

A worker lives when its heartbeat changes while we watch; nobody's clock is compared with another's.
Silence is counted on our own monotonic clock, and never more than two looks' worth at once: we may
have been frozen ourselves. A worker that refuses to run or has stopped serves nobody, though it may
have beaten a moment ago.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from fsworker.errors import FleetError, FormatError, NoWorkers, StorageError
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.records.run import Heartbeat

LOOK_EVERY = 2.0
"""Seconds between two looks at `status/`."""

QUIET = 2.0
"""Seconds without a result before the first look."""


class Liveness:
    """Says when no worker has served the run for `limit` seconds (None: never)."""

    def __init__(
        self, store: Store, limit: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._limit = limit
        self._clock = clock
        self._beats: dict[str, tuple[str, int]] = {}
        self._refusal: str | None = None
        self._trouble: OSError | None = None
        self._silence = 0.0
        self._quiet_since = clock()
        self._looked = clock()

    def heard(self) -> None:
        """A result arrived, or a wait begins: silence is counted from here."""
        self._quiet_since = self._looked = self._clock()
        self._silence = 0.0

    def check(self) -> FleetError | None:
        """The reason to wait no longer, or None. Cheap when called often."""
        now = self._clock()
        if self._limit is None or now - self._looked < LOOK_EVERY:
            return None
        if now - self._quiet_since < QUIET:
            return None
        # The pause is bounded, so that a process that was frozen finds out before it gives up.
        self._silence += min(now - self._looked, 2 * LOOK_EVERY)
        self._looked = now
        self._trouble = None
        if self._somebody_beats():
            self._silence = 0.0
        return self._verdict() if self._silence >= self._limit else None

    def _somebody_beats(self) -> bool:
        try:
            names = self._store.scan(layout.STATUS)
        except FileNotFoundError:
            names = []
        except OSError as error:
            self._trouble = error
            return False
        # Those that were seen before come first: one that beats is enough.
        hosts = sorted(filter(None, map(layout.parse_status_name, names)), key=self._is_new)
        return any(map(self._beat_changed, hosts))

    def _is_new(self, host: str) -> bool:
        return host not in self._beats

    def _beat_changed(self, host: str) -> bool:
        path = layout.status_path(host)
        try:
            beat: Heartbeat = Heartbeat.from_json(self._store.read(path), path)
        except (OSError, FormatError):
            return False
        if beat.refused is not None or beat.stopped:
            self._refusal = beat.refused or self._refusal
            return False
        mark = (beat.incarnation, beat.seq)
        before = self._beats.get(host)
        self._beats[host] = mark
        return before is not None and before != mark

    def _verdict(self) -> FleetError:
        root, limit = self._store.root, self._limit
        if self._trouble is not None:
            why = self._trouble.strerror or self._trouble
            return StorageError(f"cannot read {root} for {limit:g} s: {why}", path=root)
        if not self._run_is_there():
            return NoWorkers(f"the run at {root} is gone: it holds no manifest", path=root)
        if self._refusal:
            return NoWorkers(f"no worker serves {root}: they refuse: {self._refusal}", path=root)
        return NoWorkers(
            f"no worker has served {root} for {limit:g} s: see `ctl status --root {root}`, "
            "start workers, then resume this stream by its name",
            path=root,
        )

    def _run_is_there(self) -> bool:
        try:
            return layout.MANIFEST in self._store.scan("")
        except FileNotFoundError:
            return False
        except OSError:
            return True
