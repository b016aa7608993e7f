"""Whether an upload may be merged: looked at once, when it arrives, so that a round closes fast.

Every byte is read: the digests must be those of `done.json`, the checkpoint must load without
running anything, its keys, shapes and types must be those of the model that the round started from
(in JSON, which tells of the past, lists may have grown: `growing`), and its numbers finite. What
fails is refused by name with a reason, and nobody else waits for it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

from fedavg import closing, strategies
from fedavg.agreement import Unmergeable
from fedavg.checkpoint import (
    ChangedCheckpoint,
    Checkpoint,
    DamagedCheckpoint,
    Entry,
    UnsafeCheckpoint,
    UnsupportedCheckpoint,
    open_checkpoint,
)
from fedavg.engine import preparing, products
from fedavg.growing import JSON, as_floats, departure, family
from fedavg.inspection import inspect
from fedavg.policy import Policy, policy_from
from fedavg.publishing import checkpoint_path, model_path
from fsworker.errors import FleetError, FormatError, StorageError
from fsworker.protocol import artifacts, fsfolders, rounds
from fsworker.protocol.artifacts import Damaged, Done, FileDigest
from fsworker.protocol.federation import Global
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import groups
from fsworker.protocol.records.round import Group
from fsworker.protocol.rounds import Problem, Upload

UNREADABLE = rounds.UNREADABLE
"""The kind of a problem that may pass: it is told, and not written down as a refusal."""

NOT_FINITE = "not finite"
"""The kind of one that depends on what becomes of a key, and by what rule."""

MISSHAPEN = "misshapen"
"""The kind of one that is not as the model of its round, or as most others."""

Stamps = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Verdict:
    """What was found: a problem, or the layout of the checkpoint, as one word to compare.

    `stamps` tell whether its files were written to since. It holds for groups of these `terms`.
    `usual` is the layout of the model that it was compared with, empty where there was none.
    """

    problem: Problem | None
    layout: str = ""
    stamps: Stamps = ()
    terms: str = ""
    usual: str = ""


def examine(store: Store, group: Group, upload: Upload, base: Global | None) -> Verdict:
    """Read an upload that has nothing wrong with its record; never raises for what is in it.

    `base` is the model that the open round started from (None: there is none to compare with).
    FormatError or StorageError when that cannot be read.
    """
    assert upload.done is not None
    folder = groups.upload_dir(group.group, upload.episode, upload.job)
    with ExitStack() as stack:
        model = None
        if base is not None:  # its damage is not the upload's
            model = stack.enter_context(open_checkpoint(model_path(store, base)))
        on_time = base is None or upload.episode == base.episode
        verdict = _examine(store, folder, upload.done, group, model, on_time)
    return replace(verdict, terms=terms_of(group))


def policy_of(group: Group) -> Policy:
    """What becomes of each key. UsageError for what cannot be."""
    return policy_from(group.keys.items(), group.lora)


def moves(group: Group) -> bool:
    """Whether the group's rule moves the model that a round started from."""
    kind = strategies.RULES.get(group.rule)
    return kind is not None and kind.needs_base


def largest_of(group: Group) -> tuple[float, float]:
    """The largest value that the group's rule can be given, and the largest in float64."""
    kind = strategies.RULES.get(group.rule)
    return (math.inf, math.inf) if kind is None else (kind.largest, kind.largest_double)


