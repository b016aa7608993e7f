"""A group seen from outside: which round is open, what was uploaded, who is refused or missing.

The aggregator and `ctl rounds` look through the same eyes. What is published never changes, so each
record is read once in the life of a `GroupEye`; what may change (the group's rule, new names in a
folder) is read at every look, by listing folders that are freshly opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from fsworker.errors import FleetError, FormatError, StorageError
from fsworker.protocol import archive, artifacts, federation, rounds
from fsworker.protocol.archive import Old
from fsworker.protocol.artifacts import Damaged, Done
from fsworker.protocol.federation import Global
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.layout import groups, jobs
from fsworker.protocol.records.round import (
    Final,
    Group,
    Plan,
    Refusal,
    Retired,
    Times,
    Waiting,
)
from fsworker.protocol.rounds import Problem, Upload

LATE_EVERY, MEMBERS_EVERY = 5, 30
"""Of how many looks one is for late uploads, and for a place that another job took meanwhile."""


@dataclass(frozen=True)
class View:
    """One look at a group.

    `round` is the open one, or the one that is closed and not merged: then `plan` is its plan.
    `base` is the model that it starts from (None: none was published). `uploads` are those of the
    open round, each with its problem if it has a refusal or a record that tells one; `late` are
    those of closed rounds that no plan has and nobody refused, looked for now and then, with a
    problem where a newer one of the same job has counted meanwhile. `first` is
    when the first upload of the open round was written, `since` since when the round waits, as far
    as that is written down; both epoch seconds by the file server's clock. `complete`: late ones
    were looked for.
    """

    group: Group
    round: int
    base: Global | None
    plan: Plan | None
    members: tuple[str, ...]
    uploads: tuple[Upload, ...]
    late: tuple[Upload, ...]
    first: float | None
    since: float | None
    finished: bool
    complete: bool

    def observation(self, now: float) -> rounds.Observation:
        """What `rounds.decide` judges, at `now` by the file server's clock."""
        since = self.since if self.since is not None else self.first
        return rounds.Observation(
            self.group, self.round, self.uploads + self.late, self.members, since, now
        )


