"""One group, kept going: look, admit, close, merge, publish, clean up; one step at a time.

Nothing is remembered that is not on disk, but what saves reading it again. So a keeper may be
killed between any two calls, and another one goes on from what it finds; two at once get the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from fedavg import admission, closing, publishing, refusing, retention
from fedavg.admission import Verdict
from fedavg.agreement import Unmergeable
from fsworker.protocol import rounds
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.groupview import GroupEye, View
from fsworker.protocol.layout import groups
from fsworker.protocol.records.round import (
    DELTA,
    Contributor,
    Final,
    GroupReport,
    Plan,
    Waiting,
)
from fsworker.protocol.rounds import Decision, Problem, Upload

log = logging.getLogger(__name__)


class _Outrun(Exception):
    """Another aggregator closed the round meanwhile, so what was seen of it tells nothing more.

    Its uploads may be retired by now, and must not be taken for damaged.
    """


@dataclass(frozen=True)
class Step:
    """What came of one step. `merged`: a round was published, so there may be more to do."""

    report: GroupReport
    merged: bool = False
    decision: Decision | None = None

    @property
    def finished(self) -> bool:
        """Whether the group has had its last round."""
        return self.report.state == "finished"


def _say_nothing(report: GroupReport) -> None:
    pass


class GroupKeeper:
    """The rounds of one group. `alone`: this process holds the lock that says so.

    `tell` is told before what may take long: reading an upload, merging.
    """

    def __init__(
        self,
        store: Store,
        group: str,
        *,
        alone: bool = True,
        threads: int = 2,
        tell: Callable[[GroupReport], None] = _say_nothing,
    ) -> None:
        self.store, self.group = store, group
        self.alone, self.threads, self.tell = alone, threads, tell
        self.eye = GroupEye(store, group)
        self._verdicts: dict[tuple[int, str], Verdict] = {}
        self._hopeless: tuple[Plan, Unmergeable] | None = None
        self._cleaned = 0
        self._kept = 0

    def step(self) -> Step:
        """Do what can be done now. FleetError when something stands in the way."""
        view = self.eye.look()
        if self._cleaned != view.round:
            self._clean(view)
        if view.finished:
            return self._finish(view)
        if view.plan is None or self._hopeless:
            closing.check_terms(self.store, view.group)
        if self._hopeless and self._hopeless[0] == view.plan:
            return self._close_anew(view)
        try:
            found = view.plan or self._try_to_close(view)
        except _Outrun:
            words = "another aggregator closed it"
            return Step(GroupReport(view.round, "waiting", words), merged=True)
        return found if isinstance(found, Step) else self._merge(found)

    def _merge(self, plan: Plan) -> Step:
        self._write_refusals(plan)
        words = f"merging {len(plan.contributors)} uploads by {plan.rule}"
        self.tell(GroupReport(plan.round, "merging", words))
        try:
            model = publishing.publish_merge(
                self.store, self.eye, plan, trusted=self._is_trusted, threads=self.threads
            )
        except Unmergeable as error:  # whoever tries it, and however often
            self._hopeless = plan, closing.with_advice(error, plan, self.alone)
            return self._close_anew(self.eye.look())
        names = ", ".join(c.job for c in plan.contributors)
        log.info("%s: round %d merged of %s: %s", self.group, plan.round, names, model.folder)
        return Step(GroupReport(plan.round, "merged", f"merged {names}"), merged=True)

    def _close_anew(self, view: View) -> Step:
        """Open a round again that cannot be merged as it was closed, if the terms are others now.

        Else raises the error. So does one that is not alone: another may be at work on the plan.
        """
        assert self._hopeless is not None
        plan, error = self._hopeless
        if not self.alone or closing.has_terms_of(plan, view):
            raise error.with_traceback(None)
        words = "its terms were changed, so it is closed anew"
        if view.plan == plan:  # and nobody else published it meanwhile
            closing.reopen(self.store, self.group, plan.round)
            self.eye.forget_plan(plan.round)
        return Step(GroupReport(plan.round, "waiting", words), merged=True)

    # -- an open round

    def _try_to_close(self, view: View) -> Plan | Step:
        found = [*self._admitted(view), *self._late(view)]
        uploads = admission.without_odd_ones(found, self._verdicts)
        now = self._now(view)
        if uploads and view.since is None:
            view = self._begin_to_wait(view, now)
        while True:
            decision = rounds.decide(self._observation(view, uploads, now))
            if not decision.closes:
                admitted = tuple(c.job for c in decision.contributors)
                report = GroupReport(view.round, decision.state, decision.why, admitted)
                return Step(report, decision=decision)
            if view.group.late == DELTA and not view.complete:
                return self._close_with_late_ones(view)
            plan = closing.make_plan(view, decision)
            try:
                publishing.rehearse(self.store, self.eye, plan)
            except Unmergeable as error:
                # Whoever does not go with the others is out, and the round is looked at again.
                odd = {u.job: u for u in uploads}.get(error.participant or "")
                if odd is None:
                    raise
                uploads[uploads.index(odd)] = odd.refused("misshapen", str(error))
                continue
            closed = now or self._server_time()
            return closing.close(self.store, self.eye, view, plan, decision, closed)

    def _close_with_late_ones(self, view: View) -> Plan | Step:
        """Look again: what is there when a round closes counts in it, whoever's look it was."""
        again = self.eye.look(late=True)
        if again.round != view.round or again.plan is not None:
            raise _Outrun
        return self._try_to_close(again)

    def _observation(self, view: View, uploads: list[Upload], now: float) -> rounds.Observation:
        fits = partial(closing.misfit, view.group, view.base)
        return replace(view.observation(now), uploads=uploads, fits=fits)

    def _admitted(self, view: View) -> list[Upload]:
        """The uploads of the open round, each judged once by the terms of the group.

        What may pass is left out for now.
        """
        found = []
        known = self.eye.refusals(view.round)
        for seen in view.uploads:
            again = admission.outdated(seen.problem, view.group)
            upload = self._judged(view, seen) if seen.counts or again else seen
            problem = upload.problem
            if problem is not None and problem.kind == admission.UNREADABLE:
                log.warning("%s: %s: %s", self.group, upload.job, problem.reason)
                continue
            if (problem is not None and upload.job not in known) or again:
                if self.eye.plan(view.round) is not None:
                    raise _Outrun
                if problem is not None:
                    self._refuse(upload, problem)
                else:
                    refusing.take_back(self.store, self.group, view.round, upload.job)
            found.append(upload)
        return found

    def _judged(self, view: View, upload: Upload) -> Upload:
        key, terms = (upload.episode, upload.job), admission.terms_of(view.group)
        if key not in self._verdicts or self._verdicts[key].terms != terms:
            self.tell(GroupReport(view.round, "reading", f"reading the upload of {upload.job}"))
            verdict = admission.examine(self.store, view.group, upload, view.base)
            if verdict.problem is not None and verdict.problem.kind == admission.UNREADABLE:
                return replace(upload, problem=verdict.problem)
            self._verdicts[key] = verdict
            if verdict.problem is None:
                log.info("%s: %s is in round %d", self.group, upload.job, view.round)
        return replace(upload, problem=self._verdicts[key].problem)

    def _late(self, view: View) -> Iterator[Upload]:
        """Late uploads that are applied to the open round; the others are refused."""
        for upload in view.late:
            base = self.eye.model(upload.episode)
            problem = admission.late_problem(upload, view.round, view.group, base)
            problem = problem or self._judged(view, upload).problem
            if problem is None:
                yield upload
            elif problem.kind != admission.UNREADABLE:
                self._refuse(upload, problem)

    def _begin_to_wait(self, view: View, now: float) -> View:
        since = min(now, view.first if view.first is not None else now)
        path = groups.waiting_file(self.group)
        try:
            self.store.publish(path, Waiting(view.round, since).to_json())
        except OSError as error:
            raise storage_error(error, "write", self.store.path(path)) from None
        return replace(view, since=since)

    def _now(self, view: View) -> float:
        """Now by the file server's clock; 0 where nothing depends on it, for asking costs calls."""
        waits = bool(view.uploads or view.late)
        known = view.since is not None and view.group.deadline is None
        return self._server_time() if waits and not known else 0.0

    def _server_time(self) -> float:
        folder = groups.group_dir(self.group)
        try:
            return self.store.server_time(folder)
        except OSError as error:
            raise storage_error(error, "write to", self.store.path(folder)) from None

    # -- refusals

    def _write_refusals(self, plan: Plan) -> None:
        """Those that a plan decided about, in case whoever closed the round was killed since.

        Or saw other terms of the group, by which somebody was refused who counts.
        """
        known = self.eye.refusals(plan.round)
        for contributor in plan.contributors:
            if contributor.job in known and contributor.episode == plan.round:
                refusing.take_back(self.store, self.group, plan.round, contributor.job)
        for job, words in plan.refused.items():
            if job not in known:
                kind, _, reason = words.partition(": ")
                self._refuse(Upload(job, plan.round), Problem(kind, reason))

    def _refuse(self, upload: Upload, problem: Problem) -> None:
        refusing.refuse(self.store, self.group, upload.episode, upload.job, problem, upload.done)

    def _is_trusted(self, contributor: Contributor) -> bool:
        verdict = self._verdicts.get((contributor.episode, contributor.job))
        if verdict is None or verdict.problem is not None:
            return False
        folder = groups.upload_dir(self.group, contributor.episode, contributor.job)
        try:
            return admission.stamps_of(self.store, folder, contributor.files) == verdict.stamps
        except OSError:
            return False

    # -- after a round

    def _clean(self, view: View) -> None:
        """Once a round is published, and once when this process begins."""
        now = None if self.alone else self._server_time()
        retention.remove_leftovers(self.store, self.group, alone=self.alone, now=now)
        newest, keep = view.round - 1, view.group.keep_rounds
        self._kept = retention.retire(self.store, self.group, newest, keep, self._kept)
        self.eye.forget(self._kept)
        for key in [k for k in self._verdicts if k[0] < view.round - keep]:
            del self._verdicts[key]
        self._cleaned = view.round

    def _finish(self, view: View) -> Step:
        for upload in view.late:
            problem = rounds.late_problem(
                upload.job, upload.episode, view.round, replace(view.group, late="reject")
            )
            if problem is not None:
                self._refuse(upload, problem)
        model = view.base
        assert model is not None
        if self.eye.final() is None:
            last = Final(self.group, view.round - 1, model.folder, model.merge.digest)
            path = groups.final_file(self.group)
            try:
                self.store.publish(path, last.to_json())
            except OSError as error:
                raise storage_error(error, "write", self.store.path(path)) from None
        return Step(GroupReport(view.round - 1, "finished", f"the last model is {model.folder}"))