def terms_of(group: Group) -> str:
    """A digest of those terms of a group that a verdict depends on."""
    paired = group.rule if group.lora == "product" else ""  # not all rules merge these
    bounds = (*largest_of(group), moves(group))
    terms = json.dumps([*bounds, *group.keys.items(), group.lora, paired])
    return hashlib.sha256(terms.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def outdated(problem: Problem | None, group: Group) -> bool:
    """Whether an upload was refused by terms that are no more the group's."""
    return problem is not None and problem.terms not in (None, terms_of(group))


def _examine(
    store: Store, folder: str, done: Done, group: Group, model: Checkpoint | None, on_time: bool
) -> Verdict:
    policy = policy_of(group)
    try:
        stamps = stamps_of(store, folder, done.files)
        artifacts.verify(store, folder, full=True, exact=True)
        with open_checkpoint(
            checkpoint_path(store, folder, done.files, "checkpoint")
        ) as checkpoint:
            layout = layout_of(checkpoint if model is None else as_floats(model, checkpoint))
            if model is not None:
                _compare(model, checkpoint, group, on_time)
            most, double = largest_of(group)
            inspect(checkpoint, policy=policy, largest=most, largest_double=double)
            if model is None and (wrong := _unfit(store, group, checkpoint, policy)) is not None:
                return Verdict(wrong)
    except (FleetError, OSError) as error:
        problem = problem_of(store, error)
        by_terms = problem.kind == NOT_FINITE or (problem.kind == MISSHAPEN and _is_json(model))
        return Verdict(replace(problem, terms=terms_of(group)) if by_terms else problem)
    return Verdict(None, layout, stamps, usual=layout_of(model) if model else "")


def _compare(model: Checkpoint, upload: Checkpoint, group: Group, on_time: bool) -> None:
    """Unmergeable where an upload is not as the model of its round."""
    policy, fixed = policy_of(group), {"base"}
    if not on_time or moves(group):
        fixed |= {"rule", "mean"}

    def may_grow(entry: Entry) -> bool:
        return policy.action(entry) not in fixed

    if wrong := departure(model, upload, may_grow):
        raise Unmergeable(wrong[1], key=wrong[0])


def _is_json(model: Checkpoint | None) -> bool:
    return model is not None and model.format == JSON


def _unfit(store: Store, group: Group, checkpoint: Checkpoint, policy: Policy) -> Problem | None:
    """Why an upload could not be merged, whoever else takes part, by the terms of the group.

    Where a model tells what is misshapen, that was merged by them.
    """
    try:
        preparing.actions_alone(closing.rule_of(group, None), checkpoint.entries, policy)
        products.pairs_alone(checkpoint.entries, policy)
    except FleetError as error:
        return replace(problem_of(store, error), terms=terms_of(group))
    return None


def stamps_of(store: Store, folder: str, files: Iterable[FileDigest]) -> Stamps:
    """What tells whether any file of an upload was replaced or written to since. OSError.

    Empty when a file is missing.
    """
    try:
        return tuple(fsfolders.stamp(store, f"{folder}/{file.name}") for file in files)
    except FileNotFoundError:
        return ()


def layout_of(checkpoint: Checkpoint) -> str:
    """A digest of what must be the same in all uploads of a round: keys, shapes and types."""
    rows = sorted((e.key, e.dtype, e.shape, e.owner) for e in checkpoint.entries.values())
    words = repr((family(checkpoint), rows))
    return hashlib.sha256(words.encode("utf-8", "surrogatepass")).hexdigest()


def without_odd_ones(
    uploads: list[Upload], verdicts: Mapping[tuple[int, str], Verdict]
) -> list[Upload]:
    """The uploads of a round, where no model said who is misshapen: who differs from most is.

    `verdicts` are those of the ones that may be merged, by episode and job. Who is late goes with
    those who are not. Of two layouts that as many have, that of the round's model is taken, else
    that of the first job by name.
    """
    counting = {at: verdicts[at] for u in uploads if u.counts for at in [(u.episode, u.job)]}
    if len({verdict.layout for verdict in counting.values()}) < 2:
        return uploads
    newest = max(episode for episode, _ in counting)
    voters = {job: verdict for (episode, job), verdict in counting.items() if episode == newest}
    votes = Counter(verdict.layout for verdict in voters.values())
    most = [job for job, verdict in voters.items() if votes[verdict.layout] == max(votes.values())]
    first = min(most, key=lambda job: (voters[job].layout != voters[job].usual, job))
    usual = voters[first].layout
    words = f"its keys, shapes or types are not those of {first} and most others"
    odd = Problem(MISSHAPEN, words)
    return [
        replace(u, problem=odd) if u.counts and counting[u.episode, u.job].layout != usual else u
        for u in uploads
    ]


def problem_of(store: Store, error: FleetError | OSError) -> Problem:
    """An error as why an upload does not count, in words that are the same on every mount."""
    if isinstance(error, (OSError, StorageError, ChangedCheckpoint)):
        kind = UNREADABLE
    elif isinstance(error, UnsafeCheckpoint):
        kind = "unsafe"
    elif isinstance(error, (Damaged, DamagedCheckpoint)):
        kind = "damaged"
    elif isinstance(error, UnsupportedCheckpoint):
        kind = "unsupported"
    elif isinstance(error, Unmergeable):
        kind = NOT_FINITE if NOT_FINITE in str(error) else MISSHAPEN
    else:
        kind = "damaged" if isinstance(error, FormatError) else MISSHAPEN
    return Problem(kind, str(error).replace(f"{store.root}/", ""))


def late_problem(upload: Upload, newest: int, group: Group, base: Global | None) -> Problem | None:
    """What is wrong with an upload of a closed round before it is read; `newest` is the open one.

    `base` is the model that its episode started from (None: it is gone, or was none).
    """
    late = rounds.late_problem(upload.job, upload.episode, newest, group)
    if late is not None or upload.problem is not None or upload.done is None:
        return late or upload.problem
    if base is None:
        return Problem("late", f"round {upload.episode} had no model that its change counts from")
    return rounds.record_problem(upload.job, upload.episode, upload.done, base.merge.digest)
