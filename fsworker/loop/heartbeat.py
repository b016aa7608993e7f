"""The worker's sign of life: one small file, replaced every two seconds by its main loop.

Not by a thread: it must stop when the loop does. A beat that cannot be written is no reason to end;
it is said once, and the next one tries again.
"""

from __future__ import annotations

import logging
import os
import platform
import socket
import sys
import time
from typing import Any

import fsworker
from fsworker import bundled, identity, inventory
from fsworker.digest import package_digest
from fsworker.loop.codenote import CodeNote
from fsworker.loop.options import Options
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Owner
from fsworker.protocol.records.run import Heartbeat, Identity

log = logging.getLogger("fsworker.loop.heartbeat")

BEAT_EVERY = 2.0


class Counters:
    """What the worker has done since it started, in tasks."""

    def __init__(self) -> None:
        self.claimed = self.done = self.failed = self.timeouts = 0
        self.progress: float | None = None


class Pulse:
    """Publishes heartbeats of one worker process."""

    def __init__(self, store: Store, owner: Owner, options: Options) -> None:
        self.owner = owner
        self.counters = Counters()
        self.inventory: dict[str, Any] = inventory.overridden(
            inventory.here(), options.cpus, options.memory_mb
        ).fields()
        self._store = store
        self.code = CodeNote(store)
        self._seq = 0
        self._trouble = ""
        self._silent_since = 0.0
        self.me = _identify(owner.host)
        self._fixed: dict[str, Any] = {
            "pid": os.getpid(),
            "start": self.me.start,
            "boot_id": self.me.boot_id,
            "pid_ns": self.me.pid_ns,
            "launch": options.launch,
            "shard": options.shard,
            "labels": options.labels,
            "wrapped": "FLEET_LIFE_FD" in os.environ,
            "hostname": socket.gethostname(),
            "python": sys.executable,
            "versions": {
                "shardfleet": fsworker.__version__,
                "python": platform.python_version(),
                **({"bundle": bundled.facts()["digest"]} if bundled.archive() else {}),
            },
            "package_digest": package_digest(),
        }

    def beat(self, **state: Any) -> bool:
        """Publish one beat with these fields besides the fixed ones; False if it failed."""
        counted = self.counters
        self._seq += 1
        if state.get("ready"):
            self.code.tend(self.owner)
        progress = counted.progress
        record = Heartbeat(
            host=self.owner.host,
            incarnation=self.owner.incarnation,
            seq=self._seq,
            heartbeat_at=time.time(),
            claimed=counted.claimed,
            done=counted.done,
            failed=counted.failed,
            timeouts=counted.timeouts,
            last_progress=None if progress is None else round(time.monotonic() - progress, 3),
            inventory=self.inventory,
            code=self.code.fields,
            **self._fixed,
            **state,
        )
        try:
            path = layout.status_path(self.owner.host)
            self._store.publish(path, record.to_json(), durable=False)
        except OSError as error:
            if not self._trouble:
                log.error("cannot write the heartbeat: %s", error)
                self._silent_since = time.monotonic()
            self._trouble = str(error)
            return False
        if self._trouble:
            # Why again: the disk that did not take the heartbeat may not have taken the log either.
            silent = time.monotonic() - self._silent_since
            log.warning(
                "the heartbeat is written again; for %.0f s it was not: %s", silent, self._trouble
            )
        self._trouble = ""
        return True


def _identify(host: str) -> Identity:
    place = identity.Place.here(host)
    me = identity.identify(os.getpid(), place)
    return me or Identity(host, place.boot_id, place.pid_ns, os.getpid(), 0)
