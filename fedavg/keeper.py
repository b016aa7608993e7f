"""One group, kept going: look, admit, close, merge, publish, clean up; one step at a time.

Nothing is remembered that is not on disk, but what saves reading it again. So a keeper may be
killed between any two calls, and another one goes on from what it finds; two at once get the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from fedavg import admission, closing, refusing, retention
from fedavg.blame import Candidates
from fedavg.judging import Judge
from fedavg.making import Maker
from fsworker.errors import FleetError, StorageError
from fsworker.protocol import artifacts, rounds
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.groupview import GroupEye, View
from fsworker.protocol.layout import groups
from fsworker.protocol.records.round import (
    DELTA,
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
        self.alone = alone
        self.eye = GroupEye(store, group)
        self._judge = Judge(store, group, tell)
        self._maker = Maker(store, self.eye, alone, threads, self._judge.is_trusted, tell)
        self._cleaned = 0
        self._kept = 0

    def step(self) -> Step:
        """Do what can be done now. FleetError when something stands in the way."""
        view = self.eye.look()
        if self._cleaned != view.round:
            self._clean(view)
        if view.finished:
            return self._finish(view)
        try:
            if view.plan is not None:
                return self._merge(view.plan)
            closing.check_terms(self.store, view.group)
            return self._try_to_close(view)
        except _Outrun:
            words = "another one closed it, or took its plan back"
            return Step(GroupReport(view.round, "waiting", words), merged=True)

    def _merge(self, plan: Plan) -> Step:
        """Merge a round that is closed and has no model: whoever closed it could not publish it.

        Its refusals count from when it is known that it can be merged as it was closed.
        """
        try:
            prepared = self._maker.merged(plan)
        except FleetError as error:
            return Step(self._maker.take_back(plan, error), merged=True)
        with self._discarded_if_not_published(prepared):
            self.eye.forget_plan(plan.round)
            if self.eye.plan(plan.round) != plan:
                raise _Outrun
            refusing.carry_out(self.store, self.eye, plan)
            return Step(self._maker.publish(plan, prepared), merged=True)

    @contextmanager
    def _discarded_if_not_published(self, prepared: str) -> Iterator[None]:
        try:
            yield
        except BaseException:
            artifacts.discard(self.store, prepared)
            raise

    # -- an open round

    def _try_to_close(self, view: View) -> Step:
        """Merge the round and close it, if it closes: no plan is published that nobody can merge.

        Whoever stands in its way is out, and the round is looked at again.
        """
        found = [*self._admitted(view), *self._late(view)]
        given = Candidates(self.store, view.round, self._judge.without_odd_ones(found))
        now = self._now(view)
        if given.uploads and view.since is None:
            view = self._begin_to_wait(view, now)
        while True:
            decision = rounds.decide(self._observation(view, given.uploads, now))
            if not decision.closes:
                if given.begin_afresh():
                    continue
                return self._wait(view, decision, given)
            if view.group.late == DELTA and not view.complete:
                return self._close_with_late_ones(view)
            plan = closing.make_plan(view, decision, afresh=given.afresh)
            closed = now or self._server_time()
            try:
                prepared = self._maker.merged(plan)
            except FleetError as error:
                self._check_open(view)
                if (odd := given.drop(plan, error)) is not None and odd.problem is not None:
                    self._refuse(odd, self._judge.overrule(view.group, odd, odd.problem))
                continue
            with self._discarded_if_not_published(prepared):
                return self._close(view, plan, decision, closed, prepared, given)

    def _wait(self, view: View, decision: Decision, given: Candidates) -> Step:
        why = decision.why
        if given.unreadable is not None:
            raise given.unreadable.with_traceback(None)
        if given.doubt is not None:
            if decision.state == "stuck":
                raise given.doubt.with_traceback(None)
            why = f"{why}, for it cannot be merged with all that are there: {given.doubt}"
        admitted = tuple(c.job for c in decision.contributors)
        return Step(GroupReport(view.round, decision.state, why, admitted), decision=decision)

    def _close(
        self,
        view: View,
        plan: Plan,
        decision: Decision,
        closed: float,
        prepared: str,
        given: Candidates,
    ) -> Step:
        self._check_open(view)
        found = closing.close(self.store, self.eye, view, plan, decision, closed)
        if found != plan:
            artifacts.discard(self.store, prepared)
            return self._merge(found)
        for upload in given.uploads:
            late = upload.episode < view.round and not upload.unreadable
            if late and upload.problem is not None:
                self._refuse(upload, upload.problem)
        refusing.carry_out(self.store, self.eye, plan)
        return Step(self._maker.publish(plan, prepared), merged=True)

    def _check_open(self, view: View) -> None:
        base = self.eye.newest()
        number = base.episode if base is not None else 1
        if number != view.round or self.eye.plan(number) is not None:
            raise _Outrun

    def _close_with_late_ones(self, view: View) -> Step:
        """Look again: what is there when a round closes counts in it, whoever's look it was."""
        again = self.eye.look(late=True)
        if again.round != view.round or again.plan is not None:
            raise _Outrun
        return self._try_to_close(again)

    def _observation(self, view: View, uploads: list[Upload], now: float) -> rounds.Observation:
        fits = partial(closing.misfit, view.group, view.base)
        return replace(view.observation(now), uploads=uploads, fits=fits)

    def _admitted(self, view: View) -> list[Upload]:
        """The uploads of the open round, each judged once by the terms of the group."""
        found = []
        known = self.eye.refusals(view.round)
        for seen in view.uploads:
            again = admission.outdated(seen.problem, view.group)
            upload = self._judge.judged(view, seen) if seen.counts or again else seen
            problem = upload.problem
            new = (problem is not None and upload.job not in known) or again
            if new and not upload.unreadable:  # that is told by the decision
                if self.eye.plan(view.round) is not None:
                    raise _Outrun
                if problem is not None:
                    self._refuse(upload, problem)
                else:
                    refusing.take_back(self.store, self.group, view.round, upload.job)
            found.append(upload)
        return found

    def _late(self, view: View) -> Iterator[Upload]:
        """Late uploads that are applied to the open round; the others are refused."""
        for upload in view.late:
            try:
                base = self.eye.model(upload.episode)
            except StorageError as error:  # nobody else needs what it started from
                log.debug("%s: %s: %s", self.group, upload.job, error)
                continue
            problem = admission.late_problem(upload, view.round, view.group, base)
            problem = problem or self._judge.judged(view, upload).problem
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

    def _refuse(self, upload: Upload, problem: Problem) -> None:
        refusing.refuse(self.store, self.group, upload.episode, upload.job, problem, upload.done)

    # -- after a round

    def _clean(self, view: View) -> None:
        """Once a round is published, and once when this process begins."""
        now = None if self.alone else self._server_time()
        retention.remove_leftovers(self.store, self.group, alone=self.alone, now=now)
        newest, keep = view.round - 1, view.group.keep_rounds
        self._kept = retention.retire(self.store, self.group, newest, keep, self._kept)
        self.eye.forget(self._kept)
        self._judge.forget(view.round - keep)
        self._maker.forget()
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
