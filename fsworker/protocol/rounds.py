"""Who counts in a round, and when it closes: pure functions over what was observed.

The aggregator looks at a group and asks here; what it then does is an effect. So every case (one
silent, one refused, one late, one on two hosts, a quorum lowered meanwhile) is a row of a table.

A round waits for `size` participants. Once `quorum` of them count it may close: at once where no
deadline is set; else when all are accounted for, or when the deadline has passed. It never closes
with less, however long it takes: then it says who is missing and why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from fsworker.protocol.records.artifact import Done
from fsworker.protocol.records.round import DELTA, MOST_SAMPLES, Contributor, Group
from fsworker.protocol.records.rules import count_problem

UNREADABLE = "unreadable"
"""The kind of a problem that may pass: such an upload neither counts nor is it refused."""

State = Literal["idle", "waiting", "overdue", "stuck", "closing"]
"""idle: nobody has uploaded; overdue: the deadline has passed without a quorum; stuck: everybody
is accounted for and they are too few."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why an upload does not count: one word for scripts, one sentence for people.

    `terms`: by which of the group's terms (`Refusal.terms`); None: by any.
    """

    kind: str
    reason: str
    terms: str | None = None


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload as it was found: after which episode, by whom, and what is wrong with it."""

    job: str
    episode: int
    done: Done | None = None
    problem: Problem | None = None

    @property
    def counts(self) -> bool:
        """Whether it may be merged."""
        return self.done is not None and self.problem is None

    @property
    def unreadable(self) -> bool:
        """Whether it has to be looked at again before anything can be said."""
        return self.problem is not None and self.problem.kind == UNREADABLE

    def refused(self, kind: str, reason: str) -> Upload:
        """The same upload with something wrong with it."""
        return replace(self, problem=Problem(kind, reason))


@dataclass(frozen=True)
class Observation:
    """What decides about an open round.

    `uploads` are those of its episode, admitted or refused, and late ones of earlier episodes that
    were in no plan. `members` are the jobs of the group as far as they are known. `since` and
    `now` are epoch seconds by the file server's clock. `fits` says why the rule cannot be applied
    to that many participants (None: it can); without it the group's terms do.
    """

    group: Group
    round: int
    uploads: Sequence[Upload]
    members: Sequence[str] = ()
    since: float | None = None
    now: float = 0.0
    fits: Callable[[int], str | None] | None = None

    def misfit(self, count: int) -> str | None:
        """Why the rule cannot be applied to `count` participants; None when it can."""
        if self.fits is not None:
            return self.fits(count)
        return count_problem(self.group.rule, self.group.options, count)


@dataclass(frozen=True)
class Decision:
    """What is to become of an open round.

    `due` is when the deadline passes (epoch seconds by the file server's clock). `why` is for
    people. `contributors` are in the order of their jobs' ids, whatever order they came in.
    """

    state: State
    why: str
    contributors: tuple[Contributor, ...] = ()
    refused: Mapping[str, Problem] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    unknown: int = 0
    due: float | None = None

    @property
    def closes(self) -> bool:
        """Whether the round closes now."""
        return self.state == "closing"


def decide(seen: Observation) -> Decision:
    """Whether the round closes, with whom, and who is missing or refused."""
    uploads = _one_each(seen)
    counted = [u for u in uploads if u.counts]
    refused = {u.job: u.problem for u in uploads if u.problem is not None}
    present = {u.job for u in uploads}
    missing = tuple(sorted(set(seen.members) - present))
    state, why = _judge(seen, len(counted), len(present))
    if unread := _unread(seen.uploads):
        state, why = ("waiting", unread) if state == "idle" else (state, f"{why}; {unread}")
    return Decision(
        state,
        why,
        contributors(counted),
        refused,
        missing,
        max(0, seen.group.size - len(present) - len(missing)),
        None if seen.group.deadline is None or seen.since is None
        else seen.since + seen.group.deadline,
    )  # fmt: skip


def _unread(uploads: Iterable[Upload]) -> str:
    """What is said of uploads that cannot be read, if there are any."""
    found = sorted((u.job, u.problem.reason) for u in uploads if u.problem and u.unreadable)
    if not found:
        return ""
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return f"what {found[0][0]} uploaded{more} cannot be read: {found[0][1]}"


