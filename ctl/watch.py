"""The watcher: observe, decide, act, for weeks.

Everything here is about lasting. The root may hang: it is only touched over a pipe that can be
cut. Hosts may hang: acts run in threads and are collected when they are done. The watcher may be
frozen (its clock stands still with it), killed (what it knew lies on the root), or doubled (what it
does is harmless twice). What is to be done is decided elsewhere.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace

from ctl import decide, memory, renewal
from ctl.alarm import Alarm
from ctl.decide import Decision
from ctl.effects import Effects
from ctl.errand import Errands
from ctl.health import HEALTHY, Limits, State, Verdict
from ctl.journal import Journal
from ctl.lookout import LATE, Lookout
from ctl.memory import HostMemory
from ctl.observe import Report
from ctl.rootio import Late, RootIO
from ctl.sdnotify import Manager
from ctl.sight import Continuous, Single
from fsworker.errors import FleetError
from fsworker.identity import Place, identify
from fsworker.protocol.records.run import LaunchMeta

log = logging.getLogger("ctl.watch")

WRITE_TIMEOUT = 10.0
ROUNDS = 8
"""Looks that `once` takes at most: probe, stop and start each need one after them."""

ONCE_LIMIT = 600.0
LEAVE_PATIENCE = 6.0
ENTER_PATIENCE = 30.0
"""Seconds for each first answer: it has no ages to spoil, and a busy login node is slow."""
UNKNOWN = 4


@dataclass(frozen=True, slots=True)
class Options:
    """How to watch. Times are in seconds. `renew`: once a day the run's files count as used."""

    limits: Limits
    interval: float = 10.0
    late: float = LATE
    renew: bool = True


