"""One look at the groups of a run: who is in, who is missing and why, and how long rounds take.

The same eyes as the aggregator's, on the same files, and no process is asked: what an aggregator
says of itself lies there too. Times are the file server's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ctl import beats, render
from fsworker.errors import FormatError, StorageError
from fsworker.protocol import aggregators, federation, rounds
from fsworker.protocol.aggregators import Sign
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.groupview import GroupEye, View
from fsworker.protocol.layout import groups
from fsworker.protocol.records.round import (
    AggregatorBeat,
    GroupReport,
    Plan,
    Times,
    terms_problem,
)
from fsworker.protocol.rounds import Decision

TROUBLED = ("failed", "stuck")


@dataclass(frozen=True)
class Aggregator:
    """The last sign of life of an aggregator, None when there was none.

    Of several, as there may be without locks, that of one who lives.
    """

    sign: Sign | None = None

    @property
    def beat(self) -> AggregatorBeat | None:
        """What it said."""
        return self.sign.beat if self.sign is not None else None

    @property
    def age(self) -> float | None:
        """How long ago, in seconds."""
        return self.sign.age if self.sign is not None else None

    @property
    def words(self) -> str:
        """Whether one is at work, as a sentence's part."""
        if self.beat is None or self.age is None:
            return "no aggregator was ever started: fedavg run --root …"
        who = f"aggregator on {self.beat.host} (pid {self.beat.pid})"
        if self.beat.stopped:
            return f"{who} has ended: fedavg run --root … starts one again"
        return who if self.alive else f"{who} is silent since {self.age:.0f} s"

    @property
    def alive(self) -> bool:
        """Whether it beat lately and did not say that it stopped."""
        return self.sign is not None and self.sign.alive

    @property
    def waits_for(self) -> list[str]:
        """Groups that it was told to look after and that it did not find."""
        if self.beat is None or self.beat.stopped:
            return []
        return sorted(g for g, report in self.beat.groups.items() if report.state == "absent")

    @property
    def troubles(self) -> dict[str, str]:
        """Why groups that it looks after do not go on by themselves, as it said last, by group."""
        if self.beat is None or self.beat.stopped:
            return {}
        found = sorted(self.beat.groups.items())
        return {g: f"{r.state}: {r.why}" for g, r in found if r.state in TROUBLED}

    def fields(self) -> dict[str, Any] | None:
        """Its JSON object."""
        if self.beat is None:
            return None
        beat = self.beat
        return {
            "host": beat.host, "pid": beat.pid, "age_s": self.age, "stopped": beat.stopped,
            "alive": self.alive, "waits_for": self.waits_for, "troubles": self.troubles,
        }  # fmt: skip


@dataclass(frozen=True)
class Participant:
    """Somebody of the open round: `in`, `uploaded` (not judged yet), `refused` or `missing`."""

    job: str
    state: str
    reason: str = ""


@dataclass(frozen=True)
class Closed:
    """A closed round: who counted, who did not, and its times in seconds (None: not known)."""

    plan: Plan
    waited: float | None
    merged: float | None
    closed: float | None

    def fields(self) -> dict[str, Any]:
        """Its JSON object."""
        return {
            "round": self.plan.round,
            "rule": self.plan.rule,
            "contributors": [c.job for c in self.plan.contributors],
            "refused": self.plan.refused,
            "missing": list(self.plan.missing),
            "waited_s": self.waited,
            "merged_s": self.merged,
            "closed_at": render.iso(self.closed),
        }


