"""Hosts that nobody reaches: their workers came by themselves, and hear from the root alone.

What this launcher cannot do it says, in the words and stages of one that can: to the watcher such a
host is out of reach, so its claims return after `fence_after` and nothing is started.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from ctl import beats, departed
from ctl.launchers.base import Launcher, Probe, Started, Stopped
from ctl.launchers.errors import LaunchError
from ctl.launchers.replies import ProcessState
from fsworker.errors import Refused
from fsworker.protocol.fsops import Store
from fsworker.protocol.records.launch import LaunchRequest
from fsworker.protocol.records.run import HostIdentity

POLL = 0.5
SLACK = 15.0
"""Seconds beyond the grace in which a worker that was told by its intent says goodbye."""


class AttachedLauncher:
    """Start, probe and stop for hosts that are not contacted."""

    name: ClassVar[str] = "attached"
    verbs: frozenset[str] = frozenset({"probe", "stop"})
    silent_after: float | None = None
    """Seconds of silence after which a worker holds no stop any more. None: it always does."""

    def start(self, host: str, request: LaunchRequest) -> Started:
        """Refused: it comes by itself."""
        raise Refused(f"host {host} attached by itself: start fsworker attach there", host=host)

    def probe(self, host: str, root: str, identity: HostIdentity | None = None) -> Probe:
        """Nobody can be asked."""
        text = f"host {host}: it attached by itself and is not contacted"
        raise LaunchError(text, host=host, stage="attached")

    def stop(
        self, host: str, root: str, launch: int, *, grace: float, kill_after: float | None = None
    ) -> Stopped:
        """Wait until the worker, told by its stop intent, has said goodbye, or is known to be over.

        It is when its processes are proven gone on this machine, or it is silent for long enough.
        """
        store, end = Store(root), time.monotonic() + grace + SLACK
        ran = not beats.is_over(store, host)
        while not beats.is_over(store, host):
            over, words = self._over(store, host, launch)
            if over:
                return Stopped(True, warnings=(f"{words}; nothing more to stop",))
            if time.monotonic() >= end:
                return Stopped(True, (ProcessState(None, words, "attached worker"),))
            time.sleep(POLL)
        return Stopped(ran)

    def _over(self, store: Store, host: str, launch: int) -> tuple[bool, str]:
        """Whether a worker that said no goodbye is over all the same, and what tells."""
        try:
            quiet = departed.silence(store, host)
        except FileNotFoundError:
            return False, "not known to have ended"  # it says goodbye at this moment
        if departed.ended_here(store, host, launch):
            return True, f"its processes on this machine are gone, {quiet}"
        limit = self.silent_after
        if limit is None or quiet.seconds <= beats.LATE:
            return False, "not known to have ended"
        if quiet.seconds > limit:
            return True, str(quiet)
        return False, f"{quiet}, which is taken for its end after {limit:g} s: try again then"

    def examine(self, host: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Nobody can be asked."""
        raise LaunchError(f"host {host}: it attached by itself", host=host, stage="attached")

    def unlock(self, hosts: Iterable[str], ask: Callable[[str], str | None]) -> None:
        """Nothing has to be asked."""

    def close(self) -> None:
        """There is nothing to let go of."""


class Mixed:
    """The launcher of a run some of whose hosts attached."""

    name: ClassVar[str] = "mixed"

    def __init__(
        self, launcher: Launcher, attached: Iterable[str], silent_after: float | None = None
    ) -> None:
        self._launcher, self._joined = launcher, AttachedLauncher()
        self._joined.silent_after = silent_after
        self._attached = frozenset(attached)
        self.verbs = launcher.verbs

    def _of(self, host: str) -> Launcher:
        return self._joined if host in self._attached else self._launcher

    def start(self, host: str, request: LaunchRequest) -> Started:
        """As the host's launcher does."""
        return self._of(host).start(host, request)

    def probe(self, host: str, root: str, identity: HostIdentity | None = None) -> Probe:
        """As the host's launcher does."""
        return self._of(host).probe(host, root, identity)

    def stop(
        self, host: str, root: str, launch: int, *, grace: float, kill_after: float | None = None
    ) -> Stopped:
        """As the host's launcher does."""
        return self._of(host).stop(host, root, launch, grace=grace, kill_after=kill_after)

    def examine(self, host: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        """As the host's launcher does."""
        return self._of(host).examine(host, asked)

    def unlock(self, hosts: Iterable[str], ask: Callable[[str], str | None]) -> None:
        """Ask for what those need that are contacted."""
        self._launcher.unlock([h for h in hosts if h not in self._attached], ask)

    def close(self) -> None:
        """Let go of every connection."""
        self._launcher.close()