def _judge(seen: Observation, counted: int, settled: int) -> tuple[State, str]:
    group = seen.group
    if not settled:
        return "idle", "nobody has uploaded yet"
    overdue = (
        group.deadline is not None
        and seen.since is not None
        and seen.now >= seen.since + group.deadline
    )
    misfit = seen.misfit(counted)
    if counted < group.needed or misfit is not None:
        why = f"{counted} of the {group.needed} that are needed count"
        if counted >= group.needed:
            why = f"rule {group.rule} cannot be applied yet: {misfit}"
        if settled >= group.size:
            advice = _advice(group, counted, misfit)
            return "stuck", f"{why}, and nobody else is to come: {advice}, or end the group"
        return ("overdue", f"{why}, and the deadline has passed") if overdue else ("waiting", why)
    if settled >= group.size:
        return "closing", f"all {group.size} are accounted for, {counted} count"
    if group.deadline is None:
        return "closing", f"the quorum is there: {counted} of {group.size}"
    if overdue:
        return "closing", f"the deadline has passed: {counted} of {group.size} count"
    return "waiting", f"{counted} count, the deadline is waited for"


def _advice(group: Group, counted: int, misfit: str | None) -> str:
    """What lets a round close with the `counted` that there are."""
    if not counted:
        return "change the terms that they were refused by"
    found = []
    if misfit is not None:
        words = f"ctl rounds {group.group} --rule NAME --option K=V"
        found.append(f"change the rule or its options ({words})")
    if counted < group.needed:
        found.append("lower the quorum")
    return " and ".join(found)


def _one_each(seen: Observation) -> list[Upload]:
    """One upload a job: the one of the highest episode that counts, else the highest.

    Late ones are in only where the group applies them, and only if they count: what is wrong with
    one says nothing about its job's part in the open round. Who is no member counts, by name, as
    long as places are free. What cannot be read is as if it were not there, and takes no place.
    """
    best: dict[str, Upload] = {}
    there = (u for u in seen.uploads if not u.unreadable)
    for upload in sorted(there, key=lambda u: (u.job, u.counts, u.episode)):
        late = upload.episode < seen.round
        applied = upload.counts and seen.group.late == DELTA
        if upload.episode <= seen.round and (not late or applied):
            best[upload.job] = upload
    members = set(seen.members)
    others = sorted(set(best) - members)[: max(0, seen.group.size - len(members))]
    return [best[job] for job in sorted(best) if job in members or job in others]


def contributors(counted: Iterable[Upload]) -> tuple[Contributor, ...]:
    """Who is merged and with what weight: the sample count, or 1 for all where one is missing."""
    counted = sorted(counted, key=lambda u: u.job)
    dones = [(u, u.done) for u in counted if u.done is not None]
    equal = any(done.samples is None for _, done in dones)
    return tuple(
        Contributor(
            u.job,
            u.episode,
            1.0 if equal or done.samples is None else done.samples,
            done.digest,
            done.files,
            done.base,
        )
        for u, done in dones
    )


def record_problem(job: str, episode: int, done: Done, base: str | None) -> Problem | None:
    """What is wrong with an upload by its record alone.

    `base` is the digest of the model that this episode starts from; None where no model was
    published for it, so that everybody may start from what they like.
    """
    if done.job != job or done.episode != episode:
        words = f"its done.json is of job {done.job!r:.80}, episode {done.episode}"
        return Problem("damaged", words)
    if base is not None and done.base != base:
        started = f"from {done.base[:12]}" if done.base else "from no model that it names"
        words = f"it started {started}, the model of episode {episode} is {base[:12]}"
        return Problem("stale", words)
    if done.samples is not None and not 0 <= done.samples <= MOST_SAMPLES:
        return Problem("samples", f"its sample count {done.samples:g} is no number of samples")
    if done.samples == 0:
        return Problem("samples", "its sample count is 0: it has seen no data and has no weight")
    return None


def stranger(job: str, members: Sequence[str], group: Group) -> Problem | None:
    """Whether an upload is of nobody that the group has, once all its places are taken."""
    if len(set(members)) < group.size or job in members:
        return None
    return Problem("stranger", f"the group has its {group.size} participants, {job!r} is none")


def late_problem(job: str, episode: int, newest: int, group: Group) -> Problem | None:
    """What becomes of an upload whose round `episode` is closed, while round `newest` is open.

    None: it is applied to the open round, as a change of the model that it started from. That
    model must still be there, so its age is limited by `keep_rounds`.
    """
    if group.late != DELTA:
        return Problem("late", f"round {episode} was closed without it")
    if group.lora == "product":
        words = f"round {episode} was closed without it, and a change of products is no product"
        return Problem("late", words)
    if newest - episode >= group.keep_rounds:
        words = f"round {episode} was closed without it, and round {newest} is too far from it"
        return Problem("late", words)
    return None


def retired(newest: int, keep: int, present: Iterable[int]) -> list[int]:
    """Of the rounds in `present`, those whose files go, once round `newest` is published."""
    return sorted(number for number in present if number <= newest - keep)
