"""The refusals of a group on disk: written by name and with a reason, and taken back."""

from __future__ import annotations

import logging

from fsworker.protocol import fsfolders
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.groupview import GroupEye
from fsworker.protocol.layout import groups
from fsworker.protocol.records.round import Plan, Refusal
from fsworker.protocol.rounds import Problem

log = logging.getLogger(__name__)


def refuse(
    store: Store, group: str, episode: int, job: str, problem: Problem, done: object = None
) -> None:
    """Write down why an upload does not count; `done` is its record, if any. StorageError."""
    digest = getattr(done, "digest", None)
    words, terms = (problem.kind, problem.reason), problem.terms
    record = Refusal(group, episode, job, *words, digest, terms)
    path = groups.refusal_file(group, episode, job)
    log.warning("%s: %s is refused in round %d: %s", group, job, episode, problem.reason)
    try:
        fsfolders.make_folders(store, path.rpartition("/")[0])
        store.publish(path, record.to_json())
    except OSError as error:
        raise storage_error(error, "write", store.path(path)) from None


def carry_out(store: Store, eye: GroupEye, plan: Plan) -> None:
    """Write what a plan decided about uploads, as far as it is not written. StorageError.

    Whoever closed the round may have been killed since, or may have seen other terms of the group,
    by which somebody was refused who counts.
    """
    known = eye.refusals(plan.round)
    for contributor in plan.contributors:
        if contributor.job in known and contributor.episode == plan.round:
            take_back(store, plan.group, plan.round, contributor.job)
    for job, words in plan.refused.items():
        if job not in known:
            kind, _, reason = words.partition(": ")
            refuse(store, plan.group, plan.round, job, Problem(kind, reason))


def take_back(store: Store, group: str, episode: int, job: str) -> None:
    """A refusal, since the group's terms are others now. StorageError."""
    path = groups.refusal_file(group, episode, job)
    log.info("%s: %s is no more refused in round %d", group, job, episode)
    try:
        store.remove(path)
    except OSError as error:
        raise storage_error(error, "remove", store.path(path)) from None