class GroupEye:
    """Looks at one group, again and again."""

    def __init__(self, store: Store, group: str) -> None:
        self.store, self.group = store, group
        self._uploads: dict[tuple[int, str], tuple[Done, float]] = {}
        self._plans: dict[int, Plan] = {}
        self._globals: dict[int, Global] = {}
        self._refusals: dict[tuple[int, str], Refusal] = {}
        self._members: tuple[list[str], tuple[str, ...]] = ([], ())
        self._old: tuple[int, dict[int, Old]] = (0, {})
        self._looks = 0

    def look(self, *, late: bool = False) -> View:
        """The group now; with `late` its late uploads too, which else are looked for now and then.

        NotRunning when it is gone; FormatError for a damaged record of ours.
        """
        group = federation.read_group(self.store, self.group)
        base = self.newest()
        number = base.episode if base is not None else 1
        members = self._known_members()
        finished = group.episodes is not None and number > group.episodes
        plan = None if finished else self._open_plan(number)
        uploads: tuple[Upload, ...] = ()
        first: float | None = None
        if plan is None and not finished:
            uploads, first = self._open_round(group, number, base, members)
        if base is not None and first is not None:
            first = max(first, self._published(base))
        complete = late or self._looks % LATE_EVERY == 0
        belated = tuple(self._late(number)) if complete else ()
        since = self._since(number) if uploads or belated else None
        self._looks += 1
        seen = (group, number, base, plan, members, uploads, belated, first, since, finished)
        return View(*seen, complete)

    def newest(self) -> Global | None:
        """The newest global model."""
        found = map(jobs.parse_before_name, self._names(groups.globals_dir(self.group)))
        for episode in sorted((e for e in found if e is not None), reverse=True):
            if (model := self.model(episode)) is not None:
                return model
        return None

    def model(self, episode: int) -> Global | None:
        """The global model that an episode starts from; None when it has no record."""
        if episode not in self._globals:
            model = federation.read_global(self.store, self.group, episode)
            if model is None:
                return None
            self._globals[episode] = model
        return self._globals[episode]

    def plan(self, number: int) -> Plan | None:
        """The plan of a round; None while it is open."""
        if number not in self._plans:
            name = groups.round_dir(self.group, number).rpartition("/")[2]
            if name not in self._names(groups.rounds_dir(self.group)):
                return None
            path = f"{groups.round_dir(self.group, number)}/{groups.PLAN_FILE}"
            plan = federation.read_record(self.store, path, Plan)
            if plan is None:
                return None
            self._plans[number] = plan
        return self._plans[number]

    def _open_plan(self, number: int) -> Plan | None:
        try:
            return self.plan(number)
        except FormatError as error:
            words = f"{error}; fedavg reopen {self.group} closes round {number} anew"
            raise FormatError(words, path=error.path) from None

    def forget_plan(self, number: int) -> None:
        """Read the plan of a round again, which was taken back."""
        self._plans.pop(number, None)

    def times(self, number: int) -> Times | None:
        """When a round got its first upload and when it closed."""
        path = f"{groups.round_dir(self.group, number)}/{groups.TIMES_FILE}"
        return federation.read_record(self.store, path, Times)

    def old(self, number: int) -> Old | None:
        """A round whose records are in a file with others; None when it is in none."""
        for first in archive.archived(self.store, self.group):
            if archive.covers(first, number):
                if self._old[0] != first:  # one file at a time is held
                    self._old = first, archive.read(self.store, self.group, first)
                return self._old[1].get(number)
        return None

    def final(self) -> Final | None:
        """Which model is the last one, once it is."""
        return federation.read_record(self.store, groups.final_file(self.group), Final)

    def retired(self) -> int:
        """The first episode whose model retention has not removed so far; 0 when it never did."""
        found = federation.read_record(self.store, groups.retired_file(self.group), Retired)
        return found.before if found is not None else 0

    def refusals(self, episode: int) -> dict[str, Refusal]:
        """Who was refused after an episode, by job."""
        found = {}
        for name in self._names(groups.refused_dir(self.group, episode)):
            job = groups.parse_refusal_name(name)
            refusal = None if job is None else self._refusal(episode, job)
            if job is not None and refusal is not None:
                found[job] = refusal
        return found

    def _refusal(self, episode: int, job: str) -> Refusal | None:
        known = self._refusals.get((episode, job))
        if known is None:
            known = federation.read_refusal(self.store, self.group, episode, job)
            if known is not None and known.terms is None:  # the others may be judged anew
                self._refusals[episode, job] = known
        return known

    def uploaded(self, episode: int) -> list[str]:
        """The jobs that have uploaded after an episode."""
        names = self._names(groups.round_uploads_dir(self.group, episode))
        return sorted(job for name in names if (job := jobs.parse_job_name(name)) is not None)

    def forget(self, before: int) -> None:
        """Let go of what is known of rounds that are retired."""
        for known in (self._plans, self._globals):
            for number in [n for n in known if n < before]:
                del known[number]
        for pairs in (self._uploads, self._refusals):
            for key in [k for k in pairs if k[0] < before]:
                del pairs[key]

    def _known_members(self) -> tuple[str, ...]:
        """The jobs of the group; read again when places come or go, and now and then."""
        places = sorted(self._names(groups.members_dir(self.group)))
        if places != self._members[0] or self._looks % MEMBERS_EVERY == 0:
            jobs_ = federation.members(self.store, self.group).values()
            self._members = places, tuple(sorted(set(jobs_)))
        return self._members[1]

    def _open_round(
        self, group: Group, number: int, base: Global | None, members: tuple[str, ...]
    ) -> tuple[tuple[Upload, ...], float | None]:
        uploaded = self.uploaded(number)
        refused = self.refusals(number) if uploaded else {}
        digest = base.merge.digest if base is not None else None
        found, times = [], []
        for job in uploaded:
            upload, when = self._read(number, job)
            times.append(when)
            if job in refused:
                told = refused[job]
                upload = replace(upload, problem=Problem(told.kind, told.reason, told.terms))
            elif upload.done is not None:
                problem = rounds.stranger(job, members, group)
                problem = problem or rounds.record_problem(job, number, upload.done, digest)
                upload = replace(upload, problem=problem)
            found.append(upload)
        return tuple(found), min(times, default=None)

    def _late(self, newest: int) -> Iterator[Upload]:
        """Uploads of closed rounds that no plan has and nobody refused yet."""
        found = map(jobs.parse_after_name, self._names(groups.uploads_dir(self.group)))
        for episode in sorted(e for e in found if e is not None and e < newest):
            with suppress(StorageError):  # what cannot be read of it now may be the next time
                yield from self._late_of(episode, newest)

    def _late_of(self, episode: int, newest: int) -> Iterator[Upload]:
        plans = [p for n in range(episode, newest) if (p := self.plan(n)) is not None]
        counted = [(c.job, c.episode) for p in plans for c in p.contributors]
        passed = {job: e for job, e in sorted(counted) if e >= episode}
        done = {job for job, e in counted if e == episode} | self.refusals(episode).keys()
        for job in self.uploaded(episode):
            if job not in done:
                upload = self._read(episode, job)[0]
                yield _passed_over(upload, passed[job]) if job in passed else upload

    def _read(self, episode: int, job: str) -> tuple[Upload, float]:
        """An upload by its record, and when that was written."""
        known = self._uploads.get((episode, job))
        if known is None:
            folder = groups.upload_dir(self.group, episode, job)
            try:
                done = replace(self._done(folder), rewards=())  # may be many, and say nothing here
                known = done, self._written(f"{folder}/{artifacts.DONE}")
            except Damaged as error:
                return self._nothing(job, episode, "damaged", error), float("inf")
            except StorageError as error:  # the others go on
                return self._nothing(job, episode, rounds.UNREADABLE, error), float("inf")
            self._uploads[episode, job] = known
        return Upload(job, episode, known[0]), known[1]

    def _nothing(self, job: str, episode: int, kind: str, error: FleetError) -> Upload:
        words = str(error).replace(f"{self.store.root}/", "")
        return Upload(job, episode, None, Problem(kind, words))

    def _done(self, folder: str) -> Done:
        try:
            return artifacts.read_done(self.store, folder)
        except Damaged:
            return artifacts.read_done(self.store, folder)  # once more, from a fresh open

    def _published(self, model: Global) -> float:
        return self._written(f"{model.folder}/{groups.MERGE_FILE}")

    def _written(self, rel: str) -> float:
        try:
            return self.store.read_with_mtime(rel, federation.RECORD_LIMIT)[1]
        except OSError as error:
            raise storage_error(error, "read", self.store.path(rel)) from None

    def _since(self, number: int) -> float | None:
        waiting = federation.read_record(self.store, groups.waiting_file(self.group), Waiting)
        return waiting.since if waiting is not None and waiting.round == number else None

    def _names(self, folder: str) -> list[str]:
        return federation.names(self.store, folder)


def _passed_over(upload: Upload, newer: int) -> Upload:
    """A late upload of a job that went on: its `newer` one has counted, and stands for it."""
    words = f"round {upload.episode} was closed without it, and episode {newer} has counted since"
    return upload.refused("late", words)