class Watcher:
    """One watcher of one run. `allowed` picks the hosts of a run that may be contacted."""

    def __init__(
        self,
        io: RootIO,
        options: Options,
        allowed: Callable[[LaunchMeta], frozenset[str]],
        journal: Journal | None = None,
        manager: Manager | None = None,
    ) -> None:
        self._io, self._o, self._allowed = io, options, allowed
        self._journal = journal or Journal()
        self._alarm = Alarm()
        self._manager = manager or Manager()
        self._errands = Errands(io.root)
        half = options.limits.stale / 2  # what a look saw first is that old at its end
        self._lookout = Lookout(io, self._journal, options.interval, late=options.late, latest=half)
        self._effects = Effects(io, self._journal, options.limits.grace, self._alarm.ring)
        self._eyes: Continuous | Single | None = None
        self._memory: dict[str, HostMemory] = {}
        self._saved: Mapping[str, HostMemory] = {}
        self._saved_text = ""
        self._told: dict[str, tuple[str, str]] = {}
        self._suspects: frozenset[str] = frozenset()
        self._ended, self._aggregated, self._old = "", False, False

    def run(self) -> int:
        """Watch until told to end. Raises Busy, and NotRunning once the run is gone."""
        self._alarm.catch_signals()
        me = identify(pid := os.getpid(), Place.here(os.uname().nodename))
        identity = json.dumps(asdict(me)) if me else ""
        if not self._lookout.insist(lambda: self._enter(pid, identity), self._done):
            return 0
        self._journal.say(f"watching {self._io.root} pid={pid}", "watching", pid=pid)
        self._manager.ready()
        try:
            while not self._done():
                begun = time.monotonic()
                self._turn()
                self._manager.alive()
                self._send(self._lookout.meta, begun)
                if self._alarm.rest(begun + self._o.interval) and not self._done():
                    # News of one host: that of its neighbours is about to come as well.
                    time.sleep(min(0.2, self._o.interval / 4))
        finally:
            self._manager.stopping()
            self._leave(pid)
        return 0

    def once(self) -> int:
        """Look, do what is due, and wait for it. 0: nobody needs help; 1: somebody does."""
        self._enter()
        end = time.monotonic() + ONCE_LIMIT
        decision = None
        for _ in range(ROUNDS):
            decision = self._turn(single=True) or decision
            if self._lookout.lost or self._ended or not self._effects.hands.busy:
                break
            while not self._effects.hands.idle and time.monotonic() < end:
                self._alarm.rest(min(end, time.monotonic() + 1.0))
        self._send(None, time.monotonic())
        self._collect()
        self._write_down()
        if self._lookout.lost or decision is None:
            return 0 if self._ended else UNKNOWN
        return int(not all(v.healthy for v in self._ours(decision)))

    def close(self) -> None:
        """Let go of everything."""
        self._effects.close()
        self._io.close()
        self._alarm.close()
        self._manager.close()
        self._errands.close()

    def _send(self, meta: LaunchMeta | None, now: float) -> None:
        """Send the errands that are due."""
        self._errands.turn(meta, now, aggregated=self._aggregated, old=self._old)

    def _done(self) -> bool:
        self._ended = self._ended or self._alarm.told
        return bool(self._ended)

    def _enter(self, pid: int = 0, identity: str = "") -> None:
        """Take the lock, and read what the last watcher knew; say who it is now, if it stays."""
        self._lookout.lock(ENTER_PATIENCE)
        self._saved_text = self._io.call("memory", ENTER_PATIENCE)
        if pid:
            self._io.call("appear", ENTER_PATIENCE, pid=pid, identity=identity)

    def _turn(self, *, single: bool = False) -> Decision | None:
        """One sweep. None when nothing could be decided."""
        # What acts have come to is taken in before the look, so that the look is never older.
        self._collect()
        report = self._lookout.look()
        if report is None:
            return None
        if report.watch_stop:
            self._ended = "watch.stop"
            return None
        self._aggregated = report.aggregated
        self._old = self._o.renew and renewal.is_over(report.renewed, report.now)
        now = self._now(report, single)
        if self._lookout.found_again and self._eyes:
            self._eyes.restart(now)
            self._effects.findings.clear()
        try:
            return self._judge(report, now)
        except Late as error:
            self._lookout.lose(str(error))
            return None

    def _now(self, report: Report, single: bool) -> float:
        """The time by which ages and pauses are counted; opens the eyes at the first look."""
        assert self._lookout.clock
        now = report.now if single else self._lookout.clock.now
        if self._eyes is None:
            limits = self._o.limits
            self._eyes = Single(limits) if single else Continuous(limits, now)
            self._memory = memory.decode(self._saved_text.encode(), now)
            self._saved = dict(self._memory)
        return now

    def _judge(self, report: Report, now: float) -> Decision:
        meta, eyes = self._lookout.meta, self._eyes
        assert meta and eyes
        self._effects.use(meta)
        sight = eyes.see(report, meta, self._memory, self._allowed(meta), now)
        busy = self._effects.hands.busy | sight.unclear
        decision = decide.decide(
            sight.seen, self._effects.findings, sight.memory, busy, now, self._o.limits
        )
        self._memory = dict(decision.memory)
        self._tell(decision, {o.host: o.problem or "" for o in sight.seen}, busy)
        seen = {o.host: o for o in sight.seen}
        for action in decision.actions:
            if not self._effects.perform(action, seen[action.host], meta):
                self._memory[action.host] = sight.memory[action.host]
        self._tidy(decision, now)
        self._write_down()
        return decision

    def _collect(self) -> None:
        """Take in what acts have come to."""
        now = self._lookout.clock.now if self._lookout.clock else 0.0
        for done in self._effects.hands.collect():
            host = done.action.host
            past = self._memory.get(host, HostMemory())
            self._memory[host] = self._effects.settle(done, past, now)

    def _tidy(self, decision: Decision, now: float) -> None:
        """Drop findings that have lost their meaning; start ages anew when silence ended."""
        busy = self._effects.hands.busy
        for verdict in decision.verdicts:
            if verdict.found is None and verdict.host not in busy:
                self._effects.findings.pop(verdict.host, None)
        before, self._suspects = self._suspects, decision.suspects
        beats = any(v.host in before and v.base in HEALTHY for v in decision.verdicts)
        if before and not decision.suspects and beats and self._eyes:
            # Ended by beats and not by proofs of death: who still lags gets a full age as well.
            self._eyes.restart(now)

    def _tell(self, decision: Decision, problems: Mapping[str, str], busy: Collection[str]) -> None:
        """One line for each change of a host's state, or of what is wrong with its status."""
        if decision.suspicion and not self._suspects:
            self._journal.say(f"storage suspect: {decision.suspicion}", "storage_suspect")
        for verdict in self._ours(decision):
            host = verdict.host
            told = (str(verdict.state), problems[host])
            before = self._told.get(host, ("", ""))
            if told == before or host in busy:
                continue
            self._told[host] = told
            self._keep_state(verdict)
            if not verdict.healthy:
                self._tell_bad(verdict)
            elif told[1]:
                self._journal.say(f"note {host}: {told[1]}: its last good beat counts")
            elif before[0]:
                word = "HEALTHY" if verdict.state is State.READY else "changed"
                state = str(verdict.state)
                self._journal.say(f"{word} {host} state={state}", "state", host=host, state=state)
        for host in self._told.keys() - problems.keys():
            del self._told[host]

    def _keep_state(self, verdict: Verdict) -> None:
        """Remember what `status` cannot find out by itself."""
        state, words = ("", "") if verdict.healthy else (str(verdict.state), verdict.words)
        past = self._memory[verdict.host]
        if (past.state, past.words) != (state, words):
            self._memory[verdict.host] = replace(past, state=state, words=words)

    def _tell_bad(self, verdict: Verdict) -> None:
        age = "-" if verdict.age is None else f"{verdict.age:.1f}"
        words = f": {verdict.words}" if verdict.words else ""
        self._journal.say(
            f"UNHEALTHY {verdict.host} reason={verdict.reason} age={age} "
            f"state={verdict.state}{words}",
            "unhealthy",
            host=verdict.host,
            reason=verdict.reason,
            age=verdict.age,
            state=str(verdict.state),
            words=verdict.words,
        )

    def _ours(self, decision: Decision) -> list[Verdict]:
        """The states of the run's own hosts; others are there only for the claims they left."""
        meta = self._lookout.meta
        names = {w.host for w in meta.workers} if meta else set()
        return [v for v in decision.verdicts if v.host in names]

    def _write_down(self) -> None:
        """Bring to the root what was said, and what is remembered if it changed. Raises Late."""
        try:
            self._journal.flush(self._record)
            if self._memory != self._saved:
                text = memory.encode(self._memory).decode()
                self._io.call("remember", WRITE_TIMEOUT, text=text)
                self._saved = dict(self._memory)
        except Late:
            raise
        except FleetError as error:
            log.warning("cannot write to %s: %s", self._io.root, error)

    def _record(self, lines: str, events: str) -> None:
        self._io.call("record", WRITE_TIMEOUT, lines=lines, events=events)

    def _leave(self, pid: int) -> None:
        """Wait a moment for what is being done, and go."""
        hands = self._effects.hands
        hands.drop_waiting()
        end = time.monotonic() + LEAVE_PATIENCE
        while not hands.idle and time.monotonic() < end:
            self._alarm.rest(end)
        self._collect()
        self._journal.say(f"watch of {self._io.root} ends: {self._ended or 'failed'}", "ended")
        try:
            self._write_down()
            self._io.call("vanish", WRITE_TIMEOUT, pid=pid)
        except FleetError as error:
            log.warning("cannot say on %s that the watch ended: %s", self._io.root, error)
