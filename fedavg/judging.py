"""What is known of the uploads of a group: each is read once, and again when its terms change."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from fedavg import admission
from fedavg.admission import Verdict
from fsworker.protocol.fsops import Store
from fsworker.protocol.groupview import View
from fsworker.protocol.layout import groups
from fsworker.protocol.records.round import Contributor, Group, GroupReport
from fsworker.protocol.rounds import Problem, Upload

log = logging.getLogger(__name__)


class Judge:
    """The verdicts about one group's uploads. `tell` is told before one is read."""

    def __init__(self, store: Store, group: str, tell: Callable[[GroupReport], None]) -> None:
        self._store, self._group, self._tell = store, group, tell
        self._verdicts: dict[tuple[int, str], Verdict] = {}

    def judged(self, view: View, upload: Upload) -> Upload:
        """The upload with its problem, if it has one; what may pass is asked again next time."""
        key, terms = (upload.episode, upload.job), admission.terms_of(view.group)
        if key not in self._verdicts or self._verdicts[key].terms != terms:
            self._tell(GroupReport(view.round, "reading", f"reading the upload of {upload.job}"))
            verdict = admission.examine(self._store, view.group, upload, view.base)
            if verdict.problem is not None and verdict.problem.kind == admission.UNREADABLE:
                return replace(upload, problem=verdict.problem)
            self._verdicts[key] = verdict
            if verdict.problem is None:
                log.info("%s: %s is in round %d", self._group, upload.job, view.round)
        return replace(upload, problem=self._verdicts[key].problem)

    def overrule(self, group: Group, upload: Upload, problem: Problem) -> Problem:
        """Remember of an upload that was admitted what is wrong with it by now; gives that."""
        terms = admission.terms_of(group)
        if problem.kind == admission.NOT_FINITE:
            problem = replace(problem, terms=terms)
        self._verdicts[upload.episode, upload.job] = Verdict(problem, terms=terms)
        return problem

    def without_odd_ones(self, uploads: list[Upload]) -> list[Upload]:
        """`admission.without_odd_ones` of some that were judged."""
        return admission.without_odd_ones(uploads, self._verdicts)

    def is_trusted(self, contributor: Contributor) -> bool:
        """Whether an upload was verified here and nothing wrote to it since."""
        verdict = self._verdicts.get((contributor.episode, contributor.job))
        if verdict is None or verdict.problem is not None:
            return False
        folder = groups.upload_dir(self._group, contributor.episode, contributor.job)
        try:
            return admission.stamps_of(self._store, folder, contributor.files) == verdict.stamps
        except OSError:
            return False

    def forget(self, before: int) -> None:
        """Let go of what is known of rounds that are retired."""
        for key in [k for k in self._verdicts if k[0] < before]:
            del self._verdicts[key]
