"""Whose upload a merge failed for, so that a round goes on without it: pure decisions.

A round is merged before it is closed. What then stands in the way of everybody may be one upload:
it was altered since it was admitted, cannot be read, or holds a number that takes the rule out of
its range. That one is taken out, and the round is looked at again. What is nobody's (a full disk,
the group's terms, the model that all started from) is told as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedavg import admission, closing
from fedavg.engine.faults import OutOfRange
from fsworker.errors import FleetError
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import groups
from fsworker.protocol.records.round import Contributor, Plan
from fsworker.protocol.rounds import Problem, Upload

OUT_OF_RANGE = "out of range"
"""The kind of a problem that is one only as long as the round can close without the upload."""


def blamed(store: Store, plan: Plan, error: FleetError) -> Contributor | None:
    """The contributor of a plan for whom a merge failed; None when it is nobody's upload."""
    name = getattr(error, "participant", None) or getattr(error, "farthest", None)
    for contributor in plan.contributors:
        late = contributor.episode < plan.round
        own = [groups.upload_dir(plan.group, contributor.episode, contributor.job)]
        if late:  # nobody else needs the model that it started from
            own.append(groups.global_dir(plan.group, contributor.episode))
        if contributor.job == name or any(_is_in(error.path, store.path(f)) for f in own):
            return contributor
    return None


def _is_in(path: str | None, folder: str) -> bool:
    return path is not None and (path == folder or path.startswith(f"{folder}/"))


class Candidates:
    """The uploads that a round may close with, with what is wrong with them.

    Who is out of range, or cannot be read, is out only if the round closes without; `doubt` and
    `unreadable` are the errors of the first of them. `afresh`: the rule's state is left aside,
    since what it holds may be out of range itself.
    """

    def __init__(self, store: Store, number: int, uploads: Sequence[Upload]) -> None:
        self._store, self._round = store, number
        self.uploads = list(uploads)
        self.doubt: FleetError | None = None
        self.unreadable: FleetError | None = None
        self.afresh = False

    def drop(self, plan: Plan, error: FleetError) -> Upload | None:
        """Take out whom a merge by `plan` failed for: gives it if it is to be refused at once.

        Raises `error` when it is nobody's. Who is misshapen by what others have uploaded so far is
        refused by the plan, and so is who is doubted.
        """
        culprit = blamed(self._store, plan, error)
        found = next((u for u in self.uploads if culprit and u.counts and _is_of(u, culprit)), None)
        if found is None:
            raise error
        place, problem = self.uploads.index(found), admission.problem_of(self._store, error)
        if isinstance(error, OutOfRange):
            self.doubt = self.doubt or closing.without_anybody(error, plan)
            self.uploads[place] = replace(found, problem=Problem(OUT_OF_RANGE, problem.reason))
            return None
        odd = replace(found, problem=problem)
        if odd.unreadable:
            self.unreadable = self.unreadable or error
            self.uploads[place] = odd
            return None
        if odd.episode < self._round:  # it says nothing about its job's part in this round
            del self.uploads[place]
            return odd
        self.uploads[place] = odd
        return odd if problem.kind != admission.MISSHAPEN else None

    def begin_afresh(self) -> bool:
        """Take those who are out of range in again and leave the rule's state aside, once.

        False when that was done, or nobody is: then the round cannot close yet.
        """
        if self.doubt is None or self.afresh:
            return False
        self.uploads = [
            replace(u, problem=None) if u.problem and u.problem.kind == OUT_OF_RANGE else u
            for u in self.uploads
        ]
        self.afresh = True
        return True


def _is_of(upload: Upload, contributor: Contributor) -> bool:
    return (upload.job, upload.episode) == (contributor.job, contributor.episode)
