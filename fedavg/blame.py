"""Whose upload a merge failed for, so that a round goes on without it: pure but for headers read.

A round is merged before it is closed. What then stands in the way of everybody may be one upload:
it was altered since it was admitted, or holds a number that takes the rule out of its range. That
one is taken out, and the round is looked at again. What is nobody's (the disk, the group's terms,
the model that all started from) is told as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedavg import admission, closing
from fedavg.engine.faults import OutOfRange
from fsworker.errors import FleetError, StorageError
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import groups
from fsworker.protocol.records.round import Contributor, Plan
from fsworker.protocol.rounds import Problem, Upload

OUT_OF_RANGE = "out of range"
"""The kind of a problem that is one only as long as the round can close without the upload."""


def blamed(store: Store, plan: Plan, error: FleetError) -> Contributor | None:
    """The contributor of a plan for whom a merge failed; None when it is nobody's upload."""
    if isinstance(error, StorageError):
        return None
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
    """The uploads that a round may close with, and those that were found to stand in its way.

    Who is `doubted` is out only if the round closes without; `doubt` is the error of the first of
    all. `afresh`: the rule's state is left aside, since what it holds may be out of range itself.
    """

    def __init__(self, store: Store, number: int, uploads: Sequence[Upload]) -> None:
        self._store, self._round = store, number
        self.uploads = list(uploads)
        self.doubted: list[Upload] = []
        self.doubt: FleetError | None = None
        self.afresh = self._has_state = False

    def drop(self, plan: Plan, error: FleetError) -> Upload | None:
        """Take out whom a merge by `plan` failed for: gives it if it is to be refused at once.

        Raises `error` when it is nobody's. Who is misshapen by what others have uploaded so far is
        refused by the plan, and so is who is doubted.
        """
        culprit = blamed(self._store, plan, error)
        found = [u for u in self.uploads if culprit and u.counts and _is_of(u, culprit)]
        if not found:
            raise error
        problem = admission.problem_of(self._store, error)
        if isinstance(error, OutOfRange):
            problem = Problem(OUT_OF_RANGE, problem.reason)
        odd = replace(found[0], problem=problem)
        late = odd.episode < self._round
        if late:  # it says nothing about its job's part in this round
            self.uploads.remove(found[0])
        else:
            self.uploads[self.uploads.index(found[0])] = odd
        if problem.kind == OUT_OF_RANGE:
            self.doubt = self.doubt or closing.without_anybody(error, plan)
            self.doubted.append(odd)
            self._has_state = plan.state is not None
            return None
        return odd if late or problem.kind != admission.MISSHAPEN else None

    def begin_afresh(self) -> bool:
        """Take those who are doubted in again and leave the rule's state aside, once.

        False when that was done, or changes nothing: then the round cannot close yet.
        """
        if self.doubt is None or self.afresh or not self._has_state:
            return False
        again = {(u.job, u.episode): replace(u, problem=None) for u in self.doubted}
        others = (u for u in self.uploads if (u.job, u.episode) not in again)
        self.uploads = [*others, *again.values()]
        self.doubted, self.afresh = [], True
        return True


def _is_of(upload: Upload, contributor: Contributor) -> bool:
    return (upload.job, upload.episode) == (contributor.job, contributor.episode)