@dataclass(frozen=True)
class GroupStatus:
    """A group now, and its last rounds, the newest first. `wrong` is what no aggregator can do."""

    view: View
    decision: Decision
    report: GroupReport | None
    closed: Sequence[Closed]
    wrong: str | None = None

    @property
    def told(self) -> str:
        """What the aggregator said last about the open round."""
        report = self.report
        return report.why if report is not None and report.round in self._rounds else ""

    @property
    def _rounds(self) -> tuple[int, ...]:
        """The open round; and 0, which a report has that failed before it knew which is open."""
        return (self.view.round, 0)

    @property
    def failed(self) -> bool:
        """Whether the last thing that an aggregator met in the open round was an error."""
        report = self.report
        return report is not None and report.state == "failed" and report.round in self._rounds

    @property
    def why(self) -> str:
        """Why it is in its state, as a sentence's part."""
        if self.wrong is not None:
            return self.wrong
        return self.told if self.failed else self.decision.why

    @property
    def state(self) -> str:
        """In one word: that of the decision, or failed, merging, or finished."""
        if self.failed or self.wrong is not None:
            return "failed"
        if self.view.finished:
            return "finished"
        return "merging" if self.view.plan is not None else self.decision.state

    def participants(self) -> list[Participant]:
        """Everybody of the open round, by name; those that nobody knows by name are counted."""
        decision = self.decision
        judged = self.report.admitted if self.report else ()
        found = [
            Participant(c.job, "in" if c.job in judged else "uploaded")
            for c in decision.contributors
        ]
        found += [Participant(j, "refused", p.reason) for j, p in decision.refused.items()]
        unread = {u.job: u.problem.reason for u in self.view.uploads if u.problem and u.unreadable}
        found += [
            Participant(job, "missing", unread.get(job, "has not uploaded"))
            for job in decision.missing
        ]
        found.sort(key=lambda p: p.job)
        if decision.unknown:
            words = "nobody has taken these places"
            found.append(Participant(f"({decision.unknown} more)", "missing", words))
        return found

    def fields(self) -> dict[str, Any]:
        """Its JSON object."""
        group = self.view.group
        people = [] if self.view.finished or self.view.plan is not None else self.participants()
        return {
            "group": group.group, "rule": group.rule, "options": group.options,
            "size": group.size, "quorum": group.needed, "deadline_s": group.deadline,
            "late": group.late, "keep_rounds": group.keep_rounds, "episodes": group.episodes,
            "round": self.view.round, "state": self.state, "why": self.why,
            "due": render.iso(self.decision.due), "aggregator_says": self.told,
            "participants": [vars(p) for p in people],
            "rounds": [c.fields() for c in self.closed],
        }  # fmt: skip


def aggregator(store: Store) -> Aggregator:
    """The aggregator of a run by its last beat."""
    try:
        signs = aggregators.signs(store, partial(beats.server_now, store))
    except (StorageError, FormatError):
        return Aggregator()
    return Aggregator(signs[0] if signs else None)


def look(store: Store, group: str, who: Aggregator, last: int) -> GroupStatus:
    """One group, with its `last` closed rounds. NotRunning when there is none."""
    eye = GroupEye(store, group)
    view = eye.look()
    now = beats.server_now(store) if view.uploads else 0.0
    decision = rounds.decide(view.observation(now))
    report = _report(store, group, who.sign)
    newest = view.round if view.plan is not None else view.round - 1
    closed = [_closed(eye, number) for number in range(newest, max(0, newest - last), -1)]
    wrong = None if view.finished else terms_problem(view.group)
    if wrong is not None:
        wrong = f"{store.path(groups.group_file(group))}: {wrong}"
    return GroupStatus(view, decision, report, [c for c in closed if c is not None], wrong)


def _report(store: Store, group: str, sign: Sign | None) -> GroupReport | None:
    """What an aggregator said of a group; None when its terms may have been changed since."""
    report = sign.beat.groups.get(group) if sign is not None else None
    if report is None or sign is None:
        return None
    path = groups.group_file(group)
    try:
        changed = store.read_with_mtime(path, federation.RECORD_LIMIT)[1]
    except OSError as error:
        raise storage_error(error, "read", store.path(path)) from None
    return report if changed < sign.at else None


def _closed(eye: GroupEye, number: int) -> Closed | None:
    plan = eye.plan(number)
    if plan is None:
        return _archived(eye, number)
    times = eye.times(number)
    merged = None
    if times is not None:
        path = f"{groups.global_dir(eye.group, number + 1)}/{groups.MERGE_FILE}"
        try:
            published = eye.store.read_with_mtime(path, federation.RECORD_LIMIT)[1]
            merged = round(max(0.0, published - times.closed), 3)
        except OSError:
            merged = None  # not merged yet
    return _with_times(plan, times, merged)


def _archived(eye: GroupEye, number: int) -> Closed | None:
    old = eye.old(number)
    if old is None:
        return None
    merged = round(max(0.0, old.published - old.times.closed), 3) if old.times else None
    return _with_times(old.plan, old.times, merged)


def _with_times(plan: Plan, times: Times | None, merged: float | None) -> Closed:
    waited = round(times.closed - times.since, 3) if times is not None else None
    return Closed(plan, waited, merged, times.closed if times is not None else None)
