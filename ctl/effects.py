"""From a decision to what is done about it, and from what was done to what is known.

The root is touched here (over the pipe, in the watcher's own thread) and hosts are handed to
`act`. Whatever the order in which things fail, the state on the root stays true: a new launch is
numbered before the old one is stopped, so that a watcher that dies in between leaves a host that
looks missing, and not one that looks stopped on purpose.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ctl import act, launching
from ctl.act import Done, Hands, Subject
from ctl.decide import Action, Do, learn
from ctl.health import Finding, Observation
from ctl.journal import Journal
from ctl.memory import HostMemory
from ctl.rootio import Late, RootIO
from fsworker.errors import Busy, FleetError, FormatError
from fsworker.protocol.records.run import HostIdentity, LaunchMeta

if TYPE_CHECKING:
    from ctl.launchers.base import Launcher

log = logging.getLogger("ctl.effects")

RECLAIM_TIMEOUT = 60.0
ASK_TIMEOUT = 10.0
SILENT_GRACE = 10.0
"""Seconds of TERM before KILL for a process that does not even beat any more."""


class Effects:
    """Acts on hosts and on the root, and keeps the findings that come of it."""

    def __init__(
        self,
        io: RootIO,
        journal: Journal,
        grace: float,
        notify: Callable[[], None] | None = None,
        launcher: Launcher | None = None,
    ) -> None:
        self.findings: dict[str, Finding] = {}
        self.hands = Hands(notify=notify)
        self._waits: dict[str, str] = {}
        self._io, self._journal, self._grace = io, journal, grace
        self._launcher, self._launcher_key = launcher, None if launcher is None else "given"

    def perform(self, action: Action, seen: Observation, meta: LaunchMeta) -> bool:
        """Do it or hand it out. False when it must be decided anew; Late when the root hangs."""
        try:
            if action.do is Do.REVOKE:
                self._revoke(action)
            elif action.do is Do.PROBE:
                self._probe(action, seen, meta)
            else:
                self._relaunch(action, seen, meta)
        except Late:
            raise
        except Busy as error:
            if self._waits.get(action.host) != str(error):  # once, not at every sweep
                self._waits[action.host] = str(error)
                self._journal.say(f"note {action.host}: its {action.do} waits: {error}")
            return False
        except FleetError as error:
            self._journal.say(f"{action.do} {action.host} failed: {error}", "failed")
        return True

    def settle(self, done: Done, past: HostMemory, now: float) -> HostMemory:
        """Take in what came of an act; the host's memory after it."""
        action, finding = done.action, done.finding
        host = action.host
        self._waits.pop(host, None)
        for warning in done.warnings:
            self._journal.say(f"note {host}: {warning}")
        if action.do is not Do.PROBE:
            self._tell(done)
        if finding is None:
            return replace(past, owed=action.reason) if action.do is Do.STOP else past
        self.findings[host] = finding
        new = learn(past, finding, now)
        return new if action.do is Do.PROBE else replace(new, start_failed=True)

    def use(self, meta: LaunchMeta) -> None:
        """Reach hosts as the run says; a launcher that is in use is kept until it is free."""
        how = (meta.launcher, meta.launcher_options, meta.host_terms, meta.attached)
        bundle = (meta.bundle, meta.from_bundle)
        key = repr((how, meta.python, meta.pythonpath, meta.setup, bundle))
        if self._launcher_key in ("given", key) or self.hands.busy:
            return
        self.close()
        self._launcher, self._launcher_key = launching.open_for(meta), key

    def close(self) -> None:
        """Let go of every connection."""
        if self._launcher is not None:
            self._launcher.close()
        self._launcher = None

    def _need(self) -> Launcher:
        assert self._launcher is not None, "use() comes first"
        return self._launcher

    def _revoke(self, action: Action) -> None:
        for incarnation in action.owners:
            moved, finished, names = self._io.call(
                "reclaim",
                RECLAIM_TIMEOUT,
                host=action.host,
                incarnation=incarnation,
                died=action.died,
            )
            if moved or finished:
                self._journal.say(
                    f"revoked {action.host} incarnation={incarnation} batches={moved} "
                    f"died={int(action.died)} reason={action.reason}",
                    "revoke",
                    host=action.host,
                    incarnation=incarnation,
                    batches=moved,
                    names=names,
                    died=action.died,
                    finished=finished,
                    reason=action.reason,
                )

    def _probe(self, action: Action, seen: Observation, meta: LaunchMeta) -> None:
        identity = self._identity(action.host)
        about = Subject(meta.root, seen.key, seen.launch, meta.respawn)
        self._hand(action.host, act.probe, action, about, identity)

    def _relaunch(self, action: Action, seen: Observation, meta: LaunchMeta) -> None:
        """Number a new launch, then start it, or stop those before it first."""
        covers = max(seen.launch, seen.beat.launch if seen.beat else 0)
        number = self._io.call("launch", ASK_TIMEOUT, host=action.host, above=covers)
        about = Subject(meta.root, seen.key, number, meta.respawn)
        if action.do is Do.STOP:
            grace = min(self._grace, SILENT_GRACE) if action.silent else self._grace
            self._hand(action.host, act.stop, action, about, covers, grace)
            return
        changed = replace(meta, launches={**meta.launches, action.host: number})
        request = launching.request_for(changed, action.host)
        self._hand(action.host, act.start, action, about, request)

    def _hand(self, host: str, function: Callable[..., Done], *args: Any) -> None:
        self.hands.give(host, functools.partial(function, self._need(), *args))

    def _identity(self, host: str) -> HostIdentity | None:
        """Who the host's record says runs there; None leaves it to the host to read."""
        text = self._io.call("identity", ASK_TIMEOUT, host=host)
        if not text:
            return None
        try:
            known: HostIdentity = HostIdentity.from_json(text.encode(), f"identity of {host}")
        except FormatError as error:
            self._journal.say(f"note {host}: {error}")
            return None
        return known

    def _tell(self, done: Done) -> None:
        """The line that scripts match on, and the event."""
        action = done.action
        verb = "restart" if action.do is Do.RESTART else "stop"
        rc = int(bool(done.error) or done.finding is not None)
        why = done.error or (done.finding.words if done.finding else action.reason)
        self._journal.say(
            f"{verb} {action.host} rc={rc} launch={done.launch} reason={why}",
            verb,
            host=action.host,
            rc=rc,
            launch=done.launch,
            reason=action.reason,
            error=why if rc else None,
        )
