"""Walking the chain of a group's merges: is every published model what its records say?

Each `merge.json` names the digests of its plan, of its files and of the merge before it. So a model
that was altered, a plan that was rewritten, or a round that was slipped in shows at once; and while
the uploads of a round are kept, its model can be computed again and must come out the same.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from fedavg import publishing
from fsworker.errors import FleetError, StorageError
from fsworker.protocol import archive, artifacts, federation
from fsworker.protocol.artifacts import tree_digest
from fsworker.protocol.federation import Global
from fsworker.protocol.fsops import Store
from fsworker.protocol.groupview import GroupEye
from fsworker.protocol.layout import groups, jobs
from fsworker.protocol.records.round import Plan, sha256

Found = Literal["good", "recomputed", "retired", "broken"]


@dataclass(frozen=True)
class Link:
    """What was found of one round: `retired`, its records are good and its files are removed."""

    round: int
    found: Found
    why: str = ""


def walk(store: Store, group: str, *, recompute: bool = False, threads: int = 2) -> Iterator[Link]:
    """Every round of a group in order, each checked against the one before it.

    StorageError for what cannot be read, or where there is no room to compute it again.
    """
    eye, previous = GroupEye(store, group), None
    old = archive.archived(store, group)
    numbers = map(jobs.parse_before_name, federation.names(store, groups.globals_dir(group)))
    episodes = {n for n in numbers if n is not None} | {first + 1 for first in old}
    newest = max(episodes, default=0)
    for episode in range(min(episodes, default=1), newest + 1):
        number, model = episode - 1, None
        try:
            kept = eye.old(number) if old else None
            if kept is None:
                model = eye.model(episode)
                if model is None or eye.plan(number) is None:
                    kept = eye.old(number)  # its records were put together since this began
            if kept is not None:
                model = kept.model
                wrong = _record(model, kept.plan, previous)
                yield Link(number, "broken" if wrong else "retired", wrong or "")
            elif model is None:
                yield Link(number, "broken", f"{groups.global_dir(group, episode)} has no record")
            else:
                yield _link(store, eye, model, previous, newest, recompute, threads)
        except StorageError:
            raise  # what cannot be read or computed tells nothing about the model
        except FleetError as error:
            yield Link(number, "broken", str(error))
        previous = model


def _link(
    store: Store, eye: GroupEye, model: Global, previous: Global | None, newest: int,
    recompute: bool, threads: int,
) -> Link:  # fmt: skip
    merge, number = model.merge, model.episode - 1
    plan = eye.plan(number)
    wrong = _record(model, plan, previous)
    if wrong is not None:
        return Link(number, "broken", wrong)
    if _is_retired(store, eye, model, newest):
        return Link(number, "retired")
    try:
        artifacts.verify_files(store, model.folder, merge.files + merge.state, full=True)
    except artifacts.Damaged:
        if _is_retired(store, eye, model, newest):  # it was removed since this began
            return Link(number, "retired")
        raise
    if recompute and plan is not None:
        return _again(store, eye, model, plan, threads)
    return Link(number, "good")


def _is_retired(store: Store, eye: GroupEye, model: Global, newest: int) -> bool:
    """Whether files of a model were removed, all or some so far, because it is old.

    What was retired stays so, however many rounds the group is told to keep since.
    """
    there = set(federation.names(store, model.folder))
    files = model.merge.files + model.merge.state
    if all(file.name.partition("/")[0] in there for file in files):
        return False
    keep = federation.read_group(store, eye.group).keep_rounds
    return model.episode < max(eye.retired(), newest - keep)


def _record(model: Global, plan: Plan | None, previous: Global | None) -> str | None:
    """What is wrong with a merge record by itself, its plan and the one before it."""
    merge = model.merge
    before = None if previous is None else previous.record_digest
    if merge.round != model.episode - 1:
        return f"its record is of round {merge.round}"
    if merge.previous != before:
        return "it does not follow from the merge before it"
    if plan is None:
        return "it has no plan" if merge.plan is not None else None
    if merge.plan != sha256(plan.to_json()):
        return "it was made by another plan than the one that is there"
    if plan.previous != merge.previous or plan.base != merge.base:
        return "its plan starts from another model"
    return None


def _again(store: Store, eye: GroupEye, model: Global, plan: Plan, threads: int) -> Link:
    """Compute a round once more, outside of the root, while what it was made of is there."""
    number = plan.round
    try:
        for contributor in plan.contributors:
            publishing.verify_contributor(store, plan.group, contributor)
    except artifacts.Damaged as error:
        return Link(number, "good", f"not recomputed: {error}")
    try:
        digest = _computed(store, eye, plan, threads)
    except FleetError as error:
        if _is_past(store, eye, min(c.episode for c in plan.contributors)):
            return Link(number, "good", f"not recomputed: {error}")  # it went since this began
        raise
    if digest == model.merge.digest:
        return Link(number, "recomputed")
    return Link(
        number, "broken",
        f"computed again it is {digest[:12]}, published is {model.merge.digest[:12]} "
        f"(here: {publishing.versions()}, there: {model.merge.versions})",
    )  # fmt: skip


def _computed(store: Store, eye: GroupEye, plan: Plan, threads: int) -> str:
    """The digest of a plan's model, merged once more."""
    with _scratch() as folder:
        name = publishing.output_name(store, plan)
        out, state = f"{folder}/model/{name}", f"{folder}/{groups.STATE_STEM}.safetensors"
        beside = Store(folder)
        beside.mkdir("model")
        publishing.compute(store, eye, plan, out, state, trusted=publishing.trust, threads=threads)
        return tree_digest(artifacts.digest_files(beside, "model"))


def _is_past(store: Store, eye: GroupEye, episode: int) -> bool:
    """Whether uploads after an episode, and the model that it started from, go by now."""
    newest = eye.newest()
    keep = federation.read_group(store, eye.group).keep_rounds
    return episode < max(eye.retired(), newest.episode - keep if newest else 0)


@contextmanager
def _scratch() -> Iterator[str]:
    """A folder for a model and its state. StorageError says which other one may be given."""
    hint = "set TMPDIR to a folder that has room for a model"
    folder = ""
    try:
        with tempfile.TemporaryDirectory(prefix="fedavg-") as folder:
            yield folder
    except StorageError as error:
        if folder and folder in str(error):
            raise StorageError(f"{error} ({hint})", path=error.path) from error
        raise
    except OSError as error:
        words = f"cannot compute a model again: {error.strerror or error} ({hint})"
        raise StorageError(words, path=folder or None) from error
