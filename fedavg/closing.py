"""Closing a round: the plan, and its publication, which is the commit.

The plan is made of what was observed and holds nothing else, so that it says the same whoever
writes it. The first one that is published counts; an aggregator that comes later takes that one.
"""

from __future__ import annotations

import logging
import secrets

from fedavg import strategies
from fedavg.rule import Rule
from fsworker.errors import FleetError, FormatError, Refused, UsageError
from fsworker.protocol import artifacts
from fsworker.protocol.federation import RECORD_LIMIT, Global
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.groupview import GroupEye, View
from fsworker.protocol.layout import groups
from fsworker.protocol.records.round import Group, Plan, Times, terms_problem
from fsworker.protocol.records.rules import count_problem
from fsworker.protocol.rounds import Decision

log = logging.getLogger(__name__)

FIRST_RULE = "fedavg"
"""What merges a first round that has no model to improve on: the rules that need one begin with
the mean."""


def rule_of(group: Group, base: Global | None) -> Rule:
    """The rule that the next round is closed with. UsageError when the group's cannot be."""
    rule = strategies.rule(group.rule, group.options)
    if base is None and (rule.kind.needs_base or rule.kind.state):
        return strategies.rule(FIRST_RULE)
    return rule


def misfit(group: Group, base: Global | None, count: int) -> str | None:
    """Why the group's rule cannot be applied to `count` participants; None when it can.

    UsageError when it cannot be applied to any.
    """
    rule = rule_of(group, base)
    try:
        rule.check(count)
    except UsageError as error:
        return str(error)
    return None


def keys_of(group: Group, base: Global | None) -> dict[str, str]:
    """What becomes of keys in the next round: without a model, the first one's for a base."""
    keep = "first" if base is None else "base"
    return {key: keep if action == "base" else action for key, action in group.keys.items()}


def check_terms(store: Store, group: Group) -> None:
    """FormatError for a group that asks for what there is not: somebody edited its file."""
    if (problem := terms_problem(group)) is not None:
        path = store.path(groups.group_file(group.group))
        raise FormatError(f"{path}: {problem}", path=path)


def make_plan(view: View, decision: Decision, *, afresh: bool = False) -> Plan:
    """The plan of the open round, from what was seen and decided; `afresh`: without a state.

    Refused for one that would be too large to be read again.
    """
    group, base = view.group, view.base
    rule = rule_of(group, base)
    state = None
    if base is not None and base.merge.rule == rule.name and not afresh:
        state = base.merge.state_digest
    plan = Plan(
        group.group,
        view.round,
        rule.name,
        decision.contributors,
        dict(rule.params),
        keys_of(group, base),
        group.lora,
        None if base is None else base.merge.digest,
        None if base is None else base.record_digest,
        state,
        {job: f"{p.kind}: {p.reason}" for job, p in sorted(decision.refused.items())},
        decision.missing,
    )
    if (size := len(plan.to_json())) > RECORD_LIMIT:
        most = max(plan.contributors, key=lambda c: len(c.files))
        raise Refused(
            f"round {plan.round} cannot be closed: its plan would have {size} bytes, and "
            f"{RECORD_LIMIT} are read; {most.job} alone uploaded {len(most.files)} files: save "
            "fewer and larger ones"
        )
    return plan


def close(
    store: Store, eye: GroupEye, view: View, plan: Plan, decision: Decision, now: float
) -> Plan:
    """Close the open round with `plan`: gives the one that counts, or that of who was faster.

    `now` is by the file server's clock, and is written beside the plan, for people. StorageError.
    """
    target = groups.round_dir(view.group.group, view.round)
    since = view.since if view.since is not None else now
    prepared = artifacts.prepare(store, target)
    try:
        store.put(f"{prepared}/{groups.PLAN_FILE}", plan.to_json())
        store.put(f"{prepared}/{groups.TIMES_FILE}", Times(min(since, now), now).to_json())
    except OSError as error:
        artifacts.discard(store, prepared)
        raise storage_error(error, "write", store.path(prepared)) from None
    won = artifacts.publish(store, prepared, target)
    log.info("%s: round %d closed%s: %s", view.group.group, view.round,
             "" if won else " by another aggregator", decision.why)  # fmt: skip
    found = eye.plan(view.round)
    if found is None:
        path = store.path(target)
        raise FormatError(f"{path} was published and holds no plan", path=path)
    return found


def with_advice(error: FleetError, plan: Plan) -> FleetError:
    """The error of a round that cannot be merged as it was closed, where nobody may take its plan
    back: with what to do about it."""
    words = f"round {plan.round} cannot be merged by {plan.rule}: {error}"
    return Refused(f"{words}; stop all aggregators, and: fedavg reopen {plan.group}")


def without_anybody(error: FleetError, plan: Plan) -> FleetError:
    """The error of a round that cannot be merged, nor without whoever is farthest from the others:
    with what to do about it.

    Whoever is farthest need not be to blame: an upload that just fitted may be in the model that
    all started from, so that who is honest is far from it.
    """
    words = f"round {plan.round} cannot be merged by {plan.rule}: {error}"
    if plan.base is not None:
        words += ", but the model that the round started from may be what is too large"
    words += f"; ctl rounds {plan.group} --rule NAME, or --option lr=…, changes how it is merged"
    left = len(plan.contributors) - 1
    if left and count_problem(plan.rule, plan.options, left) is None:
        words += ", and a lower --quorum may let it close without"
    return Refused(words)


def reopen(store: Store, group: str, number: int) -> str:
    """Take the plan of a round back: gives the hidden name that it is kept under. StorageError.

    For who is alone, or a round may be published by a plan that is none any more.
    """
    path = groups.round_dir(group, number)
    folder, _, name = path.rpartition("/")
    kept = f"{folder}/.void~{secrets.token_hex(4)}~{name}"
    try:
        store.rename(path, kept)
        store.sync_folder(folder)
    except OSError as error:
        raise storage_error(error, "rename", store.path(path)) from None
    log.info("%s: round %d is open again, its plan is kept as %s", group, number, kept)
    return kept
